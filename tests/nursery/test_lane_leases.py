"""What one lane promises of leases: their ends, and what revokes an end that is due already."""

import math

import pytest
import trio
from trio.testing import (
    MockClock,
    wait_all_tasks_blocked,
)

from kvlanes.indexer import (
    Applied,
    Clear,
    Lease,
    MutationInvalid,
    Store,
)
from tests.nursery.scenes import (
    A,
    B,
    Factory,
    advance,
    both_paths,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
)


@both_paths
async def test_an_acknowledged_store_is_covered_and_ends_with_its_lease(
    mock_clock: MockClock, in_place: bool
) -> None:
    async with checked_lanes(in_place=in_place) as lanes:
        assert await lanes.apply(leased(A, 3, 10.0)) == Applied(applied=3)
        assert await lanes.apply(leased(A, 3, 10.0)) == Applied(duplicates=3)
        await advance(mock_clock, 9.9)
        assert depth(lanes) == 3
        await advance(mock_clock, 0.1)
        assert depth(lanes) == 0
        (lane,) = [lane for lane in lanes.statistics().lanes if lane.ranks]
        assert (lane.applied, lane.rejected) == (2, 0)
        assert (lane.leases_granted, lane.leases_refreshed, lane.leases_expired) == (3, 3, 3)


async def test_a_lease_without_ttl_takes_the_default_of_the_lanes(mock_clock: MockClock) -> None:
    async with checked_lanes(ttl_seconds=7.0) as lanes:
        await lanes.apply(leased(A, 1, None))
        aged = Store(B, None, prompt(1).blocks, lease=Lease(None, age_seconds=3.0))
        await lanes.apply(aged)
        await wait_all_tasks_blocked()
        await advance(mock_clock, 4.0)
        assert (depth(lanes, A), depth(lanes, B)) == (1, 0)
        await advance(mock_clock, 3.0)
        assert depth(lanes, A) == 0


async def test_a_lease_older_than_its_ttl_ends_at_once(mock_clock: MockClock) -> None:
    async with checked_lanes() as lanes:
        lanes.apply_nowait(Store(A, None, prompt(2).blocks, lease=Lease(1.0, age_seconds=5.0)))
        await wait_all_tasks_blocked()
        assert depth(lanes) == 0
        assert max(lane.peak_expiry_lag_seconds for lane in lanes.statistics().lanes) == 0.0


async def test_infinite_leases_and_confirmed_coverage_stay(mock_clock: MockClock) -> None:
    async with checked_lanes() as lanes:
        await lanes.apply(leased(A, 2, math.inf))
        await lanes.apply(confirmed(B, 2))
        await advance(mock_clock, 1e9)
        assert (depth(lanes, A), depth(lanes, B)) == (2, 2)


async def test_an_earlier_deadline_moves_the_sleeper(mock_clock: MockClock) -> None:
    async with checked_lanes(lanes=1) as lanes:
        await lanes.apply(leased(A, 1, 100.0))
        await wait_all_tasks_blocked()
        await lanes.apply(leased(B, 1, 1.0))
        await advance(mock_clock, 1.0)
        assert (depth(lanes, A), depth(lanes, B)) == (1, 0)


@both_paths
async def test_p05_a_refresh_revokes_an_expiry_that_is_already_due(
    mock_clock: MockClock, in_place: bool
) -> None:
    """P05: the deadline is compared where the expiry is applied, not where it was noticed."""
    async with checked_lanes(in_place=in_place) as lanes:
        await lanes.apply(leased(A, 1, 10.0))
        await wait_all_tasks_blocked()
        mock_clock.jump(10.0)  # due, and the lane's task has not run yet
        assert lanes.post(leased(A, 1, 10.0))
        await wait_all_tasks_blocked()
        assert depth(lanes) == 1
        await advance(mock_clock, 9.9)
        assert depth(lanes) == 1
        await advance(mock_clock, 0.1)
        assert depth(lanes) == 0


@both_paths
async def test_p05_confirmation_revokes_an_expiry_that_is_already_due(
    mock_clock: MockClock, in_place: bool
) -> None:
    """P05 with `own()`: what an event confirmed has no deadline any more."""
    async with checked_lanes(in_place=in_place) as lanes:
        await lanes.apply(leased(A, 2, 10.0))
        await wait_all_tasks_blocked()
        mock_clock.jump(10.0)
        assert lanes.post(confirmed(A, 2))
        await advance(mock_clock, 1000.0)
        assert depth(lanes) == 2


@both_paths
@pytest.mark.parametrize("end", ["clear", "reset"])
async def test_p05_a_late_expiry_after_clear_or_reset_removes_nothing(
    mock_clock: MockClock, in_place: bool, end: str
) -> None:
    """P05 with `forget()` and `reset()`: the new store is not touched by the old deadline."""
    async with checked_lanes(in_place=in_place) as lanes:
        await lanes.apply(leased(A, 2, 10.0))
        await wait_all_tasks_blocked()
        mock_clock.jump(10.0)
        if end == "clear":
            assert lanes.post(Clear(A))
        else:
            await lanes.reset(A)
        assert lanes.post(leased(A, 1, 10.0))
        await wait_all_tasks_blocked()
        assert depth(lanes) == 1


async def test_p06_a_cancelled_queued_store_is_applied_with_its_lease(
    mock_clock: MockClock,
) -> None:
    """P06: never applied without its lease, whoever stopped waiting."""
    factory = Factory()
    async with checked_lanes(factory, lanes=1, in_place=False) as lanes:
        with trio.CancelScope() as scope:
            factory.current.before = lambda _: scope.cancel()
            lanes.post(leased(B, 1))
            await lanes.apply(leased(A, 3, 5.0))  # cancelled while B's store is applied
        assert scope.cancelled_caught
        assert depth(lanes) == 3
        await advance(mock_clock, 5.0)
        assert depth(lanes) == 0


async def test_a_refused_store_leases_nothing() -> None:
    """The reference leased a store whose application had failed."""
    async with checked_lanes(lanes=1) as lanes:
        malformed = Store(A, 7, prompt(1).blocks, lease=Lease(1.0))
        with pytest.raises(MutationInvalid):
            await lanes.apply(malformed)
        missing = await lanes.apply(Store(A, 7, prompt(1).blocks, [1]))
        assert missing == Applied(missing_parent=1)
        (lane,) = lanes.statistics().lanes
        assert (lane.applied, lane.rejected, lane.leases_granted) == (1, 1, 0)


async def test_expiry_runs_in_slices_and_each_lane_ends_only_its_own_ranks(
    mock_clock: MockClock,
) -> None:
    factory = Factory()
    async with checked_lanes(factory, lanes=2) as lanes:
        slices: list[str] = []
        for family in range(1100):
            lanes.apply_nowait(leased(A, 1, 5.0, family))
        lanes.apply_nowait(leased(B, 1, 5.0))
        await wait_all_tasks_blocked()
        factory.current.before = slices.append
        await advance(mock_clock, 5.0)
        assert slices == ["expire"] * 4  # 512 + 512 + 76 of one lane, 1 of the other
        assert [lane.leases_expired for lane in lanes.statistics().lanes] == [1100, 1]
