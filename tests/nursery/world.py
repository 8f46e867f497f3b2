"""One scene of many clients, and the log of calls from which a model is replayed beside it.

Whatever the lanes do, a rank's mutations take effect in the order of their calls: so the model is
the log, replayed. A departure or reset ends what was called before it, a crash empties the log, a
caller that was cancelled before its mutation found room takes it back, and so do closing lanes.
"""

import random
from collections import Counter
from collections.abc import Callable

import attrs
from trio.lowlevel import Task, checkpoint, current_task
from trio.testing import MockClock

from kvlanes.indexer import CapacityModel, Clear, Lease, Mutation, Rank, Remove, Store
from kvlanes.nursery import (
    LaneSet,
    TaskReceiver,
)
from tests.indexer.oracle import Oracle
from tests.nursery.scenes import Broken, HookedIndex, prompt
from tests.nursery.served import GatedBackend

RANKS = [Rank("a"), Rank("a", 1), Rank("b"), Rank("c")]
POOLED = Rank("d")  # the one rank with a modelled block pool, in some scenes
FAMILIES, DEPTH = 3, 4
SHORT, LONG = 2.0, 10_000.0


class YieldingBackend(GatedBackend):
    """A backend that waits, for a random number of turns, and breaks when told to."""

    def __init__(self, world: "World") -> None:
        super().__init__(reads_in_caller=world.reads_in_caller)
        self.world = world

    async def serve(self, tasks: TaskReceiver) -> None:
        async for task in tasks:
            for _ in range(self.world.rng.randrange(3)):
                await checkpoint()
            self.world.maybe_break()
            task.acknowledge(self.work(task))
            if self.world.rng.random() < 0.2:
                await checkpoint()


@attrs.define(eq=False)
class Replay:
    """The model: the naive index, and the pool of `POOLED`."""

    index: Oracle = attrs.Factory(lambda: Oracle(block_size=1))
    pool: CapacityModel = attrs.Factory(lambda: CapacityModel(POOLED, None))

    def change(self, mutations: list[Mutation]) -> None:
        for mutation in mutations:
            if isinstance(mutation, Store) and mutation.lease is not None:
                mutation = mutation._replace(lease=Lease(LONG))
            self.index.apply(mutation, 0.0)

    def drop(self, worker_id: str, dp_rank: int | None) -> None:
        self.index.drop(worker_id, dp_rank)
        if worker_id == POOLED.worker_id:
            self.pool = CapacityModel(POOLED, None)


@attrs.define(eq=False)
class Call:
    """One thing that was called, as the model does it."""

    do: Callable[[Replay], object]


@attrs.define(eq=False)
class World:
    """One scene: what was called, and what may be expected of it."""

    rng: random.Random
    clock: MockClock
    pooled: bool  # with a modelled pool
    closes: bool  # the lanes close while clients go on
    reads_in_caller: bool = True
    closing: bool = False
    log: list[Call] = attrs.Factory(list)
    made: list[HookedIndex | YieldingBackend] = attrs.Factory(list)
    latest: dict[Task, Call] = attrs.Factory(dict)  # each client's
    crash_ordered: bool = False
    orders: int = 0
    crashes: int = 0
    accepted: int = 0
    dropped: int = 0
    settled: Counter[str] = attrs.Factory(Counter)
    calls: Counter[Rank] = attrs.Factory(Counter)
    lives: int = 0  # of POOLED

    def index(self) -> HookedIndex:
        index = HookedIndex()
        index.before = lambda _: self.maybe_break()
        self.made.append(index)
        return index

    def backend(self) -> YieldingBackend:
        backend = YieldingBackend(self)
        self.made.append(backend)
        return backend

    def maybe_break(self) -> None:
        """Called inside every write: an ordered crash happens now, and empties everything."""
        if self.crash_ordered:
            self.crash_ordered = False
            self.crashes += 1
            self.log.clear()
            raise Broken

    def mutation(self, rank: Rank | None = None) -> Mutation:
        rank = rank or self.rng.choice(RANKS)
        path = prompt(self.rng.randint(1, DEPTH), self.rng.randrange(FAMILIES))
        match self.rng.randrange(8):
            case 0 | 1 | 2:
                return Store(rank, None, path.blocks, lease=Lease(SHORT))
            case 3:
                return Store(rank, None, path.blocks, lease=Lease(LONG))
            case 4 | 5:
                return Store(rank, None, path.blocks, path.sequence_hashes)
            case 6:
                return Remove(rank, path.sequence_hashes[-2:])
            case _:
                return Clear(rank)

    def called(self, mutation: Mutation) -> None:
        """The lanes take the mutation in this very step; so does the model."""
        self.accepted += 1
        self.calls[mutation.rank] += 1
        call = Call(lambda model: model.index.apply(mutation, 0.0))
        self.latest[current_task()] = call
        if not self.closing:
            self.log.append(call)

    def take_back(self, task: Task) -> None:
        """The client's latest call was refused, or withdrawn before it found room."""
        if self.latest[task] in self.log:
            self.log.remove(self.latest[task])

    def departed(self, worker_id: str, dp_rank: int | None) -> None:
        for rank in [*RANKS, POOLED]:
            if rank.worker_id == worker_id and dp_rank in (None, rank.dp_rank):
                self.calls[rank] += 1
        self.lives += worker_id == POOLED.worker_id
        self.log.append(Call(lambda model: model.drop(worker_id, dp_rank)))

    def replayed(self) -> Oracle:
        model = Replay()
        for call in self.log:
            call.do(model)
        return model.index

    def scores(self, lanes: LaneSet, family: int) -> dict[Rank, int]:
        made, query = self.made[-1], prompt(DEPTH, family)
        if isinstance(made, YieldingBackend) and not made.reads_in_caller:
            return made.oracle.overlap(query).scores()
        return lanes.overlap(query).scores()

    def holds_nothing(self, lanes: LaneSet, rank: Rank) -> bool:
        return all(rank not in self.scores(lanes, family) for family in range(FAMILIES))
