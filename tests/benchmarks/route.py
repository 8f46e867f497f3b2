"""What a routing decision costs beside the reference router: `python -m tests.benchmarks.route`.

Both sides run in this process and do whole decisions through their public API. The reference runs
on asyncio and hands each call to threads of its own; an empty call of it is printed beside, so that
a reader sees how much of a ratio is its binding. Targets T8 and T4: a ratio counts as reached from
0.8 of its target, as the median of the runs.
"""

# flake8: noqa: ASYNC900 - the reference wants an asynchronous generator

import asyncio
import contextlib
import math
import os
import statistics
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

os.environ["DYN_LOG"] = "error"  # before the reference is imported

import attrs
import trio
from dynamo import _core as dynamo

from kvlanes.engine import Engine, EngineConfig, Lease, Request, Store, Worker, open_engine

RUNS = 5
ROUNDS = 8  # of which the best counts, on both sides: other programs only ever add time
BLOCK = 16
REACHED = 0.8  # share of a target

GUESS = Lease()

Tokens = Sequence[int]


@attrs.frozen
class Line:
    """One comparison, in microseconds a decision.

    Attributes:
        name: What is compared.
        target: How many times faster than the reference.
        ours: Runs one round; returns seconds a decision.
        theirs: The same for the reference.
        empty: The same for the reference's cheapest call of this kind.
    """

    name: str
    target: float
    ours: Callable[[], float]
    theirs: Callable[[], float]
    empty: Callable[[], float]


def prompts(tokens: int) -> list[list[int]]:
    """24 conversations, asked ten times in turn: they differ from their first token on."""
    return [list(range(10_000 * number, 10_000 * number + tokens)) for number in range(24)] * 10


# -- ours


Step = Callable[[Engine, Request, Tokens], None]


def ours(workers: int, asked: Sequence[Tokens], step: Step) -> float:
    """Seconds a decision, best of `ROUNDS`, in an engine with so many workers."""

    async def main() -> float:
        async with open_engine(EngineConfig(block_size=BLOCK)) as engine:
            engine.register(*(Worker(f"w{number}") for number in range(workers)))
            with engine.request_nowait(seconds=math.inf) as request:
                return min(_timed(engine, request, asked, step) for _ in range(ROUNDS))

    return trio.run(main)


def _timed(engine: Engine, request: Request, asked: Sequence[Tokens], step: Step) -> float:
    began = time.perf_counter()
    for tokens in asked:
        step(engine, request, tokens)
    return (time.perf_counter() - began) / len(asked)


def reserve_and_release(engine: Engine, request: Request, tokens: Tokens) -> None:
    request.route(tokens).close()


def decide_and_note(engine: Engine, request: Request, tokens: Tokens) -> None:
    """What the reference's router does in one call: decide, and note who will hold the prompt."""
    prompt = engine.prompt(tokens)
    route = engine.probe(prompt)
    engine.lanes.apply_nowait(Store(route.rank, None, prompt.blocks, lease=GUESS))


# -- the reference


