"""One client connection: requests in, responses out, and the moment the client leaves.

Two tasks share a connection. The *reader* owns the receiving side: it moves bytes into the inbox
and is the only one that sees the end of the stream. The *server* owns everything else: it parses,
runs the handler, sends. When the stream ends while a handler runs, the reader cancels it: nobody
is left to take the answer.

A half-closed client counts as gone. A client that was killed and one that only closed its sending
side look the same from here, and work for nobody costs more than the rare client that half-closes
and still wants its answer.
"""
# flake8: noqa: ASYNC910 - steps of one task; which of them waits depends on what has arrived

import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeAlias

import attrs
import h11
import trio

from kvlanes.engine.http._decoding import Decoder, decoder
from kvlanes.engine.http._inbox import Inbox
from kvlanes.engine.http._limits import HttpLimits
from kvlanes.engine.http._messages import (
    BodiesBusy,
    BodyBroken,
    BodyLate,
    BodyTooLarge,
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
)

Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]
Refusal: TypeAlias = Callable[[int], HttpResponse]

_log = logging.getLogger("kvlanes.engine.http")
_CHUNK_BYTES = 64 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")  # a request with neither has no body
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


@attrs.define(eq=False)
class Bodies:
    """Body bytes of all requests in flight. Connections take and give back; nobody waits."""

    limit_bytes: int
    used_bytes: int = 0

    def take(self, count: int) -> None:
        if self.used_bytes + count > self.limit_bytes:
            raise BodiesBusy(self.limit_bytes)
        self.used_bytes += count

    def give_back(self, count: int) -> None:
        self.used_bytes -= count


