"""Random lives of requests and workers, the same for the same seed: no threads, virtual time."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to be dispatched

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress

import attrs
import trio

from kvlanes.engine import (
    AdmissionGate,
    AdmissionRefused,
    Applied,
    Clear,
    Completed,
    DeadlinePassed,
    Engine,
    EngineClosed,
    Failed,
    LaneCrashed,
    Mutation,
    NoEligibleWorker,
    Prompt,
    RadixIndex,
    Rank,
    Request,
    Reservation,
    StaleIncarnation,
    Store,
    UnknownWorker,
    Worker,
)
from kvlanes.engine.testing import VirtualThreads
from kvlanes.indexer import Expired, Overlap
from tests.engine.scenes import BLOCK, chain


class Fragile:
    """A radix index that breaks when it is told to."""

    def __init__(self) -> None:
        self._index = RadixIndex(BLOCK)
        self.broken = False

    @property
    def block_size(self) -> int:
        return BLOCK

    def apply(self, mutation: Mutation, now: float) -> Applied:
        if self.broken:
            raise ZeroDivisionError("the index is broken")
        return self._index.apply(mutation, now)

    def overlap(self, prompt: Prompt) -> Overlap:
        return self._index.overlap(prompt)

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired:
        return self._index.expire(now, limit, ranks)

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        return self._index.drop(worker_id, dp_rank)

    def check(self) -> None:
        self._index.check()


@attrs.frozen
class Script:
    """What one client will do; all of it drawn before it begins."""

    prompt: Prompt
    weight: int
    seconds: float
    preflight: bool
    work_seconds: float
    work: str  # "answer", "fail", "stubborn" or "stream"
    retries: int
    cancel_after: float
    pause: float


def scripts(rng: random.Random) -> Iterator[Script]:
    """Endless clients: conversations that grow, deadlines that pass, clients that leave."""
    turns: Counter[int] = Counter()
    while True:
        name = int(rng.paretovariate(0.6)) % 300
        turns[name] = turns[name] % 12 + 1
        yield Script(
            prompt=chain(*(name * 1000 + block for block in range(3 * turns[name]))),
            weight=rng.choice((1, 1, 1, 2, 5)),
            seconds=rng.uniform(0.1, 4.0),
            preflight=rng.random() < 0.3,
            work_seconds=rng.expovariate(2.0),
            work=rng.choices(("answer", "fail", "stubborn", "stream"), (80, 8, 2, 10))[0],
            retries=rng.choice((0, 1, 2)),
            cancel_after=rng.expovariate(1.0) if rng.random() < 0.15 else 1e9,
            pause=rng.expovariate(8.0),
        )


def traffic_gate(
    threads: trio.Nursery, rng: random.Random, *, total: int, queue_limit: int
) -> AdmissionGate:
    """A gate whose threads are virtual and take drawn times."""
    runner = VirtualThreads(threads, (rng.expovariate(10.0) for _ in itertools.count()))
    return AdmissionGate(
        total, queue_limit=queue_limit, overtake=4, preflight_slots=8, runner=runner
    )


@attrs.define(eq=False)
class Traffic:
    """Clients and troubles of one engine.

    Attributes:
        told: How requests ended, by kind.
        indexes: Every index that was made, the living one last.
    """

    rng: random.Random
    workers: tuple[Worker, ...]
    told: Counter[str] = attrs.Factory(Counter)
    indexes: list[Fragile] = attrs.Factory(list)
    done: int = 0

    def make_index(self) -> Fragile:
        self.indexes.append(Fragile())
        return self.indexes[-1]

    # -- clients

    async def clients(self, engine: Engine, requests: int, at_once: int) -> None:
        """Run so many requests, so many at a time."""
        todo = itertools.islice(scripts(self.rng), requests)
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(self._client, engine, todo)

    async def _client(self, engine: Engine, todo: Iterator[Script]) -> None:
        for script in todo:
            with trio.move_on_after(script.cancel_after) as scope:
                self.told[await self._request(engine, script)] += 1
            self.told["cancelled"] += scope.cancelled_caught
            self.done += 1
            await trio.sleep(script.pause)

    async def _request(self, engine: Engine, script: Script) -> str:
        try:
            async with engine.request(seconds=script.seconds, weight=script.weight) as request:
                if script.preflight:
                    await request.preflight(len, script.prompt)
                if script.work == "stream":
                    return await self._stream(request, script)
                return await self._attempts(engine, request, script)
        except (AdmissionRefused, DeadlinePassed, NoEligibleWorker) as error:
            return type(error).__name__

    async def _stream(self, request: Request, script: Script) -> str:
        with request.route(script.prompt) as place:
            for number in range(4):
                await trio.sleep(script.work_seconds / 4)
                place.grow(1) if number else place.first_output()
            place.succeeded(cached_tokens=0)
        return "streamed"

    async def _attempts(self, engine: Engine, request: Request, script: Script) -> str:
        tried: list[str] = []
        while True:
            place = request.route(script.prompt, exclude=tried)
            costs = [row.cost for row in place.route.explanation.rows]
            assert costs[0] <= min(costs) + 1e-9, "not the cheapest"
            ended = await place.dispatch(self._work, engine, place, script)
            if isinstance(ended, Completed):
                return "answered"
            if not isinstance(ended, Failed):
                return "expired"
            if isinstance(ended.error, ConnectionResetError):
                place.connect_failed()
            tried.append(place.route.worker)
            if len(tried) > script.retries:
                return type(ended.error).__name__

    async def _work(self, engine: Engine, place: Reservation, script: Script) -> None:
        with trio.CancelScope(
            shield=script.work == "stubborn", relative_deadline=3 * script.work_seconds
        ):
            await trio.sleep(script.work_seconds)
        if script.work == "fail":
            raise ConnectionResetError
        place.first_output()
        if place.route.worker.startswith("fed"):
            await self._event(engine, place.route.rank, script.prompt)

    async def _event(self, engine: Engine, rank: Rank, prompt: Prompt) -> None:
        told = Store(rank, None, prompt.blocks, prompt.sequence_hashes)
        with suppress(UnknownWorker, StaleIncarnation, LaneCrashed):
            await engine.apply(told)
            if self.rng.random() < 0.05:
                await engine.apply(Clear(rank))

    # -- troubles

    async def troubles(self, engine: Engine, crash_seconds: float = 30.0) -> None:
        """Change the fleet for ever, and break the index now and then."""
        crash_at = trio.current_time() + crash_seconds
        while True:
            await trio.sleep(self.rng.expovariate(3.0))
            with suppress(EngineClosed):
                await self._trouble(engine)
            if trio.current_time() >= crash_at:
                self.indexes[-1].broken = True
                crash_at += crash_seconds

    async def _trouble(self, engine: Engine) -> None:
        worker = self.rng.choice(self.workers)
        name = worker.worker_id
        kind = self.rng.choice(("remove", "restart", "drain", "grow", "load", "all", "cancelled"))
        with suppress(UnknownWorker):
            if kind == "remove":
                await engine.remove(name)
            elif kind == "restart":
                engine.restarted(Rank(name))
            elif kind == "drain":
                engine.drain(name, draining=self.rng.random() < 0.5)
            elif kind == "grow":
                await engine.update(attrs.evolve(worker, dp_size=self.rng.randint(1, 3)))
            elif kind == "load":
                engine.report_load(Rank(name), "engine", self.rng.random())
            elif kind == "all":
                await engine.reconcile(self.workers)
            else:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await engine.reconcile(self.workers)