class Reference:
    """The reference's services, on one asyncio loop that lives as long as the benchmark."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._services: dict[int, Any] = {}
        self._routers: Any = None

    def timed(self, count: int, call: Callable[[int], Awaitable[object]]) -> float:
        """Seconds a call, best of `ROUNDS`."""

        async def main() -> float:
            rounds = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                for number in range(count):
                    await call(number)
                rounds.append((time.perf_counter() - began) / count)
            return min(rounds)

        seconds: float = self.run(main())
        return seconds

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def selection(self, workers: int) -> Any:
        """A selection service with so many schedulable workers."""
        if workers not in self._services:
            self._services[workers] = self.run(_selection_service(workers))
        return self._services[workers]

    def router(self) -> Any:
        if self._routers is None:
            self._routers = self.run(_kv_router())
        return self._routers[0]

    def reserve_and_release(self, workers: int, asked: Sequence[Tokens]) -> float:
        service = self.selection(workers)

        async def call(number: int) -> None:
            body = {"model_name": "m", "token_ids": asked[number], "selection_id": f"s{number}"}
            await service.select_and_reserve(body)
            await service.free_reservation(f"s{number}")

        return self.timed(len(asked), call)

    def select_nothing(self, workers: int, count: int) -> float:
        service = self.selection(workers)
        body = {"model_name": "m", "token_ids": []}
        return self.timed(count, lambda _: service.overlap_scores(body))

    def best_worker(self, asked: Sequence[Tokens]) -> float:
        router = self.router()
        return self.timed(
            len(asked), lambda number: router.best_worker(asked[number], update_indexer=True)
        )

    def best_worker_for_nothing(self, count: int) -> float:
        router = self.router()
        return self.timed(count, lambda _: router.get_potential_loads([1]))


async def _selection_service(workers: int) -> Any:
    service = dynamo.SelectionService()
    for number in range(workers):
        await service.upsert_worker(
            {
                "worker_id": number,
                "model_name": "m",
                "block_size": BLOCK,
                "endpoint": f"http://127.0.0.1:{9000 + number}",
                # It wants a feed of each worker before it schedules it; nobody publishes there.
                "kv_events_endpoint": f"tcp://127.0.0.1:{40_000 + number}",
            }
        )
    assert service.ready()["schedulable_workers"] == workers
    return service


async def _kv_router() -> Any:
    loop = asyncio.get_running_loop()
    runtime = dynamo.DistributedRuntime(loop, "mem", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint("bench.worker.generate")

    async def handler(request: object, context: object = None) -> Any:
        yield {}

    serving = asyncio.ensure_future(endpoint.serve_endpoint(handler))
    settings = dynamo.ModelRuntimeConfig()
    settings.total_kv_blocks = 1_000_000
    await dynamo.register_model(
        dynamo.ModelInput.Tokens,
        dynamo.ModelType.Chat,
        endpoint,
        "/tmp",
        model_name="m",
        kv_cache_block_size=BLOCK,
        runtime_config=settings,
        worker_type=dynamo.WorkerType.Aggregated,
        skip_model_assets=True,
    )
    router = dynamo.KvRouter(endpoint, BLOCK, dynamo.KvRouterConfig(use_kv_events=False))
    for _ in range(100):  # it learns of the worker in its own time
        with contextlib.suppress(Exception):
            await router.best_worker([1] * BLOCK)
            break
        await asyncio.sleep(0.1)
    return router, runtime, serving  # the router needs the others, and keeps neither alive


def lines(reference: Reference) -> list[Line]:
    """T8 by workers, T4 by blocks."""
    return [
        *(_reserving(reference, workers, target) for workers, target in T8),
        *(_deciding(reference, blocks, as_buffer, target) for blocks, as_buffer, target in T4),
    ]


T8 = ((8, 10.0), (64, 5.0), (512, 2.0))  # workers, target
T4 = ((1, False, 15.0), (16, False, 8.0), (128, False, 3.5), (128, True, 6.0))


def _reserving(reference: Reference, workers: int, target: float) -> Line:
    asked = prompts(1024)
    return Line(
        f"T8 route + reserve + release, {workers} workers",
        target,
        lambda: ours(workers, asked, reserve_and_release),
        lambda: reference.reserve_and_release(workers, asked),
        lambda: reference.select_nothing(workers, 200),
    )


def _deciding(reference: Reference, blocks: int, as_buffer: bool, target: float) -> Line:
    listed = prompts(blocks * BLOCK)
    asked: list[Any] = (
        [array("I", tokens) for tokens in listed[:24]] * 10 if as_buffer else [*listed]
    )
    return Line(
        f"T4 decide + note, {blocks} blocks from a {'buffer' if as_buffer else 'list'}",
        target,
        lambda: ours(1, asked, decide_and_note),
        lambda: reference.best_worker(listed),
        lambda: reference.best_worker_for_nothing(200),
    )


def main() -> int:
    """Print one line a target; 1 when one is missed."""
    reference = Reference()
    missed = 0
    for line in lines(reference):
        rounds = [(line.ours(), line.theirs(), line.empty()) for _ in range(RUNS)]
        mine, theirs, empty = (1e6 * statistics.median(column) for column in zip(*rounds))
        ratio = statistics.median(b / a for a, b, _ in rounds)
        reached = ratio >= REACHED * line.target
        missed += not reached
        print(
            f"{line.name:42} {mine:7.1f} us   reference {theirs:7.1f} us "
            f"(empty call {empty:5.1f})   {ratio:5.1f}x of {line.target}x   "
            f"{'ok' if reached else 'LOST'}",
            flush=True,
        )
    return min(missed, 1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the reference's threads do not end by themselves
