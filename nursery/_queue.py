"""A lane's queue: one bounded FIFO of mutations and barriers, and what their callers wait on."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from kvlanes.indexer import Applied, Mutation
from kvlanes.nursery._errors import LaneClosed
from kvlanes.nursery._incarnations import Incarnation, Place


@attrs.define(eq=False)
class Entry:
    """One queued mutation. Settled exactly once, by whoever applies or refuses it."""

    place: Place[Any]
    incarnation: Incarnation
    mutation: Mutation
    result: Applied | Exception | None = None
    waiter: Task | None = None  # only the waiting task sets it; a settlement takes it

    def settle(self, result: Applied | Exception) -> None:
        assert self.result is None, "an entry is settled exactly once"
        self.result = result
        if self.waiter is not None:
            reschedule(self.waiter)
            self.waiter = None

    def unwrap(self) -> Applied:
        assert self.result is not None, "nobody settled this entry"
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@attrs.define(eq=False)
class Barrier:
    """What some lanes pass, each in its turn. Lanes arrive and go on; only callers wait.

    `finish` runs in the same step as the last arrival, and what it answers is the callers'.
    A caller that is cancelled leaves nothing half done: the barrier does not need it.
    """

    remaining: int
    finish: Callable[[], object]
    result: object = None
    failure: Exception | None = None
    settled: bool = False
    _passed: trio.Event = attrs.Factory(trio.Event)

    def arrive(self) -> None:
        self.remaining -= 1
        if self.remaining <= 0 and not self.settled:
            try:
                self.result = self.finish()
            except Exception as error:
                self.failure = error
            self._settle()

    def fail(self, error: Exception) -> None:
        """One lane will never arrive. Later arrivals change nothing."""
        if not self.settled:
            self.failure = error
            self._settle()

    def _settle(self) -> None:
        self.settled = True
        self._passed.set()

    async def wait(self) -> object:
        """The result, once the last lane has arrived. Always a checkpoint."""
        await self._passed.wait()
        if self.failure is not None:
            raise self.failure
        return self.result


Item: TypeAlias = Entry | Barrier


@attrs.define(eq=False)
class LaneQueue:
    """Filled by the lane set, emptied by its lane.

    Mutations beyond `capacity` are not accepted yet: their callers wait in `overflow`, and each
    pop hands the room to the first of them in the same step. Barriers do not count.
    """

    capacity: int
    entries: deque[Item] = attrs.Factory(deque)
    overflow: dict[Entry, None] = attrs.Factory(dict)
    closed: bool = False
    depth: int = 0  # accepted mutations that wait
    peak_depth: int = 0
    _consumer: Task | None = None

    @property
    def full(self) -> bool:
        return self.depth >= self.capacity or bool(self.overflow)

    def submit(self, entry: Entry) -> None:
        """Accept a mutation, or let it wait for room. Never a checkpoint."""
        if self.closed:
            raise LaneClosed("the lanes are closing")
        if self.full:
            self.overflow[entry] = None
        else:
            self._accept(entry)

    def _accept(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.depth += 1
        self.peak_depth = max(self.peak_depth, self.depth)
        self.wake()

    def control(self, barrier: Barrier) -> None:
        """Append a barrier, whatever the capacity. Never a checkpoint."""
        self.entries.append(barrier)
        self.wake()

    def pop(self) -> Item:
        item = self.entries.popleft()
        if isinstance(item, Entry):
            self.depth -= 1
            if self.overflow:
                first = next(iter(self.overflow))
                del self.overflow[first]
                self._accept(first)
        return item

    def take_mutations(self) -> list[Entry]:
        """Empty the queue of mutations, accepted or not; barriers stay in their order."""
        taken = [item for item in self.entries if isinstance(item, Entry)]
        barriers = [item for item in self.entries if not isinstance(item, Entry)]
        taken += self.overflow
        self.entries.clear()  # in place: the lane's fast path holds this very deque
        self.entries.extend(barriers)
        self.overflow.clear()
        self.depth = 0
        return taken

    def close(self) -> None:
        """Refuse what comes; whoever waits for room is told now, what was accepted stays."""
        self.closed = True
        for entry in [*self.overflow]:
            entry.settle(LaneClosed("the lanes closed before the queue had room"))
        self.overflow.clear()
        self.wake()

    async def settled(self, entry: Entry) -> Applied:
        """What became of an entry just submitted. Always a checkpoint."""
        await self.done(entry)
        return entry.unwrap()

    async def done(self, entry: Entry) -> None:
        """Wait for the settlement of an open entry. Always a checkpoint.

        A cancelled caller's entry is applied all the same, once it was accepted.
        """
        entry.waiter = current_task()

        def abort(_: object) -> Abort:
            entry.waiter = None
            self.overflow.pop(entry, None)  # never accepted, so it may be withdrawn
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    async def park(self) -> None:
        """The lane waits here for `wake`. Always a checkpoint."""
        self._consumer = current_task()

        def abort(_: object) -> Abort:
            self._consumer = None
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    def wake(self) -> None:
        if self._consumer is not None:
            reschedule(self._consumer)
            self._consumer = None
