"""One lane without a task, for small programs: everything happens inside the calls."""

from collections.abc import Callable

import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.indexer import Applied, IndexBackend, Lease, Mutation, Overlap, Prompt, Rank
from kvlanes.nursery._errors import LaneBusy
from kvlanes.nursery._incarnations import Incarnation, Seats
from kvlanes.nursery._owner import IndexOwner, logger
from kvlanes.nursery._queue import LaneQueue
from kvlanes.nursery._statistics import LaneStatistics
from kvlanes.nursery._step import Step


class DirectLane:
    """The step of a lane over one synchronous index, without queue, task or nursery.

    Every call first ends the leases that are due, all of them: a program that stops calling
    leaves them where they are, and nobody sees them. The only writer of its index. It is
    made and used inside one Trio run, whose clock it keeps; nothing in it is ever a checkpoint.

    Args:
        make_index: Called once, and again after each crash of the index it made.
        ttl_seconds: What a `Lease` without a TTL gets.

    Raises:
        ValueError: Negative seconds.
    """

    __slots__ = ("_owner", "_queue", "_seats", "_step")

    def __init__(
        self, make_index: Callable[[], IndexBackend], *, ttl_seconds: float = 120.0
    ) -> None:
        self._owner = IndexOwner(make_index, self._crash, make_index())
        self._queue = LaneQueue(capacity=1)
        self._step = Step(self._owner, Lease(ttl_seconds), self._queue)
        self._seats: Seats[None] = Seats([None])

    @enable_ki_protection
    def attach(self, rank: Rank) -> Incarnation:
        """The living incarnation of `rank`, a new one if it has none. O(1)."""
        seat = self._seats.attach(rank)
        self._step.ranks.add(rank)
        # The factory may have filled the index: have this rank's leases looked up once.
        self._queue.wake_by(trio.current_time())
        assert seat.current is not None
        return seat.current

    def apply(self, mutation: Mutation, incarnation: Incarnation | None = None) -> Applied:
        """Apply one mutation, with its lease.

        Raises:
            StaleIncarnation, IndexerError, LaneCrashed: As in `LaneSet.apply`.
            LaneBusy: The index itself calls, from inside a write.
        """
        if self._owner.busy:
            raise LaneBusy("called from inside a write of its own index")
        self._expire()
        living = self.attach(mutation.rank) if incarnation is None else incarnation
        return self._step.apply(self._seats.find(mutation.rank), living, mutation)

    def overlap(self, prompt: Prompt) -> Overlap:
        """How deep each rank's coverage of `prompt` reaches, now.

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
        """
        self._expire()
        return self._owner.overlap(prompt)

    @enable_ki_protection
    def drop(self, worker_id: str, dp_rank: int | None = None) -> None:
        """End a worker's coverage and incarnations, or those of one of its ranks. O(ranks)."""
        seats = self._seats.revoke(worker_id, dp_rank)
        self._owner.drop(worker_id, dp_rank)
        for seat in self._seats.departed(seats):
            self._step.ranks.discard(seat.rank)

    def statistics(self) -> LaneStatistics:
        """What was done. O(1)."""
        return self._queue.statistics(len(self._step.ranks))

    def _expire(self) -> None:
        while self._step.expiry_due and not self._owner.busy:
            self._step.expire()

    def _crash(self, error: Exception) -> None:
        logger.error("the index crashed and is replaced by an empty one", exc_info=error)
        self._owner.replace()
        self._queue.wake_by(trio.current_time())  # the new one may bring leases along
