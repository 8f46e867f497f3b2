"""Every bound of the HTTP part, in one place."""

from typing import Any

import attrs


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be positive, got {value}")


def _limit(default: float) -> float:
    return attrs.field(default=default, validator=_positive, kw_only=True)


def _count(default: int) -> int:
    return attrs.field(default=default, validator=_positive, kw_only=True)


@attrs.frozen
class HttpLimits:
    """What one server lets its clients take, all at once and each alone.

    Attributes:
        connections: Open at once; further clients wait in the kernel's backlog.
        head_bytes: Request line and headers of one request.
        head_seconds: From the first byte of a request to the end of its headers, and from the
            opening of a connection to its first byte.
        idle_seconds: Between two requests of one connection.
        body_bytes: One body, as sent and as decoded.
        body_seconds: From the end of the headers to the end of the body.
        bodies_bytes: Decoded body bytes of all requests in flight together.
        window_bytes: What one zstd frame may ask the decoder to remember.
        pipelined_bytes: What a client may send ahead of the response it waits for.
        send_seconds: To hand one response to a client that reads slowly.
        linger_seconds: To let a client finish sending a body that was refused unread.
        stop_seconds: For requests in flight once stopping was asked for.
        cut_seconds: For requests cancelled at the end of that to give way and be refused.
    """

    connections: int = _count(1024)
    head_bytes: int = _count(16 * 1024)
    head_seconds: float = _limit(10.0)
    idle_seconds: float = _limit(75.0)
    body_bytes: int = _count(4 * 1024 * 1024)
    body_seconds: float = _limit(30.0)
    bodies_bytes: int = _count(256 * 1024 * 1024)
    window_bytes: int = _count(8 * 1024 * 1024)
    pipelined_bytes: int = _count(64 * 1024)
    send_seconds: float = _limit(10.0)
    linger_seconds: float = _limit(1.0)
    stop_seconds: float = _limit(10.0)
    cut_seconds: float = _limit(2.0)
