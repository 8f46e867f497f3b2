"""A server in this run, and a client that says exactly what it is told to say."""
# flake8: noqa: ASYNC113, ASYNC124, ASYNC910, ASYNC912 - handlers are asynchronous by contract

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from kvlanes.engine.http import (
    HttpLimits,
    HttpRequest,
    HttpResponse,
    plain_refusal,
    serve_http,
)

__all__ = ["Client", "Response", "Served", "echo", "serving"]

# Long enough for anything that works; only a broken test waits for it.
PATIENCE_SECONDS = 60.0

Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


async def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, await request.read(), content_type="application/octet-stream")


@attrs.frozen
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One raw connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def request(
        self, body: bytes = b"", *, method: str = "POST", path: str = "/", headers: str = ""
    ) -> Response:
        await self.send(head(method, path, f"content-length: {len(body)}\r\n{headers}") + body)
        return await self.response(bodiless=method == "HEAD")

    async def response(self, *, bodiless: bool = False) -> Response:
        """The next response, read by its content-length."""
        with trio.fail_after(PATIENCE_SECONDS):
            while b"\r\n\r\n" not in self._buffer:
                await self._more()
            raw, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
            first, *lines = raw.decode().split("\r\n")
            headers = {name.lower(): value for name, value in (x.split(": ", 1) for x in lines)}
            length = 0 if bodiless else int(headers.get("content-length", 0))
            while len(self._buffer) < length:
                await self._more()
            body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Response(int(first.split(" ")[1]), headers, body)

    async def closed(self) -> bytes:
        """What still comes until the server closes."""
        with trio.fail_after(PATIENCE_SECONDS):
            try:
                while data := await self.stream.receive_some():
                    self._buffer += data
            except trio.BrokenResourceError:
                pass
        return self._buffer

    async def _more(self) -> None:
        data = await self.stream.receive_some()
        assert data, f"the server closed after {self._buffer!r}"
        self._buffer += data


def head(method: str = "POST", path: str = "/", headers: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}\r\n".encode()


@attrs.frozen
class Served:
    port: int
    stopping: trio.Event
    finished: trio.Event

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)


@asynccontextmanager
async def serving(
    handler: Handler, refuse: Callable[[int], HttpResponse] = plain_refusal, **limits: float
) -> AsyncIterator[Served]:
    """Serve on a port of its own; at the end the server must stop by itself."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    served = Served(listeners[0].socket.getsockname()[1], trio.Event(), trio.Event())

    async def serve() -> None:
        await serve_http(
            handler,
            listeners,
            limits=HttpLimits(**limits),  # type: ignore[arg-type]
            refuse=refuse,
            stopping=served.stopping,
        )
        served.finished.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield served
        served.stopping.set()
        with trio.fail_after(PATIENCE_SECONDS):
            await served.finished.wait()
