"""The operator's routes: the page, its figures, the readable API description, metrics."""
# flake8: noqa: ASYNC910 - what is shown is at hand

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from examples.server.docs_page import docs
from examples.server.guard import Guard
from examples.server.metrics import exposition
from examples.server.pages import HEADERS, load_assets, page
from examples.server.schemas import Schema
from examples.server.status import Status
from examples.server.status_stream import StatusStreams
from kvlanes.engine import MetricsExtraMissing
from kvlanes.engine.decisions import DecisionError, Fault
from kvlanes.engine.http import HttpRequest, HttpResponse

Handler: TypeAlias = Callable[[HttpRequest, str], Awaitable[HttpResponse]]

NO_METRICS = Fault("not_found", "metrics need the extra: pip install 'kvlanes[metrics]'", 404, 404)
STREAMS_BUSY = Fault("server_error", "too many pages are open", 503, 503)


class Admin:
    """What only the operator should see; every handler asks the guard first.

    Attributes:
        routes: By path; all are read only.
    """

    def __init__(self, guard: Guard, status: Status, document: Schema) -> None:
        self._guard = guard
        self._status = status
        self._streams = StatusStreams(status.told)
        self.routes: dict[str, Handler] = {
            **{path: self._shown(asset) for path, asset in load_assets().items()},
            "/docs": self._shown(docs(document)),
            "/status": self._tell,
            "/status/stream": self._follow,
            "/metrics": self._measure,
        }

    def _shown(self, response: HttpResponse) -> Handler:
        async def show(request: HttpRequest, request_id: str) -> HttpResponse:
            self._guard.judge(request)
            return response

        return show

    async def _tell(self, request: HttpRequest, request_id: str) -> HttpResponse:
        self._guard.judge(request)
        return page(self._status.told(), "application/json")

    async def _measure(self, request: HttpRequest, request_id: str) -> HttpResponse:
        self._guard.judge(request)
        try:
            text, media_type = exposition(self._status.engines())
        except MetricsExtraMissing as error:
            raise DecisionError(NO_METRICS) from error
        return page(text, media_type)

    async def _follow(self, request: HttpRequest, request_id: str) -> HttpResponse:
        self._guard.judge(request)
        if self._streams.full:
            raise DecisionError(STREAMS_BUSY)
        return HttpResponse(
            200, headers=HEADERS, content_type="text/event-stream", stream=self._streams.run
        )
