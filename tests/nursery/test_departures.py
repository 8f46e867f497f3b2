"""Resets, departures and other barriers: what they fence, and what a cancelled caller leaves."""

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, Rank
from kvlanes.nursery import LaneBusy, LaneSet, StaleIncarnation
from kvlanes.nursery._incarnations import Seats
from tests.nursery.scenes import (
    A,
    B,
    C,
    Factory,
    HookedIndex,
    advance,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
)

both_paths = pytest.mark.parametrize("in_place", [True, False], ids=["in-place", "queued"])


@both_paths
async def test_p03_a_departed_worker_is_gone_and_comes_back_empty(in_place: bool) -> None:
    """P03, the lane part: reset, drop, and a second life that starts from nothing."""
    factory = Factory()
    async with checked_lanes(factory, in_place=in_place) as lanes:
        await lanes.apply(confirmed(A, 64))
        await lanes.apply(confirmed(B, 32))
        await lanes.reset(A)
        assert lanes.overlap(prompt(64)).scores() == {B: 32}
        await lanes.drop("b")
        assert lanes.overlap(prompt(64)).scores() == {}
        assert factory.current.statistics().blocks == 0
        assert lanes.statistics().total("ranks") == 1  # A's reset kept its lane, B's is forgotten
        lanes.attach(A)
        assert depth(lanes) == 0
        await lanes.apply(leased(A, 2))
        assert depth(lanes) == 2


@both_paths
async def test_p26_what_was_queued_for_a_departed_worker_never_reappears(in_place: bool) -> None:
    """P26: 50 stores queued, the worker dropped, the lane opened."""
    factory = Factory()
    async with checked_lanes(factory, lanes=1, in_place=in_place) as lanes:
        old = lanes.attach(A)
        for length in range(50):
            assert lanes.post(confirmed(A, length), old)
        await lanes.drop("a")
        assert lanes.overlap(prompt(50)).scores() == {}
        assert factory.current.statistics().blocks == 0
        with pytest.raises(StaleIncarnation):
            await lanes.apply(confirmed(A, 1), old)
        assert lanes.post(confirmed(A, 1), old)
        await lanes.flush()
        assert lanes.overlap(prompt(50)).scores() == {}
        assert lanes.statistics().total("ranks") == 0


@both_paths
@pytest.mark.parametrize("seed", range(25))
async def test_p28_store_reset_store_ends_as_the_second_store(in_place: bool, seed: int) -> None:
    """P28: issued in this order by one task, whatever the other lanes do in between."""
    rng = random.Random(seed)
    async with checked_lanes(lanes=4, in_place=in_place) as lanes, trio.open_nursery() as nursery:

        async def noise(rank: Rank) -> None:
            for length in range(6):
                await lanes.apply(leased(rank, length))
                if rng.random() < 0.5:
                    await lanes.drop(rank.worker_id)

        for number in range(3):
            nursery.start_soon(noise, Rank(f"n{number}"))
        for _ in range(10):
            lanes.post(confirmed(A, 5))
            nursery.start_soon(lanes.flush)
            with trio.CancelScope() as scope:
                scope.cancel()
                await lanes.reset(A)  # posts its barrier, and waits for nothing
            lanes.post(confirmed(A, 2))
            await lanes.flush()
            assert depth(lanes) == 2


@both_paths
async def test_a_queued_store_does_not_survive_a_reset(in_place: bool) -> None:
    """The reference could register the lease of a store queued before the reset."""
    async with checked_lanes(lanes=1, in_place=in_place) as lanes:
        lanes.post(leased(A, 4))
        incarnation = await lanes.reset(A)
        assert depth(lanes) == 0
        assert lanes.attach(A) is incarnation


async def test_a_cold_reset_takes_a_lane_and_the_departure_of_a_stranger_does_not() -> None:
    async with checked_lanes(lanes=2) as lanes:
        await lanes.drop("stranger")
        lanes.drop_nowait("stranger", 3)
        assert [lane.ranks for lane in lanes.statistics().lanes] == [0, 0]
        await lanes.reset(A)
        assert [lane.ranks for lane in lanes.statistics().lanes] == [1, 0]
        lanes.attach(B)
        assert [lane.ranks for lane in lanes.statistics().lanes] == [1, 1]


