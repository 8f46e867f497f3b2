"""A lane's queue: one bounded FIFO of mutations and control items, and who waits on it."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import trio
from trio.lowlevel import (
    Abort,
    Task,
    current_task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

from kvlanes.indexer import Applied, CapacityModel, Mutation, Overlap, Prompt, Rank
from kvlanes.nursery._errors import LaneClosed
from kvlanes.nursery._incarnations import Incarnation, Seat
from kvlanes.nursery._statistics import Counts, LaneStatistics

Change: TypeAlias = Callable[[CapacityModel], list[Mutation]]


@attrs.define(eq=False)
class Entry:
    """One queued mutation. Settled exactly once, by whoever applies or refuses it."""

    seat: Seat[Any]
    incarnation: Incarnation
    mutation: Mutation
    result: Applied | Exception | None = None
    waiter: Task | None = None  # only the waiting task sets it; a settlement takes it

    only_for_room: bool = False  # the waiter goes on as soon as the entry is accepted

    def settle(self, result: Applied | Exception) -> None:
        assert self.result is None, "an entry is settled exactly once"
        self.result = result
        self.wake()

    def accepted(self) -> None:
        if self.only_for_room:
            self.wake()

    def wake(self) -> None:
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

    `finish` runs in the same step as the last arrival, and what it answers is the caller's.
    A caller that is cancelled leaves nothing half done: the barrier does not need it.
    """

    remaining: int
    finish: Callable[[], object]
    result: object = None
    failure: Exception | None = None
    _passed: trio.Event = attrs.Factory(trio.Event)

    @enable_ki_protection
    def arrive(self) -> None:
        self.remaining -= 1
        if self.remaining > 0:
            return
        try:
            self.result = self.finish()
        except Exception as error:
            self.fail(error)
        self._passed.set()

    def fail(self, error: Exception) -> None:
        """Some lane could not do its part; it arrives all the same."""
        self.failure = self.failure or error

    @enable_ki_protection
    async def wait(self) -> object:
        """The result, once the last lane has arrived. Always a checkpoint."""
        await self._passed.wait()
        if self.failure is not None:
            raise self.failure
        return self.result


@attrs.frozen(eq=False)
class Departing:
    """A rank leaves a backend that waits; its barrier is queued behind."""

    rank: Rank
    barrier: Barrier


@attrs.define(eq=False)
class Reading:
    """A read that a backend wants in its lane; the barrier hands `overlap` to the caller."""

    prompt: Prompt
    overlap: Overlap | None = None
    answer: Barrier = attrs.field(init=False)

    @answer.default
    def _answer(self) -> Barrier:
        return Barrier(1, lambda: self.overlap)


@attrs.frozen(eq=False)
class CapacityChange:
    """One step of a rank's modelled block pool; it answers the mutations that follow from it."""

    seat: Seat[Any]
    incarnation: Incarnation
    change: Change


@attrs.frozen(eq=False)
class ExpiryDue:
    """Some lease may have come due. Which ones are due is looked up when this is consumed."""


Control: TypeAlias = Barrier | Departing | Reading | CapacityChange | ExpiryDue
Item: TypeAlias = Entry | Control


