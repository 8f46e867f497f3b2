"""Requests and responses as the handler sees them, and why a body could not be read."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeAlias

import attrs


class HttpError(Exception):
    """A request that cannot be served as sent; `status` is the answer when nobody handles it."""

    status = 400


class BodyTooLarge(HttpError, ValueError):
    """The body is longer than allowed: declared, as sent, or once decoded."""

    status = 413

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"body exceeds {limit_bytes} bytes")


class BodyLate(HttpError, TimeoutError):
    """The body did not arrive in time."""

    status = 408

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(f"body took more than {limit_seconds} s")


class BodyBroken(HttpError, ValueError):
    """The body cannot be decoded: bad framing, bad compression, cut short."""

    status = 400


class EncodingUnknown(HttpError, ValueError):
    """A content-encoding other than gzip, deflate, zstd or identity."""

    status = 415


class BodiesBusy(HttpError, RuntimeError):
    """All requests in flight together hold as many body bytes as allowed."""

    status = 429

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"bodies in flight exceed {limit_bytes} bytes")


@attrs.define(eq=False)
class HttpRequest:
    """One request whose headers have arrived; its body may still be on the way.

    Attributes:
        method: As sent, upper case.
        path: The target without its query.
        query: What stood after `?`, empty without one.
        headers: Names in lower case, in the order they came.
    """

    method: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    _read: Callable[[], Awaitable[bytes]]
    _joined: dict[bytes, bytes] = attrs.field(init=False, factory=dict, repr=False)

    def __attrs_post_init__(self) -> None:
        joined = self._joined
        for name, value in self.headers:
            joined[name] = joined[name] + b", " + value if name in joined else value

    def header(self, name: str) -> str | None:
        """All values of a header, joined by commas as HTTP has it; `None` when absent."""
        value = self._joined.get(name.lower().encode("ascii"))
        return None if value is None else value.decode("latin-1")

    async def read(self) -> bytes:
        """The whole body, decoded. May be called once; a checkpoint unless the body is here.

        A client that waits for `100 Continue` gets it now: a handler that refuses first spares
        the upload.

        Raises:
            HttpError: `BodyTooLarge`, `BodyLate`, `BodyBroken`, `EncodingUnknown`, `BodiesBusy`.
        """
        return await self._read()


Send: TypeAlias = Callable[[bytes], Awaitable[None]]
Stream: TypeAlias = Callable[[Send], Awaitable[None]]


@attrs.frozen
class HttpResponse:
    """What goes back: length and connection headers are added on the way out.

    Attributes:
        status: 200 to 599.
        body: Left out on the wire when the request was a HEAD.
        headers: Further headers, names in lower case.
        content_type: Of the body.
        stream: Sends the body piece by piece, in the place of `body`, once the headers are out.
            The response ends when it returns; it is cancelled when the client leaves and when
            the server begins to stop. Each piece has `send_seconds` to be taken.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    stream: Stream | None = None


def plain_refusal(status: int) -> HttpResponse:
    """How a server without a better idea words what it refuses by itself."""
    return HttpResponse(status, HTTPStatus(status).phrase.encode(), content_type="text/plain")
