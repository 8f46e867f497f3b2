"""How the scenes of `test_follow` and its siblings begin, end and are played."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock

from kvlanes.engine.feeds import FeedState
from tests.feeds.world import RANK, World, open_world

Scene = Callable[[World], Awaitable[None]]


def played(scene: Scene, **options: Any) -> None:
    async def main() -> None:
        with trio.fail_after(1e6):
            async with open_world(**options) as world:
                await scene(world)
                world.check()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


async def begun(world: World, batches: int = 5) -> None:
    for _ in range(batches):
        world.go_on()
    await world.settle()
    assert world.feed.state is FeedState.LIVE
    assert world.follower.cursor.expected == batches


async def exact(world: World) -> None:
    await world.settle()
    assert world.feed.state is FeedState.LIVE
    assert await world.digest() == world.process.pool.digest(RANK)
