"""The routes: from a request to the response that its contract promises."""
# flake8: noqa: ASYNC910 - a request that needs no waiting is answered at once

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from traceback import format_tb
from typing import TypeAlias

import attrs
import trio

from examples.server.access_log import AccessLog
from examples.server.admin import Admin
from examples.server.execution import Execution, Outcome
from examples.server.models import Model
from examples.server.schemas import Schema
from examples.server.status import Status
from examples.server.tenants import Tenants, bearer
from kvlanes.engine.decisions import (
    BODIES_BUSY,
    BODY_BROKEN,
    BODY_LATE,
    BODY_TOO_LARGE,
    CRASH,
    ENCODING,
    MEDIA_TYPE,
    METHOD,
    MODEL_UNKNOWN,
    NOT_FOUND,
    STOPPING,
    UNAUTHORIZED,
    Contract,
    Decision,
    DecisionError,
    Fault,
    Json,
    Reply,
    dump_json,
    error_reply,
    parse_decision,
)
from kvlanes.engine.http import (
    BodiesBusy,
    BodyBroken,
    BodyLate,
    BodyTooLarge,
    EncodingUnknown,
    HttpError,
    HttpRequest,
    HttpResponse,
)

_log = logging.getLogger("examples.server")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")  # visible ASCII
_THREADED_BYTES = 256 * 1024  # larger bodies are parsed in a thread: about 5 ms each
_RELEASED = "2026-11-29"
_CREATED = 1795910400  # the same day, in seconds since 1970

_BODY_FAULTS: dict[type[HttpError], Fault] = {
    BodyLate: BODY_LATE,
    BodyTooLarge: BODY_TOO_LARGE,
    BodyBroken: BODY_BROKEN,
    EncodingUnknown: ENCODING,
    BodiesBusy: BODIES_BUSY,
}
# What the HTTP part answers by itself, in the words of the table.
_STATUS_FAULTS = {408: BODY_LATE, 413: BODY_TOO_LARGE, 500: CRASH, 503: STOPPING}

_OPEN_PATHS = ("/healthz", "/readyz")  # no key, as nobody gives a probe one

Route: TypeAlias = Callable[[HttpRequest, str], Awaitable[Reply | HttpResponse]]


