"""Opening an engine, and the one order in which it closes."""
# flake8: noqa: ASYNC102 - `_close` sets the bounds of what it awaits

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.admission import AdmissionGate
from kvlanes.engine._config import EngineConfig
from kvlanes.engine._engine import Engine
from kvlanes.engine._errors import EngineClosed
from kvlanes.indexer import BlockSizeMismatch, IndexBackend, RadixIndex
from kvlanes.nursery import open_bare_nursery, open_lanes

# What an engine makes its own gate from.
GATE_SETTINGS = (
    "permits",
    "preflight_slots",
    "admission_queue",
    "admission_overtake",
    "group_limit",
)

logger = logging.getLogger("kvlanes.engine")


@asynccontextmanager
@enable_ki_protection
async def open_engine(
    config: EngineConfig,
    *,
    gate: AdmissionGate | None = None,
    make_index: Callable[[], IndexBackend] | None = None,
) -> AsyncIterator[Engine]:
    """Run an engine for as long as the `async with` block.

    Leaving stops admission, waits at most `close_seconds` for what runs, ends the rest as
    `Failed(EngineClosed())`, waits the grace, and drains the lanes within their bound. A host
    that is cancelled itself waits for nothing but the grace. Trio cannot abandon a task: work
    that ignores its cancellation keeps the block open, and a log line says who holds what.
    A single error of the block leaves as itself.

    Args:
        config: Checked when it was made.
        gate: One to share with other engines; whoever made it closes it. Without one the engine
            makes its own of `config.permits`.
        make_index: Another index than a `RadixIndex`; called again after a crash of the index.

    Raises:
        TypeError: No configuration, no gate, or `make_index` makes no index.
        ConfigError: `config` sets what `gate` or `make_index` decides instead.
        BlockSizeMismatch: The index has blocks of another size.
    """
    if not isinstance(config, EngineConfig):
        raise TypeError(f"config must be an EngineConfig, got {config!r}")
    if gate is not None:
        if not isinstance(gate, AdmissionGate):
            raise TypeError(f"gate must be an AdmissionGate, got {gate!r}")
        config.refuse_settings(GATE_SETTINGS, "the gate that was given decides")
    if make_index is not None:
        config.refuse_settings(("index_budget_blocks",), "the index that was given decides")
    async with (
        open_lanes(
            make_index or partial(_radix_index, config),
            lanes=config.lanes,
            queue_capacity=config.lane_queue,
            ttl_seconds=config.ttl_seconds,
        ) as lanes,
        open_bare_nursery() as nursery,
    ):
        if lanes.block_size != config.block_size:
            raise BlockSizeMismatch(lanes.block_size, config.block_size, "the index")
        # A gate that engines share tells their requests apart in its statistics.
        prefix = "r" if gate is None else f"{secrets.token_hex(4)}-"
        engine = Engine(config, gate or _own_gate(config), lanes, nursery, id_prefix=prefix)
        try:
            yield engine
        finally:
            await _close(engine, owns_gate=gate is None)


def _radix_index(config: EngineConfig) -> IndexBackend:
    return RadixIndex(config.block_size, budget_blocks=config.index_budget_blocks)


def _own_gate(config: EngineConfig) -> AdmissionGate:
    return AdmissionGate(
        config.permits,
        queue_limit=config.admission_queue,
        overtake=config.admission_overtake,
        preflight_slots=config.preflight_slots,
        group_limit=config.group_limit,
    )


@enable_ki_protection
async def _close(engine: Engine, *, owns_gate: bool) -> None:
    engine._refuse_new()
    if owns_gate:
        engine.gate.close()
    grace_seconds = engine.config.grace_seconds
    try:
        with trio.move_on_after(engine.config.close_seconds):
            await _quiet(engine, owns_gate)
    finally:
        engine.ending.end(lambda: EngineClosed("the engine closed before the work had ended"))
        with trio.CancelScope(shield=True, relative_deadline=grace_seconds):
            await _quiet(engine, owns_gate)
        while engine.dispatched or engine._feeding.tasks.value:
            _report(engine)
            with trio.CancelScope(shield=True, relative_deadline=max(grace_seconds, 1.0)):
                await engine.wait_quiet()
                await engine._feeding.tasks.wait_value(0)
        if owns_gate and engine.gate.statistics().held:
            _report(engine)  # threads: nothing waits for them, their permits die with the engine


async def _quiet(engine: Engine, owns_gate: bool) -> None:
    await engine.wait_quiet()
    if owns_gate:
        await engine.gate.wait_idle()


def _report(engine: Engine) -> None:
    holders = engine.gate.statistics().requests
    listed = ", ".join(f"{h.request_id} ({h.weight}, {'/'.join(h.doing)})" for h in holders)
    if listed:
        logger.warning("closing the engine: still held by %s", listed)
    if sources := engine._feeding.running():
        named = ", ".join(sources)
        logger.warning("closing the engine: the event sources of %s have not ended", named)
