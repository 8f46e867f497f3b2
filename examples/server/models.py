"""The models of this server: each an engine with simulated or real workers of its own."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeAlias

import attrs

from examples.server.behaviour import Behaviour
from examples.server.plans import Plan, Prepared
from examples.server.settings import Settings
from examples.server.status import IndexWatch
from examples.server.tokens import tokenize
from examples.server.upstream import Upstream
from examples.server.upstream_fleet import open_fleet
from examples.server.workers import PrefixCache, SimulatedWorker
from kvlanes.engine import AdmissionGate, Engine, EngineConfig, Worker, open_engine
from kvlanes.engine.decisions import (
    Contract,
    Decision,
    DecisionLimits,
    candidates,
    plan,
    unsupported,
)

Prepare: TypeAlias = Callable[[Decision, str, DecisionLimits, bytes], Plan]


@attrs.frozen(eq=False)
class Model:
    """One model: who serves it and how its requests are prepared.

    Attributes:
        name: As clients ask for it.
        description: For people.
        engine: Routes its requests.
        index: What its engine knows of caches.
        workers: By name.
        prepare: From a decision, its namespace, the limits and the body to a plan. Blocking:
            runs in a preflight thread.
        scores: Whether it can answer decisions at all.
    """

    name: str
    description: str
    engine: Engine
    index: IndexWatch
    workers: Mapping[str, SimulatedWorker | Upstream]
    prepare: Prepare
    scores: bool = True

    def misfits(self, decision: Decision, plan: Plan) -> tuple[str, ...]:
        """Workers that cannot take this request; the others may.

        Raises:
            DecisionError: None of them can (`unsupported_capability`).
        """
        labels = max(map(candidates, decision.questions))
        found = {
            name: why
            for name, worker in self.workers.items()
            if (why := _misfit(worker, decision.contract, labels, plan)) is not None
        }
        if found and len(found) == len(self.workers):
            raise unsupported(next(iter(found.values())))
        return tuple(found)


def _misfit(
    worker: SimulatedWorker | Upstream, contract: Contract, labels: int, plan: Plan
) -> str | None:
    if isinstance(worker, SimulatedWorker):
        return None
    return worker.abilities.misfit(contract, labels, tokenized=plan.tokenized)


@asynccontextmanager
async def open_models(
    settings: Settings, gate: AdmissionGate
) -> AsyncIterator[Mapping[str, Model]]:
    """Run every model for as long as the block; all share one gate, and so the permits.

    Raises:
        ConfigError: A real worker cannot be used; the message says why.
    """
    async with AsyncExitStack() as stack:
        models: dict[str, Model] = {}
        for name in (*settings.mocks, *settings.upstreams):
            index = IndexWatch(settings.block_size)
            engine = await stack.enter_async_context(
                open_engine(_config(settings), gate=gate, make_index=index)
            )
            if name in settings.mocks:
                models[name] = _simulated(name, engine, index, settings)
            else:
                models[name] = await _real(name, engine, index, settings, stack)
        yield models


def _config(settings: Settings) -> EngineConfig:
    return EngineConfig(
        block_size=settings.block_size,
        request_seconds=settings.deadline,
        grace_seconds=settings.grace,
        close_seconds=settings.grace,  # by then the HTTP part has waited for every request
    )


def _simulated(name: str, engine: Engine, index: IndexWatch, settings: Settings) -> Model:
    behaviour = settings.mocks[name]
    names = () if behaviour.down else tuple(f"w{i}" for i in range(settings.workers))
    engine.register(*(Worker(worker, capacity_blocks=settings.cache_blocks) for worker in names))
    caches = {worker: PrefixCache(settings.cache_blocks, settings.block_size) for worker in names}
    workers = {worker: SimulatedWorker(name, behaviour, caches[worker]) for worker in names}
    prepare = partial(_prepare, engine, behaviour)
    scores = not behaviour.mute
    return Model(name, "Simulated model.", engine, index, workers, prepare, scores)


async def _real(
    name: str, engine: Engine, index: IndexWatch, settings: Settings, stack: AsyncExitStack
) -> Model:
    fleet = await stack.enter_async_context(
        open_fleet(
            settings.upstreams[name],
            engine,
            tokenizer=settings.tokenizers.get(name),
            # Tenants with keys of their own must not see in the time of an answer what others
            # asked, so their prefixes must not be shared on the worker either.
            isolate=len(settings.api_keys) > 1 and settings.cache_scope != "server",
        )
    )
    return Model(name, "Model on real engines.", engine, index, fleet.workers, fleet.prepare)


def _prepare(
    engine: Engine,
    behaviour: Behaviour,
    decision: Decision,
    namespace: str,
    limits: DecisionLimits,
    body: bytes,
) -> Plan:
    time.sleep(behaviour.preflight)
    branches = plan(decision, tokenize, limits)
    prompts = (engine.prompt(branch.tokens, namespace=namespace) for branch in branches)
    return Plan(tuple(map(Prepared, branches, prompts)))
