"""Dials one publisher: a connection is a scope that belongs to at most one engine process.

The library's own reconnecting is off. A connection that ended is thrown away with everything
that was still queued in it, and a fresh one begins with a replay from the watermark.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from kvlanes.engine.feeds._errors import (
    ConnectionLost,
    FrameInvalid,
    PublisherRestarted,
    ReplayTruncated,
    ResyncNeeded,
)
from kvlanes.engine.feeds._feed import FeedState
from kvlanes.engine.feeds._follow import Follower
from kvlanes.engine.feeds._frames import Frame, parse
from kvlanes.engine.feeds._options import CurveKeys
from kvlanes.engine.feeds._socket import Context, Monitor, Receiver, dealer, subscriber

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0


@attrs.frozen
class Target:
    """One publisher.

    Attributes:
        endpoint: Its PUB socket.
        replay: Its ROUTER socket, if past batches can be asked for.
        topic: Prefix of the topics to receive.
        curve: Keys, if the sockets are encrypted.
        limit_bytes: Longest frame; a longer one ends the connection.
        connect_seconds: How long a connection may take to stand.
    """

    endpoint: str
    replay: str | None
    topic: str
    curve: CurveKeys | None
    limit_bytes: int
    connect_seconds: float


async def dial(context: Context, target: Target, follower: Follower, nursery: trio.Nursery) -> None:
    """Follow a publisher through restarts and outages until cancelled.

    Between two connections it waits 50 ms at first and then twice as long each time, at most
    5 s; a connection that stood starts over.

    Args:
        context: Whose sockets are used.
        target: Whom to follow.
        follower: What to do with the batches; this task is its only user.
        nursery: Where the tasks that watch connections run.
    """
    await follower.begin()
    pause = _FIRST_PAUSE_SECONDS
    while True:
        if await _connect_once(context, target, follower, nursery):
            pause = _FIRST_PAUSE_SECONDS
        await trio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _connect_once(
    context: Context, target: Target, follower: Follower, nursery: trio.Nursery
) -> bool:
    """One connection from beginning to end; whether it stood."""
    feed = follower.feed
    connects = feed.counts.connects
    try:
        with _connection(context, target) as link:
            nursery.start_soon(link.watch)
            await link.standing(target.connect_seconds)
            feed.counts.connects += 1
            await follower.follow(link)
    except ConnectionLost as error:
        feed.counts.failures += 1
        feed.error = str(error)
        if feed.state is not FeedState.COLD:
            feed.become(FeedState.STALE)
    except (PublisherRestarted, ResyncNeeded) as error:
        feed.counts.restarts += isinstance(error, PublisherRestarted)
        feed.error = str(error)
        feed.become(FeedState.STALE)
        await follower.restart()
    return feed.counts.connects > connects


@contextmanager
def _connection(context: Context, target: Target) -> Iterator["DialledLink"]:
    socket = subscriber(context, target.limit_bytes, target.curve)
    monitor = Monitor(socket)
    link = DialledLink(context, target, Receiver(socket), monitor)
    try:
        socket.subscribe(target.topic)
        socket.connect(target.endpoint)
        yield link
    finally:
        link.close()


class DialledLink:
    """A connection to one publisher. Read by one follower; `watch` runs beside it."""

    __slots__ = ("_changed", "_context", "_ended", "_monitor", "_receiver", "_target", "_watching")

    scoped = True

    def __init__(
        self, context: Context, target: Target, receiver: Receiver, monitor: Monitor
    ) -> None:
        self._context = context
        self._target = target
        self._receiver = receiver
        self._monitor = monitor
        self._watching = trio.CancelScope()
        self._changed = trio.Event()
        self._ended = False  # written by `watch` and `check`

    @property
    def replayable(self) -> bool:
        return self._target.replay is not None

    async def watch(self) -> None:
        """End the connection's reading when the connection ends."""
        with self._watching:
            while await self._monitor.stands():
                self._changed.set()
            self._ended = True
            self._changed.set()
            self._receiver.interrupt()

    async def standing(self, seconds: float) -> None:
        """Wait until the connection stands."""
        with trio.move_on_after(seconds) as scope:
            await self._changed.wait()
        if scope.cancelled_caught:
            raise ConnectionLost(f"{self._target.endpoint} did not answer in {seconds} s")
        self.check()

    async def receive(self, idle_seconds: float) -> Frame | None:
        if self._ended:
            self.check()
        message = await self._receiver.receive(idle_seconds)
        # What is still queued of a connection that has ended is not looked at: the process
        # behind it may be gone, and its successor may have answered a replay already.
        if self._ended:
            self.check()
        if message is None:
            return None
        frame = parse(message)
        if frame is None:
            raise FrameInvalid("the end marker of a replay, in the live stream")
        return frame

    def check(self) -> None:
        # The watcher may not have run yet, so look for what it would find.
        self._ended = self._ended or self._monitor.ended()
        if self._ended:
            raise ConnectionLost(f"the connection to {self._target.endpoint} ended")

    @contextmanager
    def replay(self, start: int) -> Iterator["DialledReplies"]:
        assert self._target.replay is not None
        with replay_from(self._context, self._target, self._target.replay, start) as replies:
            yield replies

    def close(self) -> None:
        self._watching.cancel()
        self._monitor.close()
        self._receiver.close()


@contextmanager
def replay_from(
    context: Context, target: Target, endpoint: str, start: int
) -> Iterator["DialledReplies"]:
    """Ask `endpoint` for all batches from `start` on, over a connection of its own."""
    socket = dealer(context, target.limit_bytes, target.curve)
    receiver = Receiver(socket)
    try:
        socket.connect(endpoint)
        # The empty frame stands where a REQ socket would put it; without it nobody answers.
        socket.send_multipart([b"", struct.pack(">Q", start)])
        yield DialledReplies(receiver, endpoint)
    finally:
        receiver.close()


@attrs.frozen
class DialledReplies:
    """The answer to one replay request."""

    _receiver: Receiver
    _endpoint: str

    async def receive(self, idle_seconds: float) -> Frame | None:
        message = await self._receiver.receive(idle_seconds)
        if message is None:
            raise ReplayTruncated(f"{self._endpoint} sent nothing for {idle_seconds} s")
        return parse(message)