class Connection:
    """Serves one stream until either side is done with it.

    One scope bounds all that the server side waits for, and its deadline moves along: a scope for
    each wait would cost more than parsing a request. Whatever ends it early ends the connection;
    `_last_words` is what the client is told then.
    """

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        handler: Handler,
        refuse: Refusal,
        limits: HttpLimits,
        bodies: Bodies,
    ) -> None:
        self._stream = stream
        self._handler = handler
        self._refuse = refuse
        self._limits = limits
        self._bodies = bodies
        self._inbox = Inbox(limits.pipelined_bytes)
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._scope = trio.CancelScope()
        self._last_words: int | HttpResponse | None = None  # a status, or a whole response
        self._stopping = False
        self._idle = False  # waits for the next request
        self._handling = False  # the handler runs
        self._streaming: trio.CancelScope | None = None  # sends a body piece by piece
        # Of the current request:
        self._bodiless = False  # a HEAD, so the response has no body on the wire
        self._sent_bytes = 0  # of its body, before decoding
        self._body_bytes = 0  # of its body, as counted in `bodies`
        self._body_deadline = 0.0

    async def serve(self) -> None:
        """Serve requests until the client leaves, a limit ends the connection, or `stop`."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._read, nursery.cancel_scope)
                with self._scope:
                    await self._serve_requests()
                if self._scope.cancelled_caught and self._last_words is not None:
                    with trio.move_on_after(self._limits.send_seconds):
                        await self._turn_away(self._last_words)
                nursery.cancel_scope.cancel()
        except* trio.BrokenResourceError:
            pass  # the client went away while we were sending

    def stop(self) -> None:
        """Take no further request; one that is being served is finished."""
        self._stopping = True
        if self._idle:
            self._scope.cancel()
        if self._streaming is not None:
            self._streaming.cancel()

    def cut(self) -> None:
        """Cancel the handler that still runs; its client is told that the server stops."""
        if self._handling:
            self._scope.cancel()

    async def _read(self, everything: trio.CancelScope) -> None:
        while True:
            try:
                data = await self._stream.receive_some(_CHUNK_BYTES)
            except trio.BrokenResourceError:
                break
            if not data:
                break
            await self._inbox.put(data)
        # Cancelled first: a handler that waits for its body must not find a broken one instead.
        if self._handling or self._streaming is not None:
            everything.cancel()
        self._inbox.end()

    async def _serve_requests(self) -> None:
        patience_seconds = self._limits.head_seconds
        while not self._stopping:
            try:
                head = await self._head(patience_seconds)
            except h11.RemoteProtocolError as error:
                if not self._inbox.ended:
                    await self._turn_away(error.error_status_hint)
                return
            if head is None or not await self._exchange(head):
                return
            patience_seconds = self._limits.idle_seconds

    async def _head(self, patience_seconds: float) -> h11.Request | None:
        """The next request line and headers, `None` when no more requests come."""
        event: object = self._h11.next_event()
        if event is h11.NEED_DATA:
            self._idle = True
            self._scope.deadline = trio.current_time() + patience_seconds
            self._h11.receive_data(await self._inbox.take())
            self._idle = False
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                self._last_words = 408
                self._scope.deadline = trio.current_time() + self._limits.head_seconds
                while (event := self._h11.next_event()) is h11.NEED_DATA:
                    self._h11.receive_data(await self._inbox.take())
                self._last_words = None
            self._scope.deadline = math.inf
        return event if isinstance(event, h11.Request) else None

    async def _exchange(self, head: h11.Request) -> bool:
        """One request and its response; whether the connection can carry another."""
        headers = tuple(head.headers)
        if sum(len(name) + len(value) + 4 for name, value in headers) > self._limits.head_bytes:
            await self._turn_away(431)
            return False
        path, _, query = head.target.decode("ascii").partition("?")
        request = HttpRequest(
            head.method.decode("ascii"), path, query, headers, lambda: self._body(request)
        )
        self._bodiless, self._sent_bytes = request.method == "HEAD", 0
        self._body_deadline = trio.current_time() + self._limits.body_seconds
        self._inbox.watch(not any(name in _FRAMING for name, _ in headers))
        try:
            response = await self._handled(request)
            if response is None:
                return False
            self._skim()
            await self._respond(response)
        finally:
            self._bodies.give_back(self._body_bytes)
            self._body_bytes = 0
            self._inbox.watch(False)
        return await self._next_cycle()

    async def _handled(self, request: HttpRequest) -> HttpResponse | None:
        """The handler's response, or ours in its place; `None` when the client has left."""
        if self._inbox.ended:  # while nothing was there to cancel
            return None
        self._handling, self._last_words = True, 503
        try:
            response = await self._handler(request)
        except HttpError as error:
            response = self._refuse(error.status)
        except Exception:
            _log.exception("handler failed on %s %s", request.method, request.path)
            response = self._refuse(500)
        finally:
            self._handling = False
        if self._scope.cancel_called:
            # Cut in the moment between the handler's end and now: send it from outside the scope.
            self._last_words = response
            await trio.lowlevel.checkpoint()
        self._last_words = None
        return response

    async def _body(self, request: HttpRequest) -> bytes:
        limits = self._limits
        declared = request.header("content-length")
        if declared is not None and int(declared) > limits.body_bytes:
            raise BodyTooLarge(limits.body_bytes)
        decode = decoder(request.header("content-encoding"), limits.body_bytes, limits.window_bytes)
        if self._h11.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        pieces: list[bytes] = []
        if not self._gather(decode, pieces):
            with trio.CancelScope(deadline=self._body_deadline) as scope:
                self._h11.receive_data(await self._inbox.take())
                while not self._gather(decode, pieces):
                    self._h11.receive_data(await self._inbox.take())
            if scope.cancelled_caught:
                raise BodyLate(limits.body_seconds)
        decode.finish()
        self._inbox.watch(True)
        return b"".join(pieces)

    def _gather(self, decode: Decoder, pieces: list[bytes]) -> bool:
        """Decode what has arrived; whether the body is complete."""
        try:
            while isinstance(event := self._h11.next_event(), h11.Data):
                self._sent_bytes += len(event.data)
                if self._sent_bytes > self._limits.body_bytes:
                    raise BodyTooLarge(self._limits.body_bytes)
                pieces.append(decode.feed(bytes(event.data)))
                self._bodies.take(len(pieces[-1]))
                self._body_bytes += len(pieces[-1])
        except h11.RemoteProtocolError as error:
            raise BodyBroken("body framing is broken") from error
        return event is not h11.NEED_DATA

    def _skim(self) -> None:
        """Step over a body that the handler left unread, as far as it is here already."""
        try:
            while self._h11.their_state is h11.SEND_BODY:
                if self._h11.next_event() is h11.NEED_DATA:
                    data = self._inbox.take_nowait()
                    if not data:
                        return
                    self._h11.receive_data(data)
        except h11.RemoteProtocolError:
            return  # the connection closes after this response

    async def _turn_away(self, answer: int | HttpResponse) -> None:
        self._last_words = None
        response = self._refuse(answer) if isinstance(answer, int) else answer
        await self._respond(response)
        await self._next_cycle()

    async def _respond(self, response: HttpResponse) -> None:
        headers = [("content-type", response.content_type), *response.headers]
        if response.stream is None:
            headers.append(("content-length", str(len(response.body))))
        if self._stopping or self._inbox.overflowed or self._h11.their_state is not h11.DONE:
            headers.append(("connection", "close"))
        reason = _REASONS.get(response.status, b"")
        events: list[h11.Event] = [
            h11.Response(status_code=response.status, headers=headers, reason=reason)
        ]
        if response.stream is not None and not self._bodiless:
            await self._send(*events)
            events = []
            await self._send_pieces(response.stream)
        elif response.body and not self._bodiless:
            events.append(h11.Data(data=response.body))
        await self._send(*events, h11.EndOfMessage())

    async def _send_pieces(self, stream: Callable[[Send], Awaitable[None]]) -> None:
        with trio.CancelScope() as self._streaming:
            # Either may have come before there was a scope to cancel.
            if not self._inbox.ended and not self._stopping:
                await stream(lambda piece: self._send(h11.Data(data=piece)))
        self._streaming = None

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._h11.send(event) or b"" for event in events)
        self._scope.deadline = trio.current_time() + self._limits.send_seconds
        await self._stream.send_all(data)
        self._scope.deadline = math.inf

    async def _next_cycle(self) -> bool:
        """Whether another request may follow; if not, let the client read its response."""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            self._bodiless = False  # what is turned away without a request has a body again
            return True
        # Closing with unread bytes would reset the connection, and the reset can overtake the
        # response: end our side, and give the client a moment to end its own.
        await self._stream.send_eof()
        with trio.move_on_after(self._limits.linger_seconds):
            await self._inbox.drained()
        return False
