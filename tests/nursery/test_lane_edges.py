"""What happens after the end, to what is no rank, and when a queue is full of nothing to do."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.nursery import LaneClosed
from tests.indexer.oracle import Oracle
from tests.nursery.scenes import (
    A,
    B,
    Factory,
    advance,
    checked_lanes,
    confirmed,
    leased,
    prompt,
    small_index,
)
from tests.nursery.served import Backends, GatedBackend


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
