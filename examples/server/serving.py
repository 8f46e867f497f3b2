"""Opening the whole server, and closing it in order."""

from collections.abc import Sequence
from functools import partial

import trio

from examples.server.app import App
from examples.server.execution import Execution
from examples.server.models import open_models
from examples.server.settings import Settings
from examples.server.tenants import Tenants
from kvlanes.engine import AdmissionGate
from kvlanes.engine.decisions import DecisionLimits
from kvlanes.engine.http import HttpLimits, serve_http


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
    gate = AdmissionGate(settings.permits, preflight_slots=settings.preflight_slots)
    async with open_models(settings, gate) as models, trio.open_nursery() as nursery:
        app = App(
            models,
            settings.aliases,
            _execution(settings),
            Tenants.make(settings.cache_scope, settings.api_keys),
            show_route=settings.loopback,
        )
        listeners = await trio.open_tcp_listeners(settings.port, host=settings.host)
        nursery.start_soon(_refuse_when, stopping, gate)
        server = partial(
            serve_http, limits=_http_limits(settings), refuse=app.refuse, stopping=stopping
        )
        task_status.started(await nursery.start(server, app.handle, listeners))


async def _refuse_when(stopping: trio.Event, gate: AdmissionGate) -> None:
    await stopping.wait()
    gate.close()


def _execution(settings: Settings) -> Execution:
    return Execution(
        DecisionLimits(
            questions=settings.max_questions,
            input_tokens=settings.max_input_tokens,
            context_tokens=settings.max_input_tokens,
        ),
        settings.max_candidates,
        settings.fanout,
        settings.preflight_slots,
    )


def _http_limits(settings: Settings) -> HttpLimits:
    return HttpLimits(
        body_bytes=settings.max_body,
        body_seconds=settings.body_timeout,
        stop_seconds=settings.stop_seconds,
        cut_seconds=settings.grace + 1.0,  # a cancelled request drains its work for the grace
    )
