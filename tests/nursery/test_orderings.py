"""Which of two writes comes first: told apart by callbacks from inside, and by crashes."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied
from kvlanes.nursery import (
    DirectLane,
    LaneBusy,
    LaneClosed,
    LaneCrashed,
    LaneSet,
)
from tests.nursery.scenes import (
    A,
    B,
    Factory,
    HookedIndex,
    advance,
    both_paths,
    breaks_on,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
)


def upon(name: str, do: Callable[[], object]) -> Callable[[str], None]:
    """A hook that acts inside the writes of one kind."""

    def before(write: str) -> None:
        if write == name:
            do()

    return before


# -- one lane


async def test_what_is_queued_when_a_lease_comes_due_goes_before_its_end(
    mock_clock: MockClock,
) -> None:
    async with checked_lanes(lanes=1, in_place=False) as lanes:
        await lanes.apply(leased(A, 2, 5.0))
        await wait_all_tasks_blocked()
        mock_clock.jump(5.0)
        assert await lanes.apply(leased(A, 2, 5.0)) == Applied(duplicates=2)
        assert lanes.statistics().total("leases_expired") == 0


async def test_a_place_is_given_to_who_waits_only_below_the_capacity() -> None:
    """A step of a pool that had to be taken overfills the queue; two pops make one place."""
    factory = Factory()
    async with checked_lanes(factory, lanes=1, in_place=False, queue_capacity=1) as lanes:
        seen: list[tuple[int, int]] = []

        def note() -> None:
            (lane,) = lanes.statistics().lanes
            seen.append((lane.depth, lane.waiting_for_room))

        factory.current.before = upon("apply", note)
        assert lanes.post(confirmed(A, 1))
        lanes.set_capacity(lanes.attach(A), 9)
        await lanes.apply(confirmed(A, 2))
        assert seen == [(1, 1), (0, 0)]


async def test_a_direct_lane_is_not_entered_from_inside_its_own_write() -> None:
    factory = Factory()
    lane = DirectLane(factory)
    lane.apply(confirmed(B, 2))

    def from_inside() -> None:
        factory.current.before = lambda _: None
        with pytest.raises(LaneBusy, match="inside a write"):
            lane.apply(confirmed(B, 3))
        lane.drop("a")  # done at the end of this write, which would cover it again

    factory.current.before = upon("apply", from_inside)
    lane.apply(confirmed(A, 3))
    assert lane.overlap(prompt(3)).scores() == {B: 2}


# -- departures


async def test_a_departing_rank_is_hidden_before_the_index_is_told() -> None:
    factory = Factory()
    async with checked_lanes(factory) as lanes:
        await lanes.apply(confirmed(A, 3))
        seen: list[int] = []
        factory.current.before = upon("drop", lambda: seen.append(depth(lanes)))
        await lanes.drop("a")
        assert seen == [0]


# -- crashes


async def test_leases_that_come_along_when_an_expiry_breaks_the_index_end_too(
    mock_clock: MockClock,
) -> None:
    made: list[HookedIndex] = []

    def make() -> HookedIndex:
        made.append(HookedIndex())
        if len(made) == 2:
            made[1].apply(leased(A, 3, 9.0), 0.0)
        return made[-1]

    async with checked_lanes(make, lanes=1) as lanes:
        await lanes.apply(leased(A, 1, 5.0))
        await wait_all_tasks_blocked()
        made[0].before = breaks_on("expire")
        await advance(mock_clock, 5.0)
        assert (len(made), depth(lanes)) == (2, 3)
        await advance(mock_clock, 4.0)
        assert depth(lanes) == 0


@pytest.mark.parametrize("departure", [LaneSet.drop, LaneSet.reset])
async def test_a_rank_whose_departure_breaks_the_index_needs_no_resync(departure: object) -> None:
    factory = Factory()
    async with checked_lanes(factory) as lanes:
        await lanes.apply(confirmed(A, 3))
        await lanes.apply(confirmed(B, 3))
        factory.current.before = breaks_on("drop")
        await (lanes.drop("a") if departure is LaneSet.drop else lanes.reset(A))
        assert len(factory.made) == 2
        assert lanes.statistics().resync == {B}


@both_paths
async def test_what_a_factory_posts_reaches_the_index_that_it_makes(in_place: bool) -> None:
    """Only what was queued for the broken one is lost with it."""
    made: list[HookedIndex] = []

    def make() -> HookedIndex:
        if made:
            assert lanes.post(confirmed(A, 2))
        made.append(HookedIndex())
        return made[-1]

    async with checked_lanes(make, lanes=1, in_place=in_place) as lanes:
        made[0].before = breaks_on("apply")
        with pytest.raises(LaneCrashed):
            await lanes.apply(confirmed(A, 1))
        await lanes.flush()
        assert (depth(lanes), lanes.statistics().total("rejected")) == (2, 1)


async def test_an_index_that_ends_the_program_leaves_nobody_waiting(
    autojump_clock: MockClock,
) -> None:
    factory = Factory()
    ends: list[type[Exception]] = []

    def exit_program() -> None:
        raise SystemExit

    async def call(lanes: LaneSet, length: int) -> None:
        with pytest.raises((LaneClosed, LaneCrashed)) as caught:
            await lanes.apply(confirmed(A, length))
        ends.append(caught.type)

    async def host(calls: trio.Nursery) -> None:
        async with checked_lanes(factory, lanes=1, in_place=False) as lanes:
            factory.current.before = upon("apply", exit_program)
            for length in (1, 2):
                calls.start_soon(call, lanes, length)
            await trio.sleep_forever()

    with trio.fail_after(60.0):
        async with trio.open_nursery() as calls:
            with pytest.raises(SystemExit):
                await host(calls)
    assert (len(ends), set(ends)) == (2, {LaneCrashed, LaneClosed})
