"""A follower that is cancelled anywhere, and one that is sent anything."""

import signal
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from kvlanes.engine.feeds import LaneSink, VllmEvents
from kvlanes.engine.feeds._frames import Frame
from kvlanes.indexer import Applied, Mutation, RadixIndex, Rank
from kvlanes.nursery import open_bare_nursery, open_lanes
from tests.feeds.frames import payload
from tests.feeds.pool import BLOCK_SIZE
from tests.feeds.world import RANK, open_world
from tests.support.profiles import budget


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the given step of the follower's task."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.scope: trio.CancelScope | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith("World.run") and self.scope is not None:
            self.left -= 1
            if not self.left:
                self.scope.cancel()


async def cancelled_at(step: int, in_place: bool) -> bool:
    """Cancel a replay, a gap and live batches before one step; false when it came to its end."""
    cancel = CancelAt(step)
    async with open_world(in_place=in_place) as world:
        for _ in range(6):
            world.go_on()
        world.replay_faults.append(("truncated", 2))
        cancel.scope = world.scope
        trio.lowlevel.add_instrument(cancel)
        await world.settle()
        world.go_on(lost=True)
        world.go_on()
        await world.settle()
        trio.lowlevel.remove_instrument(cancel)
        world.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await world.lanes.flush()
        world.check()
        mark = world.feed.watermark
        if mark is not None and in_place:
            assert await world.digest() == world.truth[mark.sequence, mark.checksum].digest(RANK)
        assert world.sink.replays.borrowed_tokens == 0
    return cancel.left <= 0


def test_a_follower_can_be_cancelled_at_every_step() -> None:
    """Batches are applied whole or not at all, and the replay's place is given back."""
    for in_place in (True, False):
        step = 1
        while trio.run(cancelled_at, step, in_place, clock=MockClock(autojump_threshold=0.0)):
            step += 1
        assert step > 15


NAMES = st.integers(0, 5) | st.sampled_from([-1, 2**63, 2**64 - 1])
STORES = st.fixed_dictionaries(
    {
        "type": st.just("BlockStored"),
        "block_hashes": st.lists(NAMES, max_size=4),
        "parent_block_hash": st.none() | NAMES,
        "token_ids": st.integers(0, 4).map(lambda blocks: list(range(4 * blocks))),
        "block_size": st.sampled_from([4, 4, 4, 0, 8, -1]),
    },
    optional={
        "medium": st.none() | st.sampled_from(["GPU", "CPU", "?"]),
        "lora_name": st.none() | st.sampled_from(["", "sql"]),
        "extra_keys": st.lists(
            st.none() | st.lists(st.just("salt") | st.just(["image", -3]) | st.binary()), max_size=5
        ),
        "group_idx": st.integers(-1, 2),
        "cache_salt": st.none() | st.text(max_size=2),
    },
)
REMOVALS = st.fixed_dictionaries(
    {"type": st.just("BlockRemoved"), "block_hashes": st.lists(NAMES, max_size=4)},
    optional={"group_idx": st.integers(-1, 2)},
)
OTHERS = st.sampled_from([{"type": "AllBlocksCleared"}, {"type": "New"}, None, ["BlockRemoved"], 3])
BATCHES = st.lists(STORES | STORES | REMOVALS | OTHERS, max_size=4)
FRAMES = st.tuples(
    st.integers(0, 6) | st.integers(0, 2**64 - 2),
    BATCHES.map(lambda events: payload(*events)) | st.binary(max_size=20),
    st.sampled_from([b"", b"\0" * 16, b"\1" * 16]),
)


@settings(max_examples=budget(ci=100, deep=5_000))
@given(st.lists(FRAMES | st.none(), max_size=12), st.booleans(), st.booleans())
def test_no_frame_stops_a_follower(frames: list[Any], scoped: bool, replayable: bool) -> None:
    async def main() -> None:
        async with open_world(scoped=scoped, replayable=replayable) as world:
            await world.settle()
            for given in frames:
                assert world.link is not None
                if given is None:
                    world.link.put(None)
                else:
                    sequence, data, incarnation = given
                    world.link.put(Frame(b"", sequence, incarnation, data))
                await trio.sleep(1)
            for ledger in world.follower.ledgers:
                ledger.check()
            assert not world.lanes.statistics().crashes
            world.process.born += 1000.0
            world.go_on()
            world.disconnect()
            await world.settle()
            world.check_current()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def test_ctrl_c_reaches_the_main_task_and_tears_no_step_of_a_source() -> None:
    whole: list[Rank] = []

    @attrs.frozen
    class Interrupted:
        """A sink that Ctrl-C finds in the middle of a step."""

        inner: LaneSink

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def apply(self, rank: Rank, mutations: Sequence[Mutation]) -> Sequence[Applied]:
            signal.raise_signal(signal.SIGINT)
            results = await self.inner.apply(rank, mutations)
            whole.append(rank)
            return results

    async def main() -> None:
        async with open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes:
            sink = Interrupted(LaneSink(lanes, "w0", block_size=BLOCK_SIZE))
            async with open_bare_nursery() as nursery:
                nursery.start_soon(VllmEvents("ipc:///nonexistent/kv").run, sink)
                await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert whole == [Rank("w0")]