@attrs.define(eq=False)
class LaneQueue:
    """Filled by the lane set, emptied by its lane.

    Mutations beyond `capacity` are not accepted yet: their callers wait in `overflow`, and the pop
    that makes room hands it to the first of them in the same step. Steps of block pools count
    too, other control items do not.
    """

    capacity: int
    entries: deque[Item] = attrs.Factory(deque)
    overflow: dict[Entry, None] = attrs.Factory(dict)
    counts: Counts = attrs.Factory(Counts)
    closed: bool = False  # to mutations; what was accepted is still served
    ended: bool = False  # nobody serves it any more
    depth: int = 0  # accepted mutations and steps of block pools that wait
    peak_depth: int = 0
    wake_at: float = math.inf  # when a lease may have to end; never later than that
    _consumer: Task | None = None
    _sleeper: trio.CancelScope | None = None

    @property
    def full(self) -> bool:
        return self.depth >= self.capacity or bool(self.overflow)

    @property
    def over(self) -> bool:
        """Nothing is left and nothing will come."""
        return self.closed and not self.entries

    @enable_ki_protection
    def submit(self, entry: Entry) -> None:
        """Accept a mutation, let it wait for room, or refuse it. Never a checkpoint."""
        if self.closed:
            self.refuse(entry, LaneClosed("the lanes are closing"))
        elif self.full:
            self.overflow[entry] = None
        else:
            self._accept(entry)

    @enable_ki_protection
    def offer(self, item: "CapacityChange", *, must: bool) -> bool:
        """Accept a step of a block pool, or drop and count it. Never a checkpoint.

        What `must` be taken is taken also by a full queue, and is nothing to a closed one.
        """
        if self.closed or (self.full and not must):
            self.counts.posts_dropped += not must
            return False
        self._accept(item)
        return True

    def _accept(self, item: "Entry | CapacityChange") -> None:
        self.entries.append(item)
        self.depth += 1
        self.peak_depth = max(self.peak_depth, self.depth)
        self.wake()

    @enable_ki_protection
    def control(self, item: Control) -> None:
        """Append a control item, whatever the capacity. Never a checkpoint."""
        if self.ended:
            self._tell(item)
        else:
            self.entries.append(item)
            self.wake()

    def pop(self) -> Item:
        item = self.entries.popleft()
        if isinstance(item, Entry | CapacityChange):
            self.depth -= 1
            if self.overflow and self.depth < self.capacity:
                first = next(iter(self.overflow))
                del self.overflow[first]
                self._accept(first)
                first.accepted()
        return item

    def refuse(self, entry: Entry, error: Exception) -> None:
        self.counts.rejected += 1
        entry.settle(error)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Settle every mutation, accepted or not, with an error of its own."""
        refused = [item for item in self.entries if isinstance(item, Entry)] + [*self.overflow]
        others = [item for item in self.entries if not isinstance(item, Entry)]
        self.entries.clear()
        self.entries.extend(others)  # control items keep their turn
        self.overflow.clear()
        self.depth = sum(isinstance(item, CapacityChange) for item in others)
        for entry in refused:
            self.refuse(entry, error())

    @enable_ki_protection
    def close(self) -> None:
        """Refuse what comes; whoever waits for room is told now, what was accepted stays."""
        self.closed = True
        for entry in self.overflow:
            self.refuse(entry, LaneClosed("the lanes closed before the queue had room"))
        self.overflow.clear()
        self.wake()

    @enable_ki_protection
    def abandon(self) -> None:
        """The lane has ended: whoever still waits is told now, and whoever comes later at once."""
        self.closed = self.ended = True
        self.fail(lambda: LaneClosed("the lanes closed before this was applied"))
        while self.entries:
            self._tell(self.entries.popleft())

    def _tell(self, item: Item) -> None:
        barrier = item.answer if isinstance(item, Reading) else item
        if isinstance(barrier, Barrier):
            barrier.fail(LaneClosed("the lanes closed before this was passed"))
            barrier.arrive()

    @enable_ki_protection
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

    @enable_ki_protection
    async def room(self, entry: Entry) -> None:
        """Wait until an entry of the overflow is accepted or settled. Always a checkpoint.

        A cancelled caller's entry is withdrawn.
        """
        entry.only_for_room = True
        await self.done(entry)

    @enable_ki_protection
    async def sleep(self) -> None:
        """The lane waits here for something to do. Always a checkpoint.

        The caller has looked, without awaiting since, and found nothing: no wake can be missed.
        """
        with trio.CancelScope(deadline=self.wake_at) as self._sleeper:
            self._consumer = current_task()

            def abort(_: object) -> Abort:
                self._consumer = None
                return Abort.SUCCEEDED

            await wait_task_rescheduled(abort)
        self._sleeper = None

    @enable_ki_protection
    def wake(self) -> None:
        if self._consumer is not None:
            reschedule(self._consumer)
            self._consumer = None

    @enable_ki_protection
    def wake_by(self, deadline: float) -> None:
        """Look for due leases no later than `deadline`; the sleeper's scope moves in place."""
        self.wake_at = min(self.wake_at, deadline)
        if self._sleeper is not None:
            self._sleeper.deadline = self.wake_at

    def statistics(self, ranks: int, in_hand: int = 0) -> LaneStatistics:
        return LaneStatistics(
            depth=self.depth + in_hand,
            peak_depth=self.peak_depth,
            waiting_for_room=len(self.overflow),
            ranks=ranks,
            **attrs.asdict(self.counts),
        )
