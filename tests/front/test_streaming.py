"""A response may be sent piece by piece, for as long as the client stays and the server runs."""
# flake8: noqa: ASYNC910 - every wait is in what is called

from collections.abc import Awaitable, Callable

import pytest
import trio

from kvlanes.engine.http import HttpRequest, HttpResponse, Send
from tests.http.raw import PATIENCE_SECONDS, Client, serving

Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Pieces:
    """Streams what the test gives it."""

    def __init__(self) -> None:
        self.give, self._take = trio.open_memory_channel[bytes](0)
        self.began = trio.Event()
        self.ended = trio.Event()
        self.cancelled = False

    async def handle(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, content_type="text/event-stream", stream=self._stream)

    async def _stream(self, send: Send) -> None:
        self.began.set()
        try:
            async for piece in self._take:
                await send(piece)
        except trio.Cancelled:
            self.cancelled = True
            raise
        finally:
            self.ended.set()


GET = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"


async def received(client: Client, wanted: bytes) -> bytes:
    seen = b""
    with trio.fail_after(PATIENCE_SECONDS):
        while wanted not in seen:
            data = await client.stream.receive_some()
            assert data, seen
            seen += data
    return seen


async def test_pieces_arrive_as_they_are_sent_and_the_connection_goes_on() -> None:
    pieces = Pieces()
    async with serving(pieces.handle) as served, served.client() as client:
        await client.send(GET)
        head = await received(client, b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        assert b"content-length" not in head.lower()
        for piece in (b"one", b"two"):
            await pieces.give.send(piece)
            await received(client, piece)
        await pieces.give.aclose()
        await received(client, b"0\r\n\r\n")
        await client.send(GET)
        await received(client, b"HTTP/1.1 200")


async def test_a_client_that_leaves_ends_the_stream() -> None:
    pieces = Pieces()
    async with serving(pieces.handle) as served:
        async with served.client() as client:
            await client.send(GET)
            with trio.fail_after(PATIENCE_SECONDS):
                await pieces.began.wait()
        with trio.fail_after(PATIENCE_SECONDS):
            await pieces.ended.wait()
        assert pieces.cancelled


async def test_stopping_ends_a_stream_at_once_and_properly() -> None:
    pieces = Pieces()
    async with serving(pieces.handle, stop_seconds=1000.0) as served, served.client() as client:
        await client.send(GET)
        await received(client, b"\r\n\r\n")
        served.stopping.set()
        await received(client, b"0\r\n\r\n")
        with trio.fail_after(PATIENCE_SECONDS):
            await served.finished.wait()


async def test_a_head_gets_the_headers_only() -> None:
    pieces = Pieces()
    async with serving(pieces.handle) as served, served.client() as client:
        response = await client.request(method="HEAD")
        assert response.status == 200
        assert not pieces.began.is_set()


async def test_a_reader_that_stands_still_loses_its_stream() -> None:
    async def flood(send: Send) -> None:
        while True:
            await send(b"x" * 1_000_000)

    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=flood)

    async with serving(handle, send_seconds=0.2) as served, served.client() as client:
        await client.send(GET)
        await received(client, b"\r\n\r\n")
        served.stopping.set()
        with trio.fail_after(PATIENCE_SECONDS):
            await served.finished.wait()


async def test_a_stream_that_fails_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(send: Send) -> None:
        await send(b"half")
        raise RuntimeError("broken")

    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=fail if request.path == "/bad" else None)

    async with serving(handle) as served:
        async with served.client() as client:
            await client.send(GET.replace(b"GET /", b"GET /bad"))
            assert not (await client.closed()).endswith(b"0\r\n\r\n"), "it must not look whole"
        async with served.client() as client:
            assert (await client.request(method="GET")).status == 200
    assert "a connection failed" in caplog.text
