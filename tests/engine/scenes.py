"""Short words for engine tests: an engine whose books are recounted after every step."""

# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to be dispatched

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kvlanes.engine import (
    AdmissionGate,
    Engine,
    EngineConfig,
    IndexBackend,
    NoEligibleWorker,
    Prompt,
    Route,
    Worker,
)
from kvlanes.engine.testing import checked_engine
from tests.indexer.chains import packed

BLOCK = 16
ABC = (Worker("a"), Worker("b"), Worker("c"))
ABCD = (*ABC, Worker("d"))


def config(**settings: object) -> EngineConfig:
    return EngineConfig.from_mapping({"block_size": BLOCK, **settings})


def chain(*blocks: int) -> Prompt:
    """A prompt made of these block hashes."""
    return Prompt.from_blocks(packed(blocks), BLOCK)


def conversation(name: int, blocks: int = 4) -> Prompt:
    """A prompt that shares no block with one of another name."""
    return chain(*(name * 1000 + block for block in range(blocks)))


@asynccontextmanager
async def running(
    *workers: Worker,
    gate: AdmissionGate | None = None,
    make_index: Callable[[], IndexBackend] | None = None,
    **settings: object,
) -> AsyncIterator[Engine]:
    """An engine with these workers; it must end with every book at zero."""
    checked = checked_engine(config(**settings), gate=gate, make_index=make_index)
    async with checked as engine:
        engine.register(*workers)
        yield engine


def load(engine: Engine, worker: str) -> int:
    """Requests that run on a worker, all ranks."""
    rows = engine.statistics().ranks
    return sum(row.requests for row in rows if row.rank.split(":")[0] == worker)


def held(engine: Engine, prompt: Prompt) -> dict[str, int]:
    """Blocks of the prompt that each rank holds."""
    scores = engine.lanes.overlap(prompt).scores()
    return {str(rank): blocks for rank, blocks in scores.items()}


def chosen(engine: Engine, prompt: Prompt) -> str:
    try:
        return engine.probe(prompt).worker
    except NoEligibleWorker:
        return "nobody"


async def answer(route: Route) -> str:
    """Work that succeeds at once."""
    return f"{route.worker} answered"


async def serve(engine: Engine, prompt: Prompt, **wishes: object) -> str:
    """One whole request; returns who served it."""
    async with engine.request() as request:
        reservation = request.route(prompt, **wishes)  # type: ignore[arg-type]
        (await reservation.dispatch(answer, reservation.route)).unwrap()
        return reservation.route.worker
