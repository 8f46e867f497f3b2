"""What happens after the end, to what is no rank, and when a queue is full of nothing to do."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kvlanes.nursery import LaneClosed
from tests.nursery.scenes import A, checked_lanes, leased, prompt
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