class App:
    """All routes of one server. Its state is that of the models.

    Args:
        models: By name.
        aliases: Further names of models.
        execution: How decisions are executed.
        tenants: Who may ask, and what they share.
        admin: The operator's routes.
        status: Who is ready.
        document: The OpenAPI document.
        access_log: Writes a line a request.
        show_route: Whether answers say which worker was chosen; for loopback only, since it
            tells one tenant about the traffic of others.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        aliases: Mapping[str, str],
        execution: Execution,
        tenants: Tenants,
        admin: Admin,
        status: Status,
        document: Schema,
        access_log: AccessLog,
        *,
        show_route: bool,
    ) -> None:
        self._models = {**models, **{name: models[model] for name, model in aliases.items()}}
        self._execution = execution
        self._tenants = tenants
        self._admin = admin
        self._status = status
        self._document = dump_json(document)
        self._access_log = access_log
        self._show_route = show_route
        self._serial = count(1)
        self._routes: dict[str, dict[str, Route]] = {
            "/v1/decisions": {"POST": partial(self._decide, Contract.DECISIONS)},
            "/v1/systemone": {"POST": partial(self._decide, Contract.SYSTEMONE)},
            "/v1/models": {"GET": self._list_models, "HEAD": self._list_models},
            "/healthz": {"GET": self._health, "HEAD": self._health},
            "/readyz": {"GET": self._ready, "HEAD": self._ready},
            "/openapi.json": {"GET": self._describe, "HEAD": self._describe},
            **{path: {"GET": route, "HEAD": route} for path, route in admin.routes.items()},
        }

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """The response to one request; errors too are in the words of its contract."""
        request_id = _request_id(request.header("x-request-id"))
        with self._access_log.line(request, request_id, request.path in self._routes) as line:
            line.response = await self._answered(request, request_id)
            return line.response

    async def _answered(self, request: HttpRequest, request_id: str) -> HttpResponse:
        contract = _contract(request.path)
        try:
            route = self._route(request)
            given = await route(request, request_id)
        except DecisionError as error:
            given = _refused(contract, error.fault, self._extra(error.fault, request.path))
        except Exception as error:
            # The kind and the place, never the text: it may quote a prompt.
            place = "".join(format_tb(error.__traceback__))
            _log.error("request %s crashed: %s\n%s", request_id, type(error).__name__, place)
            given = error_reply(contract, CRASH)
        return _response(given, request_id)

    def refuse(self, status: int) -> HttpResponse:
        """What the HTTP part answers by itself, before or instead of `handle`."""
        unreadable = Fault("invalid_request_error", "request cannot be read", status, status)
        fault = _STATUS_FAULTS.get(status, unreadable)
        return _response(error_reply(Contract.DECISIONS, fault), _request_id(None))

    def _route(self, request: HttpRequest) -> Route:
        methods = self._routes.get(request.path)
        if methods is None:
            raise DecisionError(NOT_FOUND)
        if request.method not in methods:
            raise DecisionError(METHOD)
        # The operator's routes have a guard of their own.
        exempt = request.path in _OPEN_PATHS or request.path in self._admin.routes
        if not exempt and not self._tenants.admits(_key(request)):
            raise DecisionError(UNAUTHORIZED)
        return methods[request.method]

    def _extra(self, fault: Fault, path: str) -> tuple[tuple[str, str], ...]:
        """Headers that a refusal owes to its path."""
        if fault == METHOD:
            return (("allow", ", ".join(self._routes[path])),)
        if fault == UNAUTHORIZED:
            # A browser asks for a password; a program sends a key.
            scheme = 'Basic realm="kvlanes"' if path in self._admin.routes else "Bearer"
            return (("www-authenticate", scheme),)
        return ()

    async def _decide(self, contract: Contract, request: HttpRequest, request_id: str) -> Reply:
        body = await _body(request)
        decision = await self._parsed(contract, body)
        model = self._models.get(decision.model)
        if model is None:
            raise DecisionError(MODEL_UNKNOWN)
        namespace = self._tenants.namespace(_key(request), decision)
        # A client may send one id with many requests, and permits that share an id count as one
        # request: only with a number of our own is it unique.
        unique = f"{request_id}#{next(self._serial)}"
        outcome = await self._execution.run(model, decision, namespace, unique, body)
        given = outcome.reply
        headers = (("x-kvlanes-decisions-version", "1"), *self._routed(outcome))
        return Reply(given.status, given.body, (*given.headers, *headers))

    async def _parsed(self, contract: Contract, body: bytes) -> Decision:
        limits = self._execution.limits
        if len(body) < _THREADED_BYTES:
            return parse_decision(contract, body, limits)
        return await trio.to_thread.run_sync(parse_decision, contract, body, limits)

    def _routed(self, outcome: Outcome) -> tuple[tuple[str, str], ...]:
        if not self._show_route:
            return ()
        route = outcome.route
        said = f"{route.worker}; blocks={route.overlap}/{route.blocks}; source={route.source}"
        return (("x-kvlanes-route", said),)

    async def _list_models(self, request: HttpRequest, request_id: str) -> Reply:
        """One body for both clients: each reads its own key of it."""
        entries: list[Json] = [
            {"id": name, "object": "model", "created": _CREATED, "owned_by": "kvlanes"}
            for name in self._models
        ]
        described: list[Json] = [
            {"name": name, "description": model.description, "release_date": _RELEASED}
            for name, model in self._models.items()
        ]
        return Reply(200, dump_json({"object": "list", "data": entries, "models": described}))

    async def _health(self, request: HttpRequest, request_id: str) -> Reply:
        workers: Json = {name: len(model.workers) for name, model in self._models.items()}
        return Reply(200, dump_json({"status": "ok", "workers": workers}))

    async def _ready(self, request: HttpRequest, request_id: str) -> Reply:
        ready, told = self._status.readiness()
        return Reply(200 if ready else 503, dump_json(told))

    async def _describe(self, request: HttpRequest, request_id: str) -> Reply:
        return Reply(200, self._document)


async def _body(request: HttpRequest) -> bytes:
    try:
        body = await request.read()
    except HttpError as error:
        raise DecisionError(_BODY_FAULTS[type(error)]) from error
    media_type = (request.header("content-type") or "").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise DecisionError(MEDIA_TYPE)
    return body


def _key(request: HttpRequest) -> str:
    return bearer(request.header("authorization"))


def _request_id(given: str | None) -> str:
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"req_{secrets.token_hex(12)}"


def _contract(path: str) -> Contract:
    return Contract.SYSTEMONE if path == "/v1/systemone" else Contract.DECISIONS


def _refused(contract: Contract, fault: Fault, extra: tuple[tuple[str, str], ...]) -> Reply:
    given = error_reply(contract, fault)
    return Reply(given.status, given.body, (*given.headers, *extra))


def _response(given: Reply | HttpResponse, request_id: str) -> HttpResponse:
    ids = (("x-request-id", request_id), ("x-typesafe-request-id", request_id))
    if isinstance(given, HttpResponse):
        return attrs.evolve(given, headers=(*ids, *given.headers))
    return HttpResponse(given.status, given.body, (*ids, *given.headers))
