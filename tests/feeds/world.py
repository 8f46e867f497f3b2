"""An engine process, its network and its follower without sockets, on a virtual clock."""
# flake8: noqa: ASYNC910 - a link hands out what is there at once

import random
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import trio

from kvlanes.engine.feeds import Feed, FollowOptions, LaneSink
from kvlanes.engine.feeds._decode import decode
from kvlanes.engine.feeds._errors import ConnectionLost, FrameInvalid, ReplayTruncated
from kvlanes.engine.feeds._follow import Follower
from kvlanes.engine.feeds._frames import Frame
from kvlanes.engine.feeds._supervise import supervise
from kvlanes.indexer import RadixIndex, Rank
from kvlanes.nursery import LaneSet, open_lanes
from tests.feeds.pool import BLOCK_SIZE, Pool, Publisher, overlaps, random_events

RANK = Rank("w0")


@attrs.define(eq=False)
class FakeLink:
    """A connection to one process; what was sent over it outlives the process for a while."""

    world: "World"
    process: Publisher
    scoped: bool = True
    queue: deque[Frame | None] = attrs.field(factory=deque)
    ended: bool = False
    noticed: bool = False
    arrived: trio.Event = attrs.field(factory=trio.Event)

    @property
    def replayable(self) -> bool:
        return self.world.replayable

    def put(self, frame: Frame | None) -> None:
        self.queue.append(frame)
        self.arrived.set()

    def end(self, *, noticed: bool = True) -> None:
        self.ended, self.noticed = True, noticed
        self.arrived.set()

    async def receive(self, idle_seconds: float) -> Frame | None:
        if not self.queue and not self.ended:
            self.arrived = trio.Event()
            with trio.move_on_after(idle_seconds):
                await self.arrived.wait()
        if not self.queue:
            self.check()
        return self.receive_nowait()

    def receive_nowait(self) -> Frame | None:
        if self.noticed:
            self.check()
        if not self.queue:
            return None
        frame = self.queue.popleft()
        if frame is None:
            raise FrameInvalid("1 frame")
        return frame

    def check(self) -> None:
        if self.ended:
            raise ConnectionLost("the connection ended")

    @contextmanager
    def replay(self, start: int) -> Iterator["FakeReplies"]:
        yield FakeReplies(self.world, list(self.world.process.since(start)))


@attrs.define(eq=False)
class FakeReplies:
    """What the process that listens now answers, less what the next fault takes."""

    world: "World"
    frames: list[Frame]
    sent: int = 0
    fault: tuple[str, int] | None = None

    def __attrs_post_init__(self) -> None:
        self.fault = self.world.replay_faults.popleft() if self.world.replay_faults else None
        if self.fault and self.fault[0] == "hole" and self.frames:
            del self.frames[self.fault[1] % len(self.frames)]

    async def receive(self, idle_seconds: float) -> Frame | None:
        await trio.lowlevel.checkpoint()
        if self.fault and self.fault[0] == "truncated" and self.sent >= self.fault[1]:
            await trio.sleep(idle_seconds)
            raise ReplayTruncated("no end")
        if self.sent >= len(self.frames):
            return None
        self.sent += 1
        return self.frames[self.sent - 1]


