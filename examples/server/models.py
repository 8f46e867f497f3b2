"""The models of this server: each an engine with simulated workers of its own."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import attrs

from examples.server.behaviour import Behaviour
from examples.server.settings import Settings
from examples.server.tokens import tokenize
from examples.server.workers import PrefixCache, SimulatedWorker
from kvlanes.engine import AdmissionGate, Engine, EngineConfig, Prompt, Worker, open_engine
from kvlanes.engine.decisions import Branch, Decision, DecisionLimits, plan


@attrs.frozen
class Prepared:
    """One branch, ready to be routed and sent."""

    branch: Branch
    prompt: Prompt


@attrs.frozen(eq=False)
class Model:
    """One model: who serves it and how its prompts are prepared."""

    name: str
    behaviour: Behaviour
    engine: Engine
    workers: Mapping[str, SimulatedWorker]

    def prepare(
        self, decision: Decision, namespace: str, limits: DecisionLimits
    ) -> tuple[Prepared, ...]:
        """Render, tokenise and hash every branch. Blocking: runs in a preflight thread.

        Raises:
            DecisionError: See `plan`.
        """
        time.sleep(self.behaviour.preflight)
        return tuple(
            Prepared(branch, self.engine.prompt(branch.tokens, namespace=namespace))
            for branch in plan(decision, tokenize, limits)
        )


@asynccontextmanager
async def open_models(
    settings: Settings, gate: AdmissionGate
) -> AsyncIterator[Mapping[str, Model]]:
    """Run every model for as long as the block; all share one gate, and so the permits."""
    async with AsyncExitStack() as stack:
        models: dict[str, Model] = {}
        for name, behaviour in settings.mocks.items():
            engine = await stack.enter_async_context(open_engine(_config(settings), gate=gate))
            models[name] = _model(name, behaviour, engine, settings)
        yield models


def _config(settings: Settings) -> EngineConfig:
    return EngineConfig(
        block_size=settings.block_size,
        request_seconds=settings.deadline,
        grace_seconds=settings.grace,
        close_seconds=settings.grace,  # by then the HTTP part has waited for every request
    )


def _model(name: str, behaviour: Behaviour, engine: Engine, settings: Settings) -> Model:
    names = () if behaviour.down else tuple(f"w{i}" for i in range(settings.workers))
    engine.register(*(Worker(worker, capacity_blocks=settings.cache_blocks) for worker in names))
    caches = {worker: PrefixCache(settings.cache_blocks, settings.block_size) for worker in names}
    workers = {worker: SimulatedWorker(name, behaviour, caches[worker]) for worker in names}
    return Model(name, behaviour, engine, workers)
