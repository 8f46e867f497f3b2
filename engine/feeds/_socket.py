"""ZeroMQ sockets for one Trio task each. Needs pyzmq.

The file descriptor of a ZeroMQ socket is edge-triggered: it says that something changed, not that
something is there. So a receiver first takes what is there and waits only when nothing is.
"""
# flake8: noqa: ASYNC910 - a message that is there is taken at once, 64 times in a row at most

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import trio
import zmq
from zmq.utils.monitor import parse_monitor_message

from kvlanes.engine.feeds._errors import SourceInvalid
from kvlanes.engine.feeds._options import CurveKeys

if TYPE_CHECKING:
    Socket: TypeAlias = zmq.Socket[bytes]
    Context: TypeAlias = zmq.Context[zmq.Socket[bytes]]
else:
    Socket, Context = zmq.Socket, zmq.Context

_MESSAGES_A_SCHEDULING_POINT = 64
_NOBLOCK = int(zmq.NOBLOCK)


class Receiver:
    """The only reader of one socket.

    Two tasks that wait for one socket get `trio.BusyResourceError`. A message is taken whole or
    not at all, so cancellation never splits or loses one.
    """

    __slots__ = ("_closed", "_descriptor", "_interrupted", "_socket", "_taken", "_wait")

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._descriptor: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._closed = False
        self._interrupted = False
        self._taken = 0
        self._wait: trio.CancelScope | None = None  # the receiving task's, while it waits

    def receive_nowait(self) -> list[bytes] | None:
        """A message that is there already, or `None`. Never a checkpoint.

        Raises:
            trio.ClosedResourceError: The socket was closed, perhaps just before this task ran.
        """
        if self._closed:
            raise trio.ClosedResourceError("this socket is closed")
        receive = self._socket.recv
        try:
            part = receive(_NOBLOCK, False)
        except zmq.Again:
            return None
        # A part knows whether more follow. `recv_multipart` asks the socket after each, which
        # costs more than all the rest; the parts of a message arrive together or not at all.
        message = [part.bytes]
        while part.more:
            part = receive(_NOBLOCK, False)
            message.append(part.bytes)
        return message

    async def receive(self, seconds: float = math.inf) -> list[bytes] | None:
        """The next message; `None` when none came for so long, or when interrupted.

        A checkpoint when it waits, and at least every 64th call.
        """
        self._taken += 1
        if self._taken >= _MESSAGES_A_SCHEDULING_POINT:
            self._taken = 0
            await trio.lowlevel.checkpoint()  # before a message is taken: none can get lost
        message = self.receive_nowait()
        if message is not None:
            return message
        self._taken = 0
        with trio.move_on_after(seconds) as self._wait:
            return await self._receive_later()
        return None

    async def _receive_later(self) -> list[bytes] | None:
        while not self._interrupted:
            await trio.lowlevel.wait_readable(self._descriptor)
            message = self.receive_nowait()
            if message is not None:
                return message
        self._interrupted = False
        return None

    def interrupt(self) -> None:
        """Let the receiving task return with nothing, now or when it would wait next."""
        self._interrupted = True
        if self._wait is not None:
            self._wait.cancel()

    def close(self) -> None:
        """Close the socket; whoever waits for it gets `trio.ClosedResourceError`."""
        self._closed = True
        trio.lowlevel.notify_closing(self._descriptor)
        self._socket.close(linger=0)


class Monitor:
    """Tells when the one connection of a dialling socket stands and when it has ended."""

    __slots__ = ("_receiver", "_socket")

    _UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
    _DOWN = (
        zmq.EVENT_DISCONNECTED
        | zmq.EVENT_CLOSED
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._receiver = Receiver(socket.get_monitor_socket(int(self._UP | self._DOWN)))

    async def stands(self) -> bool:
        """Wait for the next change: true when the connection stands, false when it has ended."""
        message = await self._receiver.receive()
        return message is not None and self._up(message)

    def ended(self) -> bool:
        """Whether an end was reported that nobody has read yet. Never a checkpoint."""
        while (message := self._receiver.receive_nowait()) is not None:
            if not self._up(message):
                return True
        return False

    def _up(self, message: list[bytes]) -> bool:
        return bool(parse_monitor_message(message)["event"] == self._UP)

    def close(self) -> None:
        # In this order: the library sends a last event, and with nobody to receive it would
        # wait for ever (`test_a_source_that_is_cancelled_early_ends_cleanly`).
        self._socket.disable_monitor()
        self._receiver.close()


@contextmanager
def zmq_context() -> Iterator[Context]:
    """A context of one's own, with one thread; its sockets must be closed before it ends."""
    context = zmq.Context()
    try:
        yield context
    finally:
        context.term()


def subscriber(context: Context, limit_bytes: int, curve: CurveKeys | None) -> Socket:
    """A SUB socket that never reconnects by itself.

    A library that reconnects would bring frames of a dead engine after those of its successor.
    """
    socket = _socket(context, zmq.SUB, limit_bytes, curve)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)  # a vanished host sends no end of connection
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
    return socket


def dealer(context: Context, limit_bytes: int, curve: CurveKeys | None) -> Socket:
    """A DEALER socket for one replay. Nothing of the answer is dropped on our side."""
    socket = _socket(context, zmq.DEALER, limit_bytes, curve)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket


def _socket(
    context: Context,
    kind: int,
    limit_bytes: int,
    curve: CurveKeys | None,
) -> Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.setsockopt(zmq.MAXMSGSIZE, limit_bytes)
    if curve is not None:
        _encrypt(socket, curve)
    return socket


def _encrypt(socket: Socket, curve: CurveKeys) -> None:
    try:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret_key)
        if curve.server_key is None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
        else:
            socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server_key)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise SourceInvalid(f"CURVE keys refused: {error}") from error


def bound_subscriber(
    context: Context, endpoint: str, limit_bytes: int, curve: CurveKeys | None
) -> tuple[Socket, str]:
    """A SUB socket that publishers dial, and where it really listens."""
    socket = _socket(context, zmq.SUB, limit_bytes, curve)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise SourceInvalid(f"cannot bind {endpoint}: {error}") from error
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return socket, bound.rstrip(b"\0").decode()
