"""One client connection: requests in, responses out, and the moment the client leaves.

Two tasks share a connection. The *reader* owns the receiving side and the clock: it moves bytes
into the inbox, is the only one that sees the end of the stream, and ends what takes too long. The
*server* owns everything else: it parses, runs the handler, sends. When the stream ends while a
handler runs, the reader cancels it: nobody is left to take the answer.

A half-closed client counts as gone. A client that was killed and one that only closed its sending
side look the same from here, and work for nobody costs more than the rare client that half-closes
and still wants its answer.
"""
# flake8: noqa: ASYNC910 - steps of one task; which of them waits depends on what has arrived

import logging
import math
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import TypeAlias

import h11
import trio

from kvlanes.engine.http._bodies import Bodies
from kvlanes.engine.http._decoding import Decoder, decoder
from kvlanes.engine.http._inbox import Inbox
from kvlanes.engine.http._limits import HttpLimits
from kvlanes.engine.http._messages import (
    BodyBroken,
    BodyLate,
    BodyTooLarge,
    HttpError,
    HttpRequest,
    HttpResponse,
    Stream,
)
from kvlanes.engine.http._responses import CONTINUE, LAST_CHUNK, chunk, has_body, response_head

Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]
Refusal: TypeAlias = Callable[[int], HttpResponse]

_log = logging.getLogger("kvlanes.engine.http")
_CHUNK_BYTES = 64 * 1024
_FRAMING = {b"content-length", b"transfer-encoding"}  # a request with neither has no body


