"""One line for each request, by its id. What clients sent is not in it, but for known paths."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from kvlanes.engine.http import HttpRequest, HttpResponse

_log = logging.getLogger("examples.server.access")
_LEFT = 499  # the client went away; no response has this status


@attrs.define(eq=False)
class Line:
    """What is to be logged once the request is over."""

    response: HttpResponse | None = None


class AccessLog:
    """Writes to standard logging, as `examples.server.access`, or nothing at all."""

    def __init__(self, on: bool) -> None:
        self._on = on
        if on:
            _log.setLevel(logging.INFO)

    @contextmanager
    def line(self, request: HttpRequest, request_id: str, known: bool) -> Iterator[Line]:
        """Log the request when the block ends, also when it was cancelled.

        Args:
            request: Its method, and its path if that is one of ours.
            request_id: Its name in every other line.
            known: Whether the path is one of ours; another may hold anything.
        """
        began, line = trio.current_time(), Line()
        try:
            yield line
        finally:
            if self._on:
                status = line.response.status if line.response else _LEFT
                path, seconds = request.path if known else "-", trio.current_time() - began
                method = request.method if known else "-"
                _log.info("%s %s %s %d %.3f s", request_id, method, path, status, seconds)
