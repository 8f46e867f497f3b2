"""Backends that wait, for tests: they stop between any two steps, and break on request."""

from collections.abc import Awaitable, Callable

import trio

from kvlanes.indexer import Applied, Clear, Overlap, Prompt, Remove, Store
from kvlanes.nursery import Departure, LaneSet, LaneTask, Read, TaskReceiver
from tests.indexer.oracle import Oracle
from tests.nursery.scenes import A, depth, leased, prompt


class GatedBackend:
    """Keeps its coverage in the oracle; each task waits for `steps`, if there is a gate."""

    block_size = 1

    def __init__(self, *, reads_in_caller: bool = True, gated: bool = False) -> None:
        self.reads_in_caller = reads_in_caller
        self.oracle = Oracle(block_size=1)
        self.log: list[str] = []
        self._gate = trio.Semaphore(0) if gated else None

    def overlap(self, prompt: Prompt) -> Overlap:
        return self.oracle.overlap(prompt)

    def open(self, steps: int = 1000) -> None:
        """Let that many tasks through."""
        assert self._gate is not None
        for _ in range(steps):
            self._gate.release()

    async def serve(self, tasks: TaskReceiver) -> None:
        async for task in tasks:
            await self.do(task)

    async def do(self, task: LaneTask) -> None:
        if self._gate is not None:
            await self._gate.acquire()
        else:
            await trio.lowlevel.checkpoint()
        task.acknowledge(self.work(task))

    def work(self, task: LaneTask) -> Overlap | None:
        work = task.work
        self.log.append(type(work).__name__)
        if isinstance(work, Read):
            return self.oracle.overlap(work.prompt)
        if isinstance(work, Departure):
            self.oracle.drop(work.rank.worker_id, work.rank.dp_rank)
        else:
            assert isinstance(work, Store | Remove | Clear)
            done = self.oracle.apply(work, 0.0)
            assert done.missing_parent == done.unknown == 0, (work, done)
        return None


def gated() -> GatedBackend:
    return GatedBackend(gated=True)


class Backends:
    """A factory of gated backends that remembers them; `shape` builds each."""

    def __init__(self, shape: Callable[[], GatedBackend] = GatedBackend) -> None:
        self.made: list[GatedBackend] = []
        self.shape = shape

    def __call__(self) -> GatedBackend:
        self.made.append(self.shape())
        return self.made[-1]

    @property
    def current(self) -> GatedBackend:
        return self.made[-1]


Serve = Callable[[GatedBackend, TaskReceiver], Awaitable[None]]


class ScriptedBackend(GatedBackend):
    """Serves by a script the first time, and well as a replacement."""

    def __init__(self, script: Serve | None) -> None:
        super().__init__()
        self.script = script

    async def serve(self, tasks: TaskReceiver) -> None:
        if self.script is None:
            await super().serve(tasks)
        else:
            await self.script(self, tasks)


def scripted(script: Serve) -> Backends:
    scripts = [script]
    return Backends(lambda: ScriptedBackend(scripts.pop() if scripts else None))


async def acknowledge_then_return(backend: GatedBackend, tasks: TaskReceiver) -> None:
    backend.work(task := await tasks.receive())
    task.acknowledge()


async def recovered(lanes: LaneSet, backends: Backends) -> None:
    """A new instance, empty, every rank marked, and fit to serve."""
    assert len(backends.made) == 2
    statistics = lanes.statistics()
    assert (statistics.crashes, A in statistics.resync) == (1, True)
    assert lanes.overlap(prompt(3)).scores() == {}
    assert await lanes.apply(leased(A, 3)) == Applied(applied=3)
    assert depth(lanes) == 3
