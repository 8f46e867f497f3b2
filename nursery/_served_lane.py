"""One lane over a backend that waits: its bookkeeping is done between the backend's tasks."""

from collections import deque
from collections.abc import Callable

import attrs
import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from kvlanes.indexer import Applied, Mutation, Overlap, Prompt, Rank
from kvlanes.nursery._errors import DumpUnavailable, LaneBusy, LaneClosed, ServedTooShort
from kvlanes.nursery._lane import DRAIN_SLICE
from kvlanes.nursery._owner import crashed, logger
from kvlanes.nursery._queue import (
    Barrier,
    CapacityChange,
    Departing,
    Entry,
    ExpiryDue,
    Item,
    LaneQueue,
    Reading,
)
from kvlanes.nursery._receiver import Departure, LaneTask, Read, ServedBackend, TaskReceiver, Work
from kvlanes.nursery._statistics import LaneStatistics
from kvlanes.nursery._step import Step


@attrs.define(eq=False)
class Outbox:
    """Where a lane's lease table writes: what it would have a backend do, in order."""

    block_size: int
    works: deque[Work] = attrs.Factory(deque)

    def apply(self, mutation: Mutation, now: float) -> Applied:
        self.works.append(mutation)
        return Applied()

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        assert dp_rank is not None, "a lane drops rank by rank"
        self.works.append(Departure(Rank(worker_id, dp_rank)))
        return 0

    def overlap(self, prompt: Prompt) -> Overlap:
        raise NotImplementedError("reads go to the backend")


@attrs.define(eq=False)
class BackendOwner:
    """Holds the one backend of served lanes; replaces it when it breaks."""

    make_backend: Callable[[], ServedBackend]
    backend: ServedBackend

    @property
    def block_size(self) -> int:
        return self.backend.block_size

    @property
    def reads_in_caller(self) -> bool:
        return self.backend.reads_in_caller

    def overlap(self, prompt: Prompt) -> Overlap:
        """Read in the caller.

        Raises:
            LaneBusy: The backend wants its reads in a lane.
        """
        if not self.reads_in_caller:
            raise LaneBusy("this backend reads in its lane: await read(prompt) instead")
        return self.backend.overlap(prompt)

    def dump(self) -> object:
        """Refuse: the backend knows neither which coverage is leased nor the engines' names.

        Raises:
            DumpUnavailable: Always.
        """
        raise DumpUnavailable("leases and engines' names are not in a backend that waits")

    def drop(self, worker_id: str, dp_rank: int | None) -> None:
        """Each lane drops its ranks in turn."""

    def replace(self) -> None:
        self.backend = self.make_backend()


@disable_ki_protection
async def _interruptible(backend: ServedBackend, tasks: TaskReceiver) -> None:
    """A backend is the user's code: Ctrl-C may end it, as it may anything of theirs."""
    await backend.serve(tasks)


