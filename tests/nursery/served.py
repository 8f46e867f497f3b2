"""Backends that wait, for tests: they stop between any two steps, and break on request."""

from collections.abc import Callable

import trio

from kvlanes.indexer import Clear, Overlap, Prompt, Remove, Store
from kvlanes.nursery import Departure, LaneTask, Read, TaskReceiver
from tests.indexer.oracle import Oracle


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