@attrs.define(eq=False)
class World:
    """One worker, what it publishes, what is lost on the way, and the follower of it all."""

    lanes: LaneSet
    sink: LaneSink
    random: random.Random
    process: Publisher
    replayable: bool = True
    scoped: bool = True
    reachable: bool = True
    clears: bool = False
    follower: Follower = attrs.field(init=False)
    feed: Feed = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    link: FakeLink | None = None
    replay_faults: deque[tuple[str, int]] = attrs.field(factory=deque)
    truth: dict[tuple[int, int], Pool] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.feed = Feed("fake", RANK)
        self.sink.watch(self.feed)
        self.follower = Follower(self.sink, self.feed, FollowOptions())

    async def run(self) -> None:
        with self.scope:
            await supervise(self.follower, self.connect)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FakeLink]:
        await trio.lowlevel.checkpoint()
        if not self.reachable:
            raise ConnectionLost("refused")
        self.link = FakeLink(self, self.process, self.scoped)
        yield self.link

    def publish(self, events: Sequence[Any], *, lost: bool = False, damaged: bool = False) -> Frame:
        """One batch of the running process; maybe it does not arrive as it was sent."""
        frame = self.process.publish(events)
        pool = self.process.pool
        held = Pool(pool.encoding, pool.held.copy())
        sent = self._damage(frame) if damaged else frame
        for known in (frame, sent):
            if known is not None:
                self.truth[known.sequence, known.checksum] = held
        if self.link is not None and not self.link.ended and not lost:
            self.link.put(sent)
        return frame

    def _damage(self, frame: Frame) -> Frame | None:
        if self.random.random() < 0.3:
            return None
        for _ in range(20):
            payload = bytearray(frame.payload)
            payload[self.random.randrange(10, len(payload))] = 0xC1
            # Damage that leaves a batch cannot be seen, and does not happen on a TCP connection.
            if not decode(bytes(payload)).readable:
                return frame._replace(payload=bytes(payload))
        return None

    def go_on(self, *, lost: bool = False, damaged: bool = False, holes: bool = False) -> None:
        pool = self.process.pool
        events = random_events(pool, self.random, holes=holes, clears=self.clears)
        self.publish(events, lost=lost, damaged=damaged)

    def restart(self, *, noticed: bool = True) -> None:
        """Kill the process; its successor begins with nothing."""
        old = self.process
        pool = Pool(old.pool.encoding)
        # A process that names itself has a name of its own.
        name = bytes([old.incarnation[0] + 1 & 0xFF]) * 16 if old.incarnation else b""
        self.process = Publisher(pool, old.buffer_steps, name, old.born + 1000.0)
        if self.link is not None and self.scoped:
            self.link.end(noticed=noticed)

    def disconnect(self) -> None:
        """The network hiccups; the process lives on."""
        if self.link is not None:
            self.link.end()

    async def settle(self) -> None:
        """Let the follower come to rest, idle replays and pauses included."""
        await trio.sleep(120)
        await trio.testing.wait_all_tasks_blocked()

    def check(self) -> None:
        """Nothing is reported that the engine did not hold as of the watermark."""
        mark = self.feed.watermark
        held = Pool() if mark is None else self.truth[mark.sequence, mark.checksum]
        for reported, true in overlaps(self.lanes, held, RANK):
            assert reported <= true, (reported, true, mark)
        for ledger in self.follower.ledgers:
            ledger.check()

    def check_current(self) -> None:
        """Nothing is reported that the running process does not hold now."""
        for reported, true in overlaps(self.lanes, self.process.pool, RANK):
            assert reported <= true, (reported, true)

    async def digest(self) -> str:
        index = RadixIndex(BLOCK_SIZE)
        index.restore(await self.lanes.dump(), trio.current_time())  # type: ignore[arg-type]
        return index.digest()


@asynccontextmanager
async def open_world(
    seed: int = 0,
    *,
    replayable: bool = True,
    scoped: bool = True,
    incarnation: bytes = b"",
    buffer_steps: int = 10_000,
    encoding: Any = "map",
    in_place: bool = True,
) -> AsyncIterator[World]:
    async with open_lanes(lambda: RadixIndex(BLOCK_SIZE), lanes=1, in_place=in_place) as lanes:
        sink = LaneSink(lanes, RANK.worker_id, block_size=BLOCK_SIZE)
        process = Publisher(Pool(encoding), buffer_steps, incarnation)
        world = World(lanes, sink, random.Random(seed), process, replayable, scoped)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.run)
            yield world
            nursery.cancel_scope.cancel()
