"""Dials one publisher: a connection is a scope that belongs to at most one engine process.

The library's own reconnecting is off. A connection that ended is thrown away with everything
that was still queued in it, and a fresh one begins with a replay from the watermark.
"""
# flake8: noqa: ASYNC910 - a watcher whose connection is closed has nothing to wait for

import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio
import zmq
from trio.lowlevel import enable_ki_protection

from kvlanes.engine.feeds._errors import ConnectionLost, FrameInvalid, ReplayTruncated
from kvlanes.engine.feeds._frames import Frame, parse
from kvlanes.engine.feeds._options import Target
from kvlanes.engine.feeds._socket import (
    Context,
    Monitor,
    Receiver,
    Socket,
    dealer,
    subscriber,
)


@asynccontextmanager
async def connected(
    context: Context, target: Target, nursery: trio.Nursery
) -> AsyncIterator["DialledLink"]:
    """A connection to `target`, once it stands.

    Args:
        context: Whose sockets are used.
        target: Whom to follow.
        nursery: Where the task that watches the connection runs.

    Raises:
        ConnectionLost: It did not come to stand.
    """
    socket = subscriber(context, target.limit_bytes, target.curve)
    link = DialledLink(context, target, Receiver(socket), Monitor(socket))
    try:
        link.dial(socket)
        nursery.start_soon(link.watch)
        await link.standing()
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

    def dial(self, socket: Socket) -> None:
        """Begin to connect; `ConnectionLost` for an endpoint that no socket takes."""
        try:
            socket.subscribe(self._target.topic)
            socket.connect(self._target.endpoint)
        except zmq.ZMQError as error:
            raise ConnectionLost(f"{self._target.endpoint}: {error}") from error

    @enable_ki_protection
    async def watch(self) -> None:
        """End the connection's reading when the connection ends."""
        with self._watching:
            try:
                while await self._monitor.stands():
                    self._changed.set()
            except trio.ClosedResourceError:
                return  # `close` came before this task's next step
            self._ended = True
            self._changed.set()
            self._receiver.interrupt()

    async def standing(self) -> None:
        """Wait until the connection stands, and raise `ConnectionLost` if it does not."""
        seconds = self._target.connect_seconds
        with trio.move_on_after(seconds) as scope:
            await self._changed.wait()
        if scope.cancelled_caught:
            raise ConnectionLost(f"{self._target.endpoint} did not answer in {seconds} s")
        self.check()

    def receive_nowait(self) -> Frame | None:
        return self._frame(self._receiver.receive_nowait())

    async def receive(self, idle_seconds: float) -> Frame | None:
        if self._ended:
            self.check()
        return self._frame(await self._receiver.receive(idle_seconds))

    def _frame(self, message: list[bytes] | None) -> Frame | None:
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
        try:
            socket.connect(endpoint)
            # The empty frame stands where a REQ socket would put it, or nobody answers.
            socket.send_multipart([b"", struct.pack(">Q", start)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise ConnectionLost(f"{endpoint}: {error}") from error
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
