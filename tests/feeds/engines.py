"""Publisher processes for tests, and the follower on the other side of real sockets."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import attrs
import trio

from kvlanes.engine.feeds import EventSource, Feed, FeedState, LaneSink, VllmEvents
from kvlanes.engine.feeds._options import FollowOptions
from kvlanes.indexer import Prompt, RadixIndex, Rank
from kvlanes.nursery import LaneSet, open_lanes
from tests.feeds.pool import BLOCK_SIZE

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
"""Only a bound for a test that hangs: nothing waits for so long."""


@attrs.define(eq=False)
class Engine:
    """One publisher process and where it listens."""

    process: trio.Process
    endpoint: str = ""
    replay: str = ""
    _answers: bytes = b""

    async def tell(self, command: str, **arguments: Any) -> Any:
        """Run a command there and return its answer."""
        await self.send([command, arguments])
        return json.loads(await self.line())

    async def send(self, value: Any) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps(value).encode() + b"\n")

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._answers:
            data = await self.process.stdout.receive_some()
            assert data, "the publisher process ended"
            self._answers += data
        line, _, self._answers = self._answers.partition(b"\n")
        return line

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def engine(**options: Any) -> AsyncIterator[Engine]:
    """A publisher process that is killed when the block ends."""
    command = [sys.executable, "-m", "tests.feeds.publisher"]
    process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, cwd=ROOT)
    try:
        started = Engine(process)
        await started.send(options)
        where = json.loads(await started.line())
        started.endpoint, started.replay = where["endpoint"], where["replay"]
        yield started
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await process.wait()


@attrs.define(eq=False)
class Room:
    """Lanes and the sink of one worker."""

    lanes: LaneSet
    sink: LaneSink
    worker_id: str = "w0"

    @property
    def feed(self) -> Feed:
        return self.sink.feeds[0]

    async def reached(self, sequence: int, number: int = 0) -> None:
        """Wait until the batch before `sequence` was applied."""
        feed = self.sink.feeds[number]
        await feed.until(lambda feed: feed.watermark is not None)
        await feed.until(
            lambda feed: feed.watermark is not None and feed.watermark.sequence == sequence - 1
        )

    async def synced(self, *states: FeedState) -> None:
        allowed = states or (FeedState.LIVE, FeedState.PARTIAL)
        await self.feed.until(lambda feed: feed.state in allowed)

    async def digest(self) -> str:
        index = RadixIndex(BLOCK_SIZE)
        index.restore(await self.lanes.dump(), trio.current_time())  # type: ignore[arg-type]
        return index.digest()

    async def equals(self, engine: Engine) -> None:
        assert await self.digest() == await engine.tell("digest", worker=self.worker_id)

    async def under_reports(self, engine: Engine) -> None:
        rank = Rank(self.worker_id)
        for tokens, depth in await engine.tell("depths"):
            assert self.lanes.overlap(Prompt(tokens, BLOCK_SIZE)).of(rank) <= depth


QUICK = FollowOptions(idle_seconds=0.1, replay_idle_seconds=5.0)
"""Soon idle. A replay that ends is never cut short by it, however slow the machine."""


def dialling(engine: Engine, *, replay: bool = True, **options: Any) -> VllmEvents:
    options.setdefault("options", QUICK)
    return VllmEvents(engine.endpoint, engine.replay if replay else None, **options)


@asynccontextmanager
async def followed(source: EventSource, *, ranks: int = 1) -> AsyncIterator[Room]:
    """Run a source against lanes of its own."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes:
            sink = LaneSink(lanes, "w0", block_size=BLOCK_SIZE, dp_size=ranks)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(source.run, sink)
                await trio.testing.wait_all_tasks_blocked()
                yield Room(lanes, sink)
                nursery.cancel_scope.cancel()
