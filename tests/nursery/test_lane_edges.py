"""What happens after the end, to what is no rank, and when a queue is full of nothing to do."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from kvlanes.indexer import Rank
from kvlanes.nursery import LaneBusy, LaneClosed, LaneCrashed, LaneSet, TaskReceiver
from tests.indexer.oracle import Oracle
from tests.nursery.scenes import (
    A,
    B,
    Factory,
    HookedIndex,
    advance,
    breaks_on,
    checked_lanes,
    confirmed,
    leased,
    prompt,
    small_index,
)
from tests.nursery.served import Backends, GatedBackend, scripted


async def test_nothing_hangs_after_served_lanes_have_ended() -> None:
    in_lane = Backends(lambda: GatedBackend(reads_in_caller=False))
    async with checked_lanes(in_lane, lanes=2) as lanes:
        lanes.attach(A)
    with trio.fail_after(5):
        for call in (lanes.flush, lanes.dump):
            with pytest.raises(LaneClosed, match="before this was passed"):
                await call()
        with pytest.raises(LaneClosed):
            await lanes.drop("a")
        with pytest.raises(LaneClosed):
            await lanes.read(prompt(1))
    lanes.drop_nowait("a")


@pytest.mark.parametrize("rank", [("a", 0), "a", None])
async def test_what_is_no_rank_gets_no_lane(rank: Any) -> None:
    async with checked_lanes() as lanes:
        with pytest.raises(TypeError, match="a rank is a Rank"):
            lanes.attach(rank)
        await lanes.drop("a")
        assert lanes.statistics().total("ranks") == 0


async def test_a_full_queue_of_refreshes_lets_others_run() -> None:
    """No refresh needs the backend; the lane must not do a thousand of them in one go."""
    backends = Backends()
    async with checked_lanes(backends, lanes=1) as lanes:
        await lanes.apply(leased(A, 3))
        await wait_all_tasks_blocked()
        for _ in range(1000):
            lanes.post(leased(A, 3))
        turns = 0
        while lanes.statistics().total("depth"):
            turns += 1
            await trio.lowlevel.checkpoint()
        assert turns >= 1000 // 64
        assert backends.current.log == ["Store"]


@pytest.mark.parametrize("make_index", [small_index, Backends()], ids=["index", "served"])
async def test_every_granted_lease_is_held_expired_or_revoked(
    mock_clock: MockClock, make_index: Any
) -> None:
    async with checked_lanes(make_index, lanes=2) as lanes:
        await lanes.apply(leased(A, 4, 5.0))
        await lanes.apply(leased(B, 3, 50.0))
        assert (lanes.statistics().leases_held, lanes.statistics().leases_revoked) == (7, 0)
        await lanes.apply(confirmed(A, 1))
        assert (lanes.statistics().leases_held, lanes.statistics().leases_revoked) == (6, 1)
        await advance(mock_clock, 5.1)
        await lanes.drop("b")
        statistics = lanes.statistics()
        assert (statistics.leases_held, statistics.leases_revoked) == (0, 4)
        assert statistics.total("leases_expired") == 3


async def test_an_index_that_does_not_tell_is_taken_to_hold_no_lease() -> None:
    class Silent(Oracle):
        statistics: Any = None

    async with checked_lanes(lambda: Silent(1)) as lanes:
        await lanes.apply(leased(A, 2))
        assert lanes.statistics().leases_held == 0


async def test_the_index_is_not_asked_for_expiry_before_something_may_be_due(
    mock_clock: MockClock,
) -> None:
    factory = Factory()
    async with checked_lanes(factory, lanes=1, in_place=False) as lanes:
        await lanes.apply(leased(A, 1, 5.0))
        await wait_all_tasks_blocked()
        asked: list[str] = []
        factory.current.before = asked.append
        await lanes.apply(leased(A, 2, 5.0))
        await advance(mock_clock, 1.0)
        await lanes.flush()
        assert asked == ["apply"]


async def test_a_batch_in_place_lets_others_run_and_a_read_is_a_checkpoint() -> None:
    async with checked_lanes() as lanes, trio.open_nursery() as nursery:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(others)
        await lanes.apply_many(leased(A, 1) for _ in range(320))
        assert turns >= 9
        with assert_checkpoints():
            await lanes.read(prompt(1))
        nursery.cancel_scope.cancel()


async def test_leases_that_a_replacement_brings_along_end_too(mock_clock: MockClock) -> None:
    made: list[HookedIndex] = []

    def make() -> HookedIndex:
        made.append(HookedIndex())
        if len(made) == 2:
            made[1].apply(leased(A, 3, 5.0), 0.0)
        return made[-1]

    async with checked_lanes(make) as lanes:
        lanes.attach(A)
        await wait_all_tasks_blocked()
        made[0].before = breaks_on("apply")
        with pytest.raises(LaneCrashed):
            lanes.apply_nowait(leased(A, 1))
        assert lanes.overlap(prompt(3)).of(A) == 3
        await advance(mock_clock, 5.0)
        assert lanes.overlap(prompt(3)).of(A) == 0


async def test_a_backend_that_owes_an_acknowledgement_at_closing_has_crashed() -> None:
    closing = trio.Event()

    async def owe(backend: GatedBackend, tasks: TaskReceiver) -> None:
        await tasks.receive()
        await closing.wait()
        await tasks.receive()

    ends: list[str] = []

    async def call(lanes: LaneSet) -> None:
        with pytest.raises(LaneCrashed) as caught:
            await lanes.apply(leased(A, 1))
        ends.append(str(caught.value))

    async with trio.open_nursery() as calls:
        calls.start_soon(release_when_blocked, closing)
        await open_while_called(calls, call, scripted(owe))
    assert ["AcknowledgementMissing" in end for end in ends] == [True]


async def release_when_blocked(event: trio.Event) -> None:
    for _ in range(2):
        await wait_all_tasks_blocked()
    event.set()


async def open_while_called(
    calls: trio.Nursery, call: Callable[[LaneSet], Awaitable[None]], backends: Backends
) -> None:
    async with checked_lanes(backends, lanes=1) as lanes:
        calls.start_soon(call, lanes)
        await wait_all_tasks_blocked()


async def test_closing_without_time_to_drain_tells_who_is_left() -> None:
    ends: list[str] = []

    async def call(lanes: LaneSet) -> None:
        with pytest.raises(LaneClosed) as caught:
            await lanes.apply(leased(A, 1))
        ends.append(str(caught.value))

    async def owner(calls: trio.Nursery) -> None:
        async with checked_lanes(lanes=1, in_place=False, drain_seconds=0) as lanes:
            for _ in range(1000):
                lanes.post(leased(A, 1))
            calls.start_soon(call, lanes)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as calls:
        await owner(calls)
    assert ends == ["the lanes closed before this was applied"]


class Dumping(GatedBackend):
    def dump(self, now: float) -> list[Rank]:
        return sorted(self.oracle.ranks)


async def test_a_backend_that_waits_is_dumped_only_where_it_may_be_read() -> None:
    async with checked_lanes(Backends(Dumping)) as lanes:
        lanes.post(leased(A, 1))
        assert await lanes.dump() == [A]
    async with checked_lanes(Backends(lambda: Dumping(reads_in_caller=False))) as lanes:
        with pytest.raises(LaneBusy, match="cannot be dumped"):
            await lanes.dump()
