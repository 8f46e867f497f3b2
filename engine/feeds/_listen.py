"""A socket that publishers dial, for engines that connect to a central subscriber.

One task reads the socket and hands each batch to the stream it belongs to, told by its topic and,
where several ranks share a topic, by the rank in the batch. A connection says nothing about a
publisher here: a restart shows as a sequence number that went back, or in a replay.
"""
# flake8: noqa: ASYNC910 - takes what is there at once; the follower gives way by its work

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.engine.feeds._errors import FrameInvalid, SourceInvalid
from kvlanes.engine.feeds._feed import Feed
from kvlanes.engine.feeds._frames import Frame, parse
from kvlanes.engine.feeds._options import (
    CurveKeys,
    FollowOptions,
    Target,
    of_rank,
    require_zmq,
)
from kvlanes.engine.feeds._protocols import EventSink, Link
from kvlanes.engine.feeds._sources import feeds_of, ranks_in_bounds
from kvlanes.nursery import open_bare_nursery

if TYPE_CHECKING:
    from kvlanes.engine.feeds._socket import Context

_LOOPBACK = ("127.0.0.1", "[::1]", "localhost")


@attrs.define(eq=False)
class _Stream:
    """One rank of one topic: the listener puts, its follower takes."""

    send: trio.MemorySendChannel[Frame]
    receive: trio.MemoryReceiveChannel[Frame]
    feed: Feed


class Listener:
    """A bound socket and the streams registered on it; `open_listener` makes one.

    Attributes:
        endpoint: Where publishers dial, with the port that was really bound.
        unregistered: Batches of topics that nobody registered.
    """

    def __init__(self, endpoint: str, context: "Context", socket: Any, queue_batches: int) -> None:
        from kvlanes.engine.feeds._socket import Receiver

        self.endpoint = endpoint
        self.unregistered = 0
        self._context = context
        self._socket = socket
        self._receiver = Receiver(socket)
        self._queue_batches = queue_batches
        self._streams: dict[bytes, list[_Stream]] = {}

    def topic(
        self,
        topic: str,
        *,
        replay: str | None = None,
        ranks: int = 1,
        options: FollowOptions | None = None,
        curve: CurveKeys | None = None,
    ) -> "ListenedEvents":
        """A source for one worker: the publisher(s) that use this topic.

        Args:
            topic: Exactly what the publisher sends; prefixes do not match.
            replay: The replay socket of rank 0, to be dialled; rank n is at port + n.
            ranks: Data-parallel ranks that publish under the topic, at most 256.
            options: How the streams are followed.
            curve: Keys for the replay socket.
        """
        return ListenedEvents(self, topic, replay, ranks, options or FollowOptions(), curve)

    @enable_ki_protection
    async def _run(self) -> None:
        while True:
            message = await self._receiver.receive()
            if message is not None:
                self._route(message)

    def _route(self, message: list[bytes]) -> None:
        """Hand over one batch; a stream that is full loses it, which shows as a gap."""
        try:
            frame = parse(message)
        except FrameInvalid:
            frame = None
        streams = self._streams.get(frame.topic) if frame is not None else None
        if frame is None or streams is None:
            self.unregistered += 1
            return
        stream = streams[0] if len(streams) == 1 else streams[self._number(frame, len(streams))]
        try:
            stream.send.send_nowait(frame)
        except trio.WouldBlock:
            stream.feed.counts.dropped += 1

    def _number(self, frame: Frame, ranks: int) -> int:
        from kvlanes.engine.feeds._decode import named_rank

        number = named_rank(frame.payload) or 0
        return number if 0 <= number < ranks else 0

    @contextmanager
    def _registered(self, topic: str, feeds: list[Feed]) -> Iterator[list[_Stream]]:
        key = topic.encode()
        if key in self._streams:
            raise SourceInvalid(f"topic {topic!r} is registered already")
        channels = [trio.open_memory_channel[Frame](self._queue_batches) for _ in feeds]
        streams = [_Stream(*channel, feed) for channel, feed in zip(channels, feeds)]
        self._streams[key] = streams
        self._socket.subscribe(key)
        try:
            yield streams
        finally:
            self._socket.unsubscribe(key)
            del self._streams[key]

    def close(self) -> None:
        self._receiver.close()


