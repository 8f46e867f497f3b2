"""One lane over a synchronous index: applies in order, and expires what its ranks were lent."""

from collections.abc import Callable

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.indexer import Rank
from kvlanes.nursery._owner import IndexOwner
from kvlanes.nursery._queue import Barrier, CapacityChange, Entry, LaneQueue
from kvlanes.nursery._statistics import LaneStatistics
from kvlanes.nursery._step import Step

DRAIN_SLICE = 64  # queued items done between two scheduling points of a lane's task


@attrs.define(eq=False)
class Lane:
    """One FIFO, the leases of its ranks, and a task for what waits.

    A caller may take the step itself while nothing is queued, and only then: so the order of
    steps is the order of calls, whether they queue or not.
    """

    step: Step
    queue: LaneQueue
    in_place: bool = True  # False: every mutation queues, for comparisons and tests
    scope: trio.CancelScope = attrs.Factory(lambda: trio.CancelScope(shield=True))
    _owner: IndexOwner = attrs.field(init=False)

    @_owner.default
    def _owner_of_the_step(self) -> IndexOwner:
        return self.step.owner

    @property
    def idle(self) -> bool:
        """Whether a caller may apply in place: then its mutation is the next one in order."""
        queue = self.queue
        return self.in_place and not (queue.entries or self._owner.busy or queue.closed)

    def pass_barrier(self, barrier: Barrier) -> None:
        """Arrive now if nothing is ahead, else in turn. Never a checkpoint."""
        if self.queue.entries or self.step.owner.busy:
            self.queue.control(barrier)
        else:
            barrier.arrive()

    def change(self, item: CapacityChange, *, must: bool) -> bool:
        """Take a step of a block pool now, or in its turn; whether it is taken at all."""
        if not self.idle:
            return self.queue.offer(item, must=must)
        self.step.change(item)
        return True

    def depart(self, rank: Rank, barrier: Barrier) -> None:
        """Nothing to do in turn: the owner of the index has retired the rank already."""

    def restart(self, error: Exception) -> None:
        """The index was replaced: whoever supplied the new one may have filled it with leases."""
        self.queue.wake_by(trio.current_time())

    def stop(self) -> None:
        """The drain's time is over; the task settles what is left on its way out."""
        self.scope.cancel()

    @enable_ki_protection
    async def run(self, ended: Callable[[], None]) -> None:
        """Serve the queue and the leases until the queue is closed and empty."""
        try:
            with self.scope:
                while True:
                    await self._turn()
                    if self.queue.over:
                        break
        finally:
            self.queue.abandon()
            ended()

    @enable_ki_protection
    async def _turn(self) -> None:
        """What was queued at this moment first, then one slice of expiry, then sleep if idle."""
        left = len(self.queue.entries)
        while left > 0 and self.queue.entries:
            self._drain(min(left, DRAIN_SLICE))
            left -= DRAIN_SLICE
            await trio.lowlevel.checkpoint()
        self.step.expire()
        if self.queue.entries or self.queue.closed or self.step.expiry_due:
            await trio.lowlevel.checkpoint()
        else:
            await self.queue.sleep()

    @enable_ki_protection
    def _drain(self, count: int) -> None:
        while count > 0 and self.queue.entries:
            count -= 1
            item = self.queue.pop()
            if isinstance(item, Entry):
                item.settle(self.step.outcome(item))
            elif isinstance(item, CapacityChange):
                self.step.change(item)
            elif isinstance(item, Barrier):
                item.arrive()

    def statistics(self) -> LaneStatistics:
        """Never a checkpoint. O(1)."""
        return self.queue.statistics(len(self.step.ranks))
