"""Random histories of an engine, its network and its replays, under random task orders.

After every step nothing may be reported that the engine did not hold as of the watermark; once
the faults are over the index equals the engine's own table, or says that it is partial.
"""

from typing import Any, Literal, TypeAlias, get_args

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.engine.feeds import FeedState
from tests.feeds.pool import Encoding
from tests.feeds.world import RANK, World, open_world
from tests.support.profiles import budget
from tests.support.schedule import scheduled

Step: TypeAlias = Literal[
    "publish",
    "lose",
    "damage",
    "restart",
    "restart late",
    "disconnect",
    "unreachable",
    "reachable",
    "truncate",
    "hole",
    "silence",
    "rest",
    "reset",
    "stale",
    "flood",
]


def do(world: World, step: Step, number: int) -> None:
    """One step of a story, all at once; what it starts runs later."""
    if step == "publish":
        for _ in range(number % 4 + 1):
            world.go_on(holes=True)
    elif step == "lose":
        for _ in range(number % 3 + 1):
            world.go_on(lost=True, holes=True)
    elif step == "damage":
        world.go_on(damaged=True)
    elif step in ("restart", "restart late"):
        world.restart(noticed=step == "restart")
        for _ in range(number % 8):
            world.go_on(lost=True)
    elif step == "disconnect":
        world.disconnect()
    elif step in ("unreachable", "reachable"):
        world.reachable = step == "reachable"
    elif step in ("truncate", "hole"):
        world.replay_faults.append(("truncated" if step == "truncate" else "hole", number % 6))
    elif step == "silence":
        world.replay_faults.extend([("truncated", 0)] * (number % 4))
    elif step == "stale" and world.link is not None and world.process.buffer:
        world.link.put(world.process.buffer[number % len(world.process.buffer)])
    elif step == "flood":
        for _ in range(40):
            world.go_on()


async def tell(world: World, story: list[tuple[Step, int]]) -> None:
    for step, number in story:
        if step == "rest":
            await trio.sleep(number)
        elif step == "reset":
            await world.lanes.reset(RANK)
        else:
            do(world, step, number)
        if number % 3:
            await wait_all_tasks_blocked()
            world.check()


async def reconcile(world: World) -> None:
    """The faults are over: what is reported must be true, and exact where it says so."""
    world.reachable = True
    world.replay_faults.clear()
    world.go_on()
    await world.settle()
    world.check_current()
    assert world.feed.watermark is not None
    assert world.feed.watermark.sequence == world.process.sequence - 1
    assert world.feed.state in (FeedState.LIVE, FeedState.PARTIAL)
    if world.feed.state is FeedState.LIVE:
        assert await world.digest() == world.process.pool.digest(RANK)
    world.publish(world.process.pool.clear())
    world.go_on()
    await world.settle()
    assert world.feed.state is FeedState.LIVE
    assert await world.digest() == world.process.pool.digest(RANK)


async def main(story: list[tuple[Step, int]], options: dict[str, Any]) -> None:
    with trio.fail_after(1e6):
        async with open_world(**options) as world:
            world.clears = True
            await tell(world, story)
            await reconcile(world)


OPTIONS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "buffer_steps": st.sampled_from([3, 10, 10_000]),
        "encoding": st.sampled_from(get_args(Encoding)),
        "incarnation": st.sampled_from([b"", b"\x01" * 16]),
    }
)
STORIES = st.lists(st.tuples(st.sampled_from(get_args(Step)), st.integers(0, 30)), max_size=25)


@settings(max_examples=budget(ci=60, deep=2_000))
@given(STORIES, OPTIONS, st.integers(0, 2**64 - 1))
def test_no_story_makes_the_index_over_report(
    story: list[tuple[Step, int]], options: dict[str, Any], schedule: int
) -> None:
    with scheduled(schedule):
        trio.run(main, story, options, clock=MockClock(autojump_threshold=0.0))