@attrs.frozen
class ListenedEvents:
    """Follows the publishers that dial a `Listener` under one topic; `Listener.topic` makes it."""

    listener: Listener
    topic: str
    replay: str | None
    ranks: int = attrs.field(validator=ranks_in_bounds)
    options: FollowOptions
    curve: CurveKeys | None

    def __attrs_post_init__(self) -> None:
        if not self.topic:
            raise SourceInvalid("an empty topic would take every publisher for this worker")
        if self.replay is not None:
            of_rank(self.replay, self.ranks - 1)

    @enable_ki_protection
    async def run(self, sink: EventSink) -> None:
        """Follow all ranks until cancelled.

        Raises:
            SourceInvalid: The worker has fewer ranks, or the topic is followed already.
        """
        from kvlanes.engine.feeds._follow import Follower
        from kvlanes.engine.feeds._supervise import supervise

        feeds = feeds_of(sink, [self.topic] * self.ranks)
        with self.listener._registered(self.topic, feeds) as streams:
            async with open_bare_nursery() as nursery:
                for number, stream in enumerate(streams):
                    elsewhere = set(range(self.ranks)) - {number}
                    follower = Follower(sink, stream.feed, self.options, elsewhere)
                    connect = partial(_connected, self._link(stream, number))
                    nursery.start_soon(supervise, follower, connect)

    def _link(self, stream: _Stream, number: int) -> "_ListenedLink":
        replay = self.replay and of_rank(self.replay, number)
        target = Target(self.topic, replay, self.topic, self.curve, 64 * 2**20, 10.0)
        return _ListenedLink(self.listener, stream, target)


@asynccontextmanager
async def _connected(link: "_ListenedLink") -> AsyncIterator[Link]:
    yield link  # the socket is ours: there is nothing to connect


@attrs.frozen
class _ListenedLink:
    """A stream as its follower sees it."""

    listener: Listener
    stream: _Stream
    target: Target

    scoped = False

    @property
    def replayable(self) -> bool:
        return self.target.replay is not None

    def receive_nowait(self) -> Frame | None:
        try:
            return self.stream.receive.receive_nowait()
        except trio.WouldBlock:
            return None

    async def receive(self, idle_seconds: float) -> Frame | None:
        with trio.move_on_after(idle_seconds):
            return await self.stream.receive.receive()
        return None

    def check(self) -> None:
        """The socket is ours: it does not end before its streams."""

    @contextmanager
    def replay(self, start: int) -> Iterator[Any]:
        from kvlanes.engine.feeds._dial import replay_from

        assert self.target.replay is not None
        context = self.listener._context
        with replay_from(context, self.target, self.target.replay, start) as replies:
            yield replies


@asynccontextmanager
@enable_ki_protection
async def open_listener(
    endpoint: str = "tcp://127.0.0.1:5557",
    *,
    curve: CurveKeys | None = None,
    insecure: bool = False,
    queue_batches: int = 1024,
    limit_bytes: int = 64 * 2**20,
) -> AsyncIterator[Listener]:
    """Bind a socket for publishers to dial, and read it until the block ends.

    Args:
        endpoint: Where to bind. Port 0 takes a free one.
        curve: Encrypts the socket with these keys (no `server_key`).
        insecure: Bind another address than loopback without encryption all the same.
        queue_batches: Batches that may wait for one stream's follower.
        limit_bytes: Longest frame; a longer one ends its sender's connection.

    Raises:
        SourceInvalid: Not loopback and neither encrypted nor `insecure`, or it cannot be bound.
        FeedsExtraMissing: The extra `zmq` is not installed.
    """
    require_zmq()
    from kvlanes.engine.feeds._socket import bound_subscriber, zmq_context

    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if endpoint.startswith("tcp://") and host not in _LOOPBACK and not (curve or insecure):
        raise SourceInvalid(f"{endpoint} is open to others: give curve keys, or say insecure=True")
    with zmq_context() as context:
        socket, bound = bound_subscriber(context, endpoint, limit_bytes, curve)
        listener = Listener(bound, context, socket, queue_batches)
        try:
            async with open_bare_nursery() as nursery:
                nursery.start_soon(listener._run)
                yield listener
                nursery.cancel_scope.cancel()
        finally:
            listener.close()
