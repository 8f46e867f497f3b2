"""How lanes crash, recover, close and let errors out."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, Mutation
from kvlanes.nursery import LaneClosed, LaneCrashed, LaneSet, open_lanes
from tests.nursery.scenes import (
    A,
    B,
    Broken,
    Factory,
    advance,
    breaks_on,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
    small_index,
)

both_paths = pytest.mark.parametrize("in_place", [True, False], ids=["in-place", "queued"])


class Outcomes:
    """Collects how each of several calls ended."""

    def __init__(self) -> None:
        self.ends: list[object] = []

    async def apply(self, lanes: LaneSet, mutation: Mutation) -> None:
        end: object
        try:
            end = await lanes.apply(mutation)
        except (LaneCrashed, LaneClosed) as error:
            end = type(error)
        await trio.lowlevel.checkpoint()
        self.ends.append(end)


@both_paths
async def test_a_crash_replaces_the_index_and_tells_the_caller(in_place: bool) -> None:
    factory = Factory()
    async with checked_lanes(factory, in_place=in_place) as lanes:
        incarnation = lanes.attach(A)
        await lanes.apply(confirmed(A, 3), incarnation)
        await lanes.apply(confirmed(B, 3))
        factory.current.before = breaks_on("apply")
        with pytest.raises(LaneCrashed, match="Broken") as caught:
            await lanes.apply(confirmed(A, 4), incarnation)
        assert isinstance(caught.value.__cause__, Broken)
        assert lanes.overlap(prompt(3)).scores() == {}
        statistics = lanes.statistics()
        assert (statistics.crashes, statistics.resync) == (1, frozenset({A, B}))
        assert await lanes.apply(confirmed(A, 1), incarnation) == Applied(applied=1)
        await lanes.reset(A)
        assert lanes.statistics().resync == frozenset({B})
        await lanes.drop("b")
        assert lanes.statistics().resync == frozenset()


async def test_a_crash_settles_whoever_waits_on_any_lane() -> None:
    factory = Factory()
    outcomes = Outcomes()
    async with checked_lanes(factory, lanes=3, in_place=False, queue_capacity=2) as lanes:
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            factory.current.before = breaks_on("apply")
            for rank in [A, B] * 4:
                nursery.start_soon(outcomes.apply, lanes, confirmed(rank, 1))
            nursery.start_soon(lanes.flush)
        assert outcomes.ends == [LaneCrashed] * 8
        assert lanes.statistics().total("rejected") == 8
        assert lanes.statistics().crashes == 1


@pytest.mark.parametrize("name", ["expire", "drop"])
async def test_an_index_that_breaks_elsewhere_is_replaced_too(
    mock_clock: MockClock, name: str
) -> None:
    factory = Factory()
    async with checked_lanes(factory) as lanes:
        await lanes.apply(leased(A, 3, 5.0))
        await lanes.apply(confirmed(B, 3))
        await wait_all_tasks_blocked()
        factory.current.before = breaks_on(name)
        if name == "drop":
            await lanes.drop("b")
        await advance(mock_clock, 5.0)
        assert lanes.overlap(prompt(3)).scores() == {}
        assert lanes.statistics().crashes == 1
        assert await lanes.apply(leased(A, 1)) == Applied(applied=1)


async def test_a_barrier_outlives_a_crash() -> None:
    factory = Factory()
    async with checked_lanes(factory, lanes=1, in_place=False) as lanes:
        factory.current.before = breaks_on("apply")
        lanes.post(confirmed(A, 1))
        assert await lanes.dump() == []
        assert len(factory.made) == 2


async def test_the_fourth_crash_in_a_minute_reaches_the_owner(mock_clock: MockClock) -> None:
    factory = Factory()

    async def owner() -> None:
        async with open_lanes(factory) as lanes:
            for _ in range(4):
                factory.current.before = breaks_on("apply")
                with pytest.raises(LaneCrashed):
                    await lanes.apply(confirmed(A, 1))
            with pytest.raises(LaneClosed):
                await lanes.apply(confirmed(A, 1))
            await trio.sleep_forever()

    with pytest.raises(LaneCrashed, match="4 times in a minute") as caught:
        await owner()
    assert isinstance(caught.value.__cause__, Broken)


async def test_crashes_far_apart_do_not_add_up(mock_clock: MockClock) -> None:
    factory = Factory()
    async with checked_lanes(factory) as lanes:
        for _ in range(6):
            factory.current.before = breaks_on("apply")
            with pytest.raises(LaneCrashed):
                await lanes.apply(confirmed(A, 1))
            mock_clock.jump(20.0)
        assert lanes.statistics().crashes == 6


async def test_a_factory_that_fails_reaches_the_owner() -> None:
    made = [Factory()()]
    made[0].before = breaks_on("apply")

    async def owner() -> None:
        async with open_lanes(made.pop) as lanes:
            lanes.post(confirmed(A, 1))
            await trio.sleep_forever()

    with pytest.raises(LaneCrashed, match="its factory failed") as caught:
        await owner()
    assert isinstance(caught.value.__cause__, IndexError)


async def closing(outcomes: Outcomes, calls: trio.Nursery, **options: Any) -> LaneSet:
    """Close lanes while twenty calls of another nursery are under way."""
    async with checked_lanes(lanes=1, in_place=False, **options) as lanes:
        await wait_all_tasks_blocked()
        for length in range(20):
            calls.start_soon(outcomes.apply, lanes, confirmed(A, length))
        await trio.lowlevel.checkpoint()
        lanes.drop_nowait("b")
    return lanes


@pytest.mark.parametrize("options", [{"queue_capacity": 15}, {"drain_seconds": 0}])
async def test_p60_every_caller_of_closing_lanes_gets_an_outcome(options: dict[str, float]) -> None:
    """P60: twenty callers, applied or refused, and none hangs."""
    outcomes = Outcomes()
    async with trio.open_nursery() as calls:
        lanes = await closing(outcomes, calls, **options)
    assert len(outcomes.ends) == 20
    applied = [end for end in outcomes.ends if isinstance(end, Applied)]
    assert len(applied) == lanes.statistics().total("applied")


async def test_lanes_drain_although_their_owner_is_cancelled() -> None:
    with trio.CancelScope() as scope:
        async with checked_lanes(lanes=2, in_place=False) as lanes:
            for length in range(100):
                lanes.post(confirmed(A, length))
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert lanes.statistics().total("applied") == 100


async def test_an_error_of_the_block_leaves_as_itself() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with open_lanes(small_index):
            raise error
    assert caught.value is error
    assert error.__context__ is None


async def test_a_group_of_the_user_stays_whole() -> None:
    with pytest.RaisesGroup(ValueError, KeyError, match="mine"):
        async with open_lanes(small_index):
            raise ExceptionGroup("mine", [ValueError("a"), KeyError("b")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 0}, "lanes must be >= 1, got 0"),
        ({"queue_capacity": 0}, "queue_capacity must be >= 1, got 0"),
        ({"drain_seconds": -1.0}, "drain_seconds must be finite and >= 0, got -1.0"),
        ({"drain_seconds": float("inf")}, "got inf"),
        ({"ttl_seconds": -1.0}, "ttl_seconds must be .*, got -1.0"),
    ],
)
async def test_bad_arguments_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        async with open_lanes(small_index, **options):  # type: ignore[arg-type]
            pass


async def test_what_is_no_index_is_refused_at_the_opening() -> None:
    with pytest.raises(TypeError, match=r"make_index makes an index, .*, got \[\]"):
        async with open_lanes(list):  # type: ignore[arg-type]
            pass


def test_synchronous_methods_work_without_a_current_task() -> None:
    """A host that runs Trio as a guest calls them from its own callbacks."""
    host: list[Callable[[], object]] = []
    seen: list[LaneSet] = []
    ended: list[object] = []
    stop = trio.Event()

    async def main() -> None:
        async with checked_lanes(lanes=1) as lanes:
            await wait_all_tasks_blocked()
            seen.append(lanes)
            await stop.wait()

    trio.lowlevel.start_guest_run(
        main, run_sync_soon_threadsafe=host.append, done_callback=ended.append
    )

    def turn_until(done: Callable[[], object]) -> None:
        while not done():
            if host:
                host.pop(0)()

    turn_until(lambda: seen)
    (lanes,) = seen
    with pytest.raises(RuntimeError):
        trio.lowlevel.current_task()
    lanes.apply_nowait(leased(A, 2, 0.01), lanes.attach(A))
    lanes.post(leased(B, 1))
    lanes.drop_nowait("b")
    assert (depth(lanes), depth(lanes, B)) == (2, 0)
    turn_until(lambda: depth(lanes) == 0)
    assert lanes.statistics().total("leases_expired") == 2
    stop.set()
    turn_until(lambda: ended)
