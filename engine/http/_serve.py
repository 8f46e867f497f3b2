"""Accepting clients, and stopping within a bound."""
# flake8: noqa: ASYNC114, ASYNC910 - task bodies, and a startable function that callers know

import errno
import logging
from collections.abc import Sequence

import trio

from kvlanes.engine.http._bodies import Bodies
from kvlanes.engine.http._connection import Connection, Handler, Refusal
from kvlanes.engine.http._limits import HttpLimits
from kvlanes.engine.http._messages import plain_refusal

_log = logging.getLogger("kvlanes.engine.http")

# The machine is short of something for a moment: the client can wait in the backlog.
_SHORTAGE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_SHORTAGE_PAUSE_SECONDS = 0.1


async def serve_http(
    handler: Handler,
    listeners: Sequence[trio.SocketListener],
    *,
    limits: HttpLimits | None = None,
    refuse: Refusal = plain_refusal,
    stopping: trio.Event | None = None,
    task_status: trio.TaskStatus[Sequence[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve HTTP/1.1 until cancelled, or until `stopping` is set and everybody was answered.

    Each request runs `handler` in the task of its connection. It is cancelled when the client
    leaves; a client that closes only its sending side counts as gone. A handler that raises
    answers 500, one that lets an `HttpError` through answers its status.

    Stopping closes the listeners and idle connections, lets requests in flight finish for
    `limits.stop_seconds`, cancels the rest, answers them with 503, and returns at the latest
    `limits.cut_seconds` later, unless a handler ignores its cancellation. Always a checkpoint.

    Args:
        handler: From request to response.
        listeners: Open listeners, for example of `trio.open_tcp_listeners`; closed on return.
        limits: Every bound; the defaults when `None`.
        refuse: How to word a status that the server answers by itself (400, 408, 413, 431, 500,
            503 …).
        stopping: Set it to stop gracefully.
        task_status: `nursery.start` returns the listeners once clients can connect.
    """
    server = _Server(handler, refuse, limits or HttpLimits())
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(server.accept, listener, nursery)
        task_status.started(listeners)
        if stopping is not None:
            await stopping.wait()
            for listener in listeners:
                await listener.aclose()
            await server.stop()
            nursery.cancel_scope.cancel()


class _Server:
    """All connections of one `serve_http`. Its tasks share one thread; no method waits halfway."""

    def __init__(self, handler: Handler, refuse: Refusal, limits: HttpLimits) -> None:
        self._handler = handler
        self._refuse = refuse
        self._limits = limits
        self._bodies = Bodies(limits.bodies_bytes)
        self._connections: set[Connection] = set()
        self._room = trio.Semaphore(limits.connections)
        self._left = trio.lowlevel.ParkingLot()

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        async with listener:
            while True:
                await self._room.acquire()
                try:
                    stream = await self._next(listener)
                except trio.ClosedResourceError:
                    return
                # Known from here on, so that stopping reaches it before its task first runs.
                connection = Connection(
                    stream, self._handler, self._refuse, self._limits, self._bodies
                )
                self._connections.add(connection)
                nursery.start_soon(self._serve, connection)

    async def _next(self, listener: trio.SocketListener) -> trio.SocketStream:
        while True:
            try:
                return await listener.accept()
            except OSError as error:
                if error.errno not in _SHORTAGE:
                    raise
                _log.warning("cannot accept a client: %s", error)
                await trio.sleep(_SHORTAGE_PAUSE_SECONDS)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        except Exception:
            _log.exception("a connection failed")
        finally:
            self._connections.discard(connection)
            self._room.release()
            self._left.unpark_all()

    async def stop(self) -> None:
        for connection in self._connections:
            connection.stop()
        with trio.move_on_after(self._limits.stop_seconds):
            return await self._empty()
        for connection in self._connections:
            connection.cut()
        with trio.move_on_after(self._limits.cut_seconds):
            await self._empty()

    async def _empty(self) -> None:
        while self._connections:
            await self._left.park()