class Connection:
    """Serves one stream until either side is done with it.

    The server side writes down until when it may wait (`_allow`); the reader's alarm is moved only
    if it would come too late, since each move costs as much as rendering a response. Whatever ends
    the server's scope early ends the connection; `_last_words` is what the client is told then.

    h11 parses requests and never learns of responses; so each request has a parser of its own, and
    what one did not use goes back to the inbox.
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
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._scope = trio.CancelScope()  # of the server side
        self._limit = math.inf  # until when it may wait
        self._alarm = trio.CancelScope()  # of the reader; never later than the limit
        self._last_words: int | HttpResponse | None = None  # a status, or a whole response
        self._stopping = False
        self._waiting = False  # for a request, or for the rest of its head
        self._patience_seconds = limits.head_seconds  # for its first byte
        self._handling = False  # the handler runs
        self._streaming: trio.CancelScope | None = None  # sends a body piece by piece
        # Of the current request:
        self._method = ""
        self._sent_bytes = 0  # of its body, before decoding
        self._body_bytes = 0  # of its body, as counted in `bodies`
        self._body_deadline = 0.0

    async def serve(self) -> None:
        """Serve requests until the client leaves, a limit ends the connection, or `stop`."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._attend, nursery.cancel_scope)
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
        if self._waiting and self._last_words is None:  # nothing of a request is here
            self._scope.cancel()
        if self._streaming is not None:
            self._streaming.cancel()

    def cut(self) -> None:
        """Cancel the handler that still runs; its client is told that the server stops."""
        if self._handling:
            self._scope.cancel()

    def _allow(self, seconds: float) -> None:
        """How long the server side may wait from now on."""
        self._limit = trio.current_time() + seconds
        if self._limit < self._alarm.deadline:
            self._alarm.deadline = self._limit

    async def _attend(self, everything: trio.CancelScope) -> None:
        """Read, and keep the time."""
        while True:
            with trio.CancelScope(deadline=self._limit) as self._alarm:
                await self._read(everything)
                await trio.sleep_forever()
            # When this process was kept from running, time has passed while bytes lay unread in
            # the kernel. The server has taken them by now: ending the scope took a step.
            if trio.current_time() >= self._limit:
                self._scope.cancel()

    async def _read(self, everything: trio.CancelScope) -> None:
        while not self._inbox.ended:
            await self._inbox.room()
            data = await self._received()
            if data:
                self._inbox.put(data)
                if len(data) == _CHUNK_BYTES:
                    await self._bodies.turn()
                continue
            # Cancelled first: a handler that waits for its body must not find a broken one instead.
            if self._handling or self._streaming is not None:
                everything.cancel()
            self._inbox.end()

    async def _received(self) -> bytes | bytearray:
        try:
            return await self._stream.receive_some(_CHUNK_BYTES)
        except trio.BrokenResourceError:
            return b""

    async def _serve_requests(self) -> None:
        while not self._stopping:
            try:
                head = await self._head()
            except h11.RemoteProtocolError as error:
                if not self._inbox.ended:
                    await self._turn_away(error.error_status_hint)
                return
            if head is None or not await self._exchange(head):
                return

    async def _head(self) -> h11.Request | None:
        """The next request line and headers, `None` when no more requests come."""
        self._waiting = True
        self._allow(self._patience_seconds)
        self._parser.receive_data(await self._inbox.take())
        event: object = self._parser.next_event()
        if event is h11.NEED_DATA:
            self._last_words = 408
            self._allow(self._limits.head_seconds)
            while (event := self._parser.next_event()) is h11.NEED_DATA:
                self._parser.receive_data(await self._inbox.take())
            self._last_words = None
        self._waiting = False
        self._patience_seconds = self._limits.idle_seconds
        self._limit = math.inf
        return event if isinstance(event, h11.Request) else None

    async def _exchange(self, head: h11.Request) -> bool:
        """One request and its response; whether the connection can carry another."""
        headers = tuple(head.headers)
        if sum(map(len, chain(*headers))) + 4 * len(headers) > self._limits.head_bytes:
            return await self._turn_away(431)
        path, _, query = head.target.decode("ascii").partition("?")
        self._method, self._sent_bytes = head.method.decode("ascii"), 0
        request = HttpRequest(self._method, path, query, headers, lambda: self._body(request))
        self._body_deadline = trio.current_time() + self._limits.body_seconds
        self._inbox.watch(_FRAMING.isdisjoint(dict(headers)))
        try:
            response = await self._handled(request)
            if response is None:
                return False
            self._skim()
            return await self._respond(response)
        finally:
            self._bodies.give_back(self._body_bytes)
            self._body_bytes = 0
            self._inbox.watch(False)

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
        if self._parser.they_are_waiting_for_100_continue:
            await self._send(CONTINUE)
        pieces: list[bytes] = []
        if not self._gather(decode, pieces):
            with trio.CancelScope(deadline=self._body_deadline) as scope:
                self._parser.receive_data(await self._inbox.take())
                while not self._gather(decode, pieces):
                    self._parser.receive_data(await self._inbox.take())
            if scope.cancelled_caught:
                raise BodyLate(limits.body_seconds)
        decode.finish()
        self._inbox.watch(True)
        return b"".join(pieces)

    def _gather(self, decode: Decoder, pieces: list[bytes]) -> bool:
        """Decode what has arrived; whether the body is complete."""
        try:
            while isinstance(event := self._parser.next_event(), h11.Data):
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
            while self._parser.their_state is h11.SEND_BODY:
                if self._parser.next_event() is h11.NEED_DATA:
                    data = self._inbox.take_nowait()
                    if not data:
                        return
                    self._parser.receive_data(data)
        except h11.RemoteProtocolError:
            return  # the connection closes after this response

    async def _turn_away(self, answer: int | HttpResponse) -> bool:
        self._last_words = None
        response = self._refuse(answer) if isinstance(answer, int) else answer
        return await self._respond(response)

    async def _respond(self, response: HttpResponse) -> bool:
        """Send a response; whether the connection can carry another request."""
        # `DONE`: the request was read to its end, and its client wants to keep the connection.
        keep = self._parser.their_state is h11.DONE and not self._inbox.overflowed
        keep = keep and not self._stopping
        chunked = (self._parser.their_http_version or b"") >= b"1.1"
        head = response_head(response, chunked=chunked, close=not keep)
        if not has_body(response, self._method):
            await self._send(head)
        elif response.stream is None:
            await self._send(head + response.body)
        else:
            await self._send(head)
            await self._send_pieces(response.stream, chunked)
        return self._next_request() if keep else await self._part()

    async def _send_pieces(self, stream: Stream, chunked: bool) -> None:
        async def send(piece: bytes) -> None:
            await self._send(chunk(piece) if chunked else piece)

        with trio.CancelScope() as self._streaming:
            # Either may have come before there was a scope to cancel.
            if not self._inbox.ended and not self._stopping:
                await stream(send)
        self._streaming = None
        if chunked:
            await self._send(LAST_CHUNK)

    async def _send(self, data: bytes) -> None:
        """Send within `send_seconds`, and allow what comes next any time."""
        self._allow(self._limits.send_seconds)
        await self._stream.send_all(data)
        self._limit = math.inf

    def _next_request(self) -> bool:
        self._method = ""  # what is turned away without a request has a body again
        self._inbox.put_back(self._parser.trailing_data[0])
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        return True

    async def _part(self) -> bool:
        """Let the client read its last response.

        Closing with unread bytes would reset the connection, and the reset can overtake the
        response: end our side, and give the client a moment to end its own.
        """
        await self._stream.send_eof()
        with trio.move_on_after(self._limits.linger_seconds):
            await self._inbox.drained()
        return False
