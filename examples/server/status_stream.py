"""Server-sent events: the status, as often as it changes, to at most so many pages."""
# flake8: noqa: ASYNC910 - a stream that finds no place ends at once

import math
from collections.abc import Awaitable, Callable

import attrs
import trio

_EVERY_SECONDS = 0.5
_ALIVE_SECONDS = 15.0  # a comment at least that often, so that nothing between closes the stream
_AGAIN_MILLISECONDS = 2000  # after which a page asks again

Send = Callable[[bytes], Awaitable[None]]


@attrs.define(eq=False)
class StatusStreams:
    """All open streams. Each writes and gives back its own place; all share the latest status.

    Attributes:
        told: The status as JSON.
        limit: Streams at once.
    """

    told: Callable[[], bytes]
    limit: int = 16
    _open: int = 0
    _status: bytes = b""
    _fresh_until: float = -math.inf

    @property
    def full(self) -> bool:
        return self._open >= self.limit

    async def run(self, send: Send) -> None:
        """Send until cancelled. Ends at once when full. Always a checkpoint otherwise."""
        # Looked at again: others may have begun since the request was accepted.
        if self.full:
            return
        self._open += 1
        try:
            await self._follow(send)
        finally:
            self._open -= 1

    def _latest(self) -> bytes:
        """The status, made once for all streams that look at about the same time."""
        now = trio.current_time()
        if now >= self._fresh_until:
            self._status, self._fresh_until = self.told(), now + _EVERY_SECONDS / 2
        return self._status

    async def _follow(self, send: Send) -> None:
        await send(b"retry: %d\n\n" % _AGAIN_MILLISECONDS)
        last, quiet_seconds = b"", 0.0
        while True:
            status = self._latest()
            if status != last:
                await send(b"event: status\ndata: " + status + b"\n\n")
                last, quiet_seconds = status, 0.0
            elif quiet_seconds >= _ALIVE_SECONDS:
                await send(b": still here\n\n")
                quiet_seconds = 0.0
            await trio.sleep(_EVERY_SECONDS)
            quiet_seconds += _EVERY_SECONDS