async def test_a_departure_ends_what_the_factory_had_filled_in() -> None:
    def filled() -> HookedIndex:
        index = HookedIndex()
        index.apply(confirmed(A, 3), 0.0)
        return index

    async with checked_lanes(filled) as lanes:
        assert depth(lanes) == 3
        await lanes.drop("a")
        assert depth(lanes) == 0


async def test_leases_that_the_factory_filled_in_end_once_their_rank_is_attached(
    mock_clock: MockClock,
) -> None:
    def filled() -> HookedIndex:
        index = HookedIndex()
        index.apply(leased(A, 3, 5.0), 0.0)
        return index

    async with checked_lanes(filled) as lanes:
        lanes.attach(A)
        await advance(mock_clock, 5.0)
        assert depth(lanes) == 0


async def test_dropping_one_rank_leaves_its_sibling() -> None:
    async with checked_lanes(lanes=1) as lanes:
        for dp_rank in (0, 1):
            await lanes.apply(confirmed(Rank("a", dp_rank), 2))
        await lanes.drop("a", 1)
        assert lanes.overlap(prompt(2)).scores() == {A: 2}
        await lanes.drop("a")
        assert lanes.overlap(prompt(2)).scores() == {}


@both_paths
async def test_two_departures_at_once_both_return(in_place: bool) -> None:
    async with checked_lanes(lanes=2, in_place=in_place) as lanes:
        for rank in (A, B, Rank("a", 1)):
            lanes.post(confirmed(rank, 3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.drop, "a")
            nursery.start_soon(lanes.drop, "a")
            nursery.start_soon(lanes.drop, "b")
        assert lanes.overlap(prompt(3)).scores() == {}
        assert lanes.statistics().total("ranks") == 0


@both_paths
async def test_registration_during_a_departure_keeps_the_lane_and_nothing_else(
    in_place: bool,
) -> None:
    async with checked_lanes(lanes=2, in_place=in_place) as lanes:
        old = lanes.attach(A)
        lanes.post(confirmed(A, 5), old)
        async with trio.open_nursery() as nursery:
            lanes.drop_nowait("a")
            new = lanes.attach(A)
            nursery.start_soon(lanes.apply, confirmed(A, 2), new)
            lanes.post(confirmed(A, 4), old)
            nursery.start_soon(lanes.drop, "nobody")
        await lanes.flush()
        assert depth(lanes) == 2
        lanes.drop_nowait("a")
        assert lanes.attach(A) is not new
        assert depth(lanes) == 0


async def test_a_cancelled_departure_is_a_whole_one() -> None:
    """No half barrier: what the caller began goes on without it."""
    factory = Factory()
    async with checked_lanes(factory, lanes=2, in_place=False) as lanes:
        for rank in (A, Rank("a", 1)):
            lanes.post(confirmed(rank, 3))
        with trio.CancelScope() as scope:
            factory.current.before = lambda _: scope.cancel()
            lanes.post(confirmed(B, 1))
            await lanes.drop("a")
        await lanes.flush()
        assert lanes.overlap(prompt(3)).scores() == {B: 1}
        assert lanes.statistics().total("ranks") == 1


async def test_p80_departures_from_inside_an_expiry_are_done_and_the_lane_survives(
    mock_clock: MockClock,
) -> None:
    """P80: three workers dropped from inside the expiry of a fourth."""
    factory = Factory()
    async with checked_lanes(factory, lanes=2) as lanes:
        others = [A, B, C]
        for rank in others:
            await lanes.apply(confirmed(rank, 2))
        await lanes.apply(leased(Rank("fourth"), 2, 5.0))

        def before(name: str) -> None:
            if name == "expire":
                for rank in others:
                    lanes.drop_nowait(rank.worker_id)
                assert lanes.overlap(prompt(2)).scores()  # not while this write runs

        await wait_all_tasks_blocked()
        factory.current.before = before
        await advance(mock_clock, 5.0)
        assert lanes.overlap(prompt(2)).scores() == {}
        factory.current.before = lambda _: None
        assert await lanes.apply(leased(Rank("fourth"), 1)) == Applied(applied=1)
        assert lanes.statistics().total("ranks") == 1


async def test_what_the_index_calls_back_from_inside_a_write_finds_no_idle_lane() -> None:
    factory = Factory()
    async with checked_lanes(factory, lanes=1) as lanes:
        calls: list[bool] = []

        def before(_: str) -> None:
            factory.current.before = lambda _: None
            with pytest.raises(trio.WouldBlock):
                lanes.apply_nowait(leased(B, 1))
            calls.append(lanes.post(leased(B, 2)))
            lanes.drop_nowait("c")

        factory.current.before = before
        await lanes.apply(confirmed(C, 3))
        await lanes.flush()
        assert calls == [True]
        assert lanes.overlap(prompt(3)).scores() == {B: 2}


@pytest.mark.parametrize("write", ["drop", "expire"])
async def test_nor_from_inside_a_departure_or_an_expiry(mock_clock: MockClock, write: str) -> None:
    factory = Factory()
    async with checked_lanes(factory, lanes=1) as lanes:
        await lanes.apply(leased(A, 1, 5.0))
        await wait_all_tasks_blocked()
        calls: list[str] = []

        def before(name: str) -> None:
            factory.current.before = lambda _: None
            calls.append(name)
            with pytest.raises(LaneBusy):
                lanes.apply_nowait(leased(B, 1))
            lanes.post(leased(B, 2, 60.0))

        factory.current.before = before
        if write == "drop":
            await lanes.drop("a")
        else:
            mock_clock.jump(5.0)
            await wait_all_tasks_blocked()
        await lanes.flush()
        assert calls == [write]
        assert lanes.overlap(prompt(3)).scores() == {B: 2}


async def test_a_departure_asked_for_from_inside_a_write_is_done_with_it() -> None:
    factory = Factory()
    async with checked_lanes(factory, lanes=1) as lanes:
        await lanes.apply(confirmed(B, 2))
        lanes.attach(A)
        await wait_all_tasks_blocked()

        def before(_: str) -> None:
            factory.current.before = lambda _: None
            lanes.drop_nowait("b")

        factory.current.before = before
        await lanes.apply(confirmed(A, 1))
        assert factory.current.overlap(prompt(2)).scores() == {A: 1}


async def test_a_rank_keeps_its_lane_over_a_reset() -> None:
    """Whoever looked its lane up before may still queue there."""
    async with checked_lanes(lanes=3) as lanes:
        lanes.attach(A)
        lanes.attach(B)
        for _ in range(2):
            await lanes.reset(A)
            assert [lane.ranks for lane in lanes.statistics().lanes] == [1, 1, 0]


def test_nothing_is_kept_of_a_worker_that_has_departed() -> None:
    seats = Seats[None]([None])
    for rank in (A, Rank("a", 1), B):
        seats.attach(rank)
    seats.departed(seats.revoke("a", None))
    assert ([*seats.table], [*seats.of_worker]) == ([B], ["b"])


async def test_flush_and_dump_wait_for_what_was_queued() -> None:
    async with checked_lanes(Factory(), lanes=2, in_place=False) as lanes:
        lanes.post(confirmed(A, 1))
        lanes.post(confirmed(B, 1))
        assert await lanes.dump() == [A, B]
        lanes.post(confirmed(C, 1))
        await lanes.flush()
        assert depth(lanes, C) == 1


async def test_barriers_do_not_count_against_the_capacity() -> None:
    async def wait(lanes: LaneSet) -> None:
        await lanes.flush()

    async with checked_lanes(lanes=1, in_place=False, queue_capacity=1) as lanes:
        lanes.post(leased(A, 1))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait, lanes)
            nursery.start_soon(lanes.drop, "a")
        assert lanes.statistics().lanes[0].peak_depth == 1
