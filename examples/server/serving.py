"""Opening the whole server, and closing it in order."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from examples.server.access_log import AccessLog
from examples.server.admin import Admin
from examples.server.app import App
from examples.server.execution import Execution
from examples.server.guard import Guard
from examples.server.models import Model, open_models
from examples.server.openapi import document
from examples.server.schemas import Bounds, Schema
from examples.server.settings import Settings
from examples.server.status import Recent, Status
from examples.server.tenants import Tenants
from kvlanes.engine import AdmissionGate
from kvlanes.engine.decisions import DecisionLimits
from kvlanes.engine.http import HttpLimits, serve_http

_log = logging.getLogger("examples.server")


async def serve(
    settings: Settings,
    stopping: trio.Event,
    *,
    task_status: trio.TaskStatus[Sequence[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping` is set and every accepted request was answered or refused.

    Always a checkpoint.

    Args:
        settings: What to serve, and where.
        stopping: Set it to stop; new decisions are refused from then on.
        task_status: `nursery.start` returns the open listeners.

    Raises:
        OSError: The address cannot be bound.
    """
    async with open_app(settings) as (app, gate), trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(settings.port, host=settings.host)
        nursery.start_soon(_refuse_when, stopping, gate)
        server = partial(
            serve_http, limits=_http_limits(settings), refuse=app.refuse, stopping=stopping
        )
        task_status.started(await nursery.start(server, app.handle, listeners))


@asynccontextmanager
async def open_app(settings: Settings) -> AsyncIterator[tuple[App, AdmissionGate]]:
    """Everything but the listening: `App.handle` answers requests however they come in.

    Closing the gate refuses new decisions by name.
    """
    async with _open_gate(settings) as gate, open_models(settings, gate) as models:
        yield _app(settings, gate, models), gate


@asynccontextmanager
async def _open_gate(settings: Settings) -> AsyncIterator[AdmissionGate]:
    """The gate of all models. At the end, threads that outlived their requests are waited for."""
    gate = AdmissionGate(settings.permits, preflight_slots=settings.preflight_slots)
    try:
        yield gate
    finally:
        gate.close()
        with trio.CancelScope(shield=True, relative_deadline=settings.stop_seconds) as scope:
            await gate.wait_idle()
        if scope.cancelled_caught:
            _log.warning("stopping with %s permits still held", gate.statistics().held)


def _app(settings: Settings, gate: AdmissionGate, models: Mapping[str, Model]) -> App:
    recent = Recent()
    status = Status(gate, models, recent)
    described = _document(settings, models)
    return App(
        models,
        settings.aliases,
        _execution(settings, recent),
        Tenants.make(settings.cache_scope, settings.api_keys),
        Admin(Guard(settings.admin_key, settings.loopback), status, described),
        status,
        described,
        AccessLog(settings.access_log),
        show_route=settings.loopback,
    )


def _document(settings: Settings, models: Mapping[str, Model]) -> Schema:
    bounds = Bounds(
        (*models, *settings.aliases),
        min(settings.max_questions, settings.permits),
        settings.max_candidates,
    )
    return document(bounds, keys=bool(settings.api_keys))


async def _refuse_when(stopping: trio.Event, gate: AdmissionGate) -> None:
    await stopping.wait()
    gate.close()


def _execution(settings: Settings, recent: Recent) -> Execution:
    return Execution(
        DecisionLimits(
            questions=settings.max_questions,
            input_tokens=settings.max_input_tokens,
            context_tokens=settings.max_input_tokens + 1,  # so that the limit above decides
        ),
        settings.max_candidates,
        settings.fanout,
        recent,
    )


def _http_limits(settings: Settings) -> HttpLimits:
    return HttpLimits(
        body_bytes=settings.max_body,
        body_seconds=settings.body_timeout,
        stop_seconds=settings.stop_seconds,
        cut_seconds=settings.grace + 1.0,  # a cancelled request drains its work for the grace
    )