@attrs.define(eq=False)
class ServedLane:
    """One FIFO in front of a backend that waits.

    The leases, and the engines' names of blocks, are kept in a `LeaseTable` that writes into an
    outbox; an item's caller is told when all that the outbox got from it is acknowledged. What
    the table says and what the backend holds can differ only by the one task in hand, and when
    that one is never acknowledged both are thrown away.
    """

    backends: BackendOwner
    on_crash: Callable[[Exception], None]
    step: Step
    queue: LaneQueue
    outbox: Outbox
    scope: trio.CancelScope = attrs.Factory(lambda: trio.CancelScope(shield=True))
    idle: bool = attrs.field(default=False, init=False)
    in_place: bool = attrs.field(default=False, init=False)  # no caller ever applies
    _receiver: TaskReceiver | None = None
    _serving: trio.CancelScope = attrs.Factory(trio.CancelScope)
    _item: Item | None = None  # what the tasks being handed out belong to
    _result: Applied | Exception = attrs.Factory(Applied)  # what the item's caller will be told
    _expiry_queued: bool = False

    def pass_barrier(self, barrier: Barrier) -> None:
        """Arrive in turn. Never a checkpoint."""
        self.queue.control(barrier)

    def change(self, item: CapacityChange, *, must: bool) -> bool:
        """Take a step of a block pool in its turn; whether it is taken at all."""
        return self.queue.offer(item, must=must)

    def depart(self, rank: Rank, barrier: Barrier) -> None:
        """Queue the end of what `rank` holds, ahead of the barrier that waits for it."""
        self.queue.control(Departing(rank, barrier))

    @enable_ki_protection
    async def run(self, ended: Callable[[], None]) -> None:
        """Have the backend served, one instance after another, until the queue is closed."""
        try:
            with self.scope:
                while True:
                    await self._serve()
                    if self.is_over():
                        break
        finally:
            self.stop()
            ended()

    @enable_ki_protection
    def stop(self) -> None:
        """Tell whoever waits that it is over, also where the backend ignores its cancellation."""
        self._settle(LaneClosed("the lanes closed before this was acknowledged"))
        self.queue.abandon()
        self.scope.cancel()

    @enable_ki_protection
    async def _serve(self) -> None:
        await trio.lowlevel.checkpoint()  # a backend that breaks at once must not hold the loop
        backend, receiver = self.backends.backend, TaskReceiver(self)
        self._receiver = receiver
        cause: Exception = ServedTooShort("serve returned before its lane ended")
        try:
            with trio.CancelScope() as self._serving:
                await _interruptible(backend, receiver)
        except trio.EndOfChannel:
            pass
        except Exception as error:
            cause = error
        except BaseExceptionGroup as group:
            # Its errors are its own; what goes on is the cancellation that they came along with.
            errors, others = group.split(Exception)
            if errors is not None:
                logger.warning("a backend failed while its lane was cancelled", exc_info=errors)
            if others is not None:
                raise others from None
        settled = receiver.close()
        if backend is not self.backends.backend:
            return
        if not (settled and self.is_over()):
            self.on_crash(cause)
        elif not isinstance(cause, ServedTooShort):
            logger.warning("a backend failed while its lane ended", exc_info=cause)

    # -- between tasks

    def is_over(self) -> bool:
        return self.queue.over and not self.outbox.works

    async def pause(self) -> None:
        """Until there may be a task; only for a moment when items are left."""
        if self.queue.entries:
            await trio.lowlevel.checkpoint()
        else:
            await self.queue.sleep()

    @enable_ki_protection
    def next_task(self, receiver: TaskReceiver) -> LaneTask | None:
        """Do what needs no backend, up to the next thing that does. Never a checkpoint."""
        if self.step.expiry_due and not self._expiry_queued:
            self._expiry_queued = True
            self.queue.control(ExpiryDue())
        for _ in range(DRAIN_SLICE):
            if self.outbox.works:
                return LaneTask(self.outbox.works.popleft())
            # The second: an item may have broken the lease table, and this receiver with it.
            if not self.queue.entries or receiver is not self._receiver:
                return None
            self._begin(self.queue.pop())
        return None

    def _begin(self, item: Item) -> None:
        if isinstance(item, Entry):
            self._result = self.step.outcome(item)
        self._item = item
        if isinstance(item, Departing):
            self.step.owner.drop(*item.rank)
        elif isinstance(item, CapacityChange):
            self.step.change(item)
        elif isinstance(item, Reading):
            self.outbox.works.append(Read(item.prompt))
        elif isinstance(item, ExpiryDue):
            self._expiry_queued = False
            self.step.expire()
        if not self.outbox.works:
            self._finish()

    @enable_ki_protection
    def settle(self, task: LaneTask) -> None:
        """One task is acknowledged; with the last one of an item its caller is told."""
        if isinstance(self._item, Reading):
            self._item.overlap = task.overlap
        if not self.outbox.works:
            self._finish()

    def _finish(self) -> None:
        item, self._item = self._item, None
        if isinstance(item, Entry):
            item.settle(self._result)
        elif isinstance(item, Barrier):
            item.arrive()
        elif isinstance(item, Reading):
            item.answer.arrive()

    # -- endings

    @enable_ki_protection
    def restart(self, error: Exception) -> None:
        """The backend is replaced: forget what the old one held, and stop its `serve` here."""
        self._settle(crashed(error))
        self.step.owner.replace()
        self._serving.cancel()

    def _settle(self, error: Exception) -> None:
        """Settle the item in hand: an acknowledgement counts if it is there, and only then."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()
        self.outbox.works.clear()
        item, self._item = self._item, None
        if isinstance(item, Entry):
            self.queue.counts.applied -= 1
            self.queue.refuse(item, error)
        elif isinstance(item, Departing):
            item.barrier.fail(error)
        elif isinstance(item, Reading):
            item.answer.fail(error)
            item.answer.arrive()

    def statistics(self) -> LaneStatistics:
        """Never a checkpoint. O(1)."""
        return self.queue.statistics(len(self.step.ranks), int(isinstance(self._item, Entry)))
