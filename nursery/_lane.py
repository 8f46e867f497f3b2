"""One lane over a synchronous index: applies in order, and expires what its ranks were lent."""

import math
from collections.abc import Callable

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.indexer import Applied, Lease, Mutation, Rank, Store
from kvlanes.nursery._errors import LaneClosed
from kvlanes.nursery._incarnations import Incarnation, Place
from kvlanes.nursery._owner import IndexOwner
from kvlanes.nursery._queue import Barrier, Entry, LaneQueue

DRAIN_SLICE = 64  # queued mutations applied between two scheduling points of a lane's task


@attrs.frozen
class LaneStatistics:
    """One lane at one moment. Leases are counted in blocks, times in seconds.

    Attributes:
        depth: Accepted mutations that wait now.
        peak_depth: The most that ever waited.
        waiting_for_room: Callers whose mutation is not accepted yet.
        applied: Mutations that reached the index.
        rejected: Mutations that did not: stale, malformed, closed or lost in a crash.
        leases_granted: Blocks that a leased store added.
        leases_refreshed: Blocks of leased stores that were covered already.
        leases_expired: Blocks whose lease ended by its deadline.
        expiry_lag_seconds: How late the latest slice of expiry ran.
        peak_expiry_lag_seconds: The latest that any ran.
        posts_dropped: Posted mutations that found the queue full.
        ranks: Ranks that sit on this lane.
    """

    depth: int
    peak_depth: int
    waiting_for_room: int
    applied: int
    rejected: int
    leases_granted: int
    leases_refreshed: int
    leases_expired: int
    expiry_lag_seconds: float
    peak_expiry_lag_seconds: float
    posts_dropped: int
    ranks: int


@attrs.define(eq=False)
class Counts:
    """What one lane counts. Written by that lane alone, `posts_dropped` by the lane set."""

    applied: int = 0
    rejected: int = 0
    leases_granted: int = 0
    leases_refreshed: int = 0
    leases_expired: int = 0
    expiry_lag_seconds: float = 0.0
    peak_expiry_lag_seconds: float = 0.0
    posts_dropped: int = 0

    def expired(self, blocks: int, lag_seconds: float) -> None:
        self.leases_expired += blocks
        self.expiry_lag_seconds = lag_seconds
        self.peak_expiry_lag_seconds = max(self.peak_expiry_lag_seconds, lag_seconds)


@attrs.define(eq=False)
class Lane:
    """One FIFO, the leases of its ranks, and a task for what waits.

    `step` is the only way a mutation reaches the index, whether a caller takes it (the lane is
    idle) or the lane's own task does (it is queued): both are the same order, because a caller
    may take it only while nothing is queued.
    """

    owner: IndexOwner
    default_lease: Lease
    queue: LaneQueue
    in_place: bool = True  # False: every mutation queues, for comparisons and tests
    ranks: set[Rank] = attrs.Factory(set)
    counts: Counts = attrs.Factory(Counts)
    scope: trio.CancelScope = attrs.Factory(lambda: trio.CancelScope(shield=True))
    wake_at: float = math.inf  # when a lease may need its end; never later than that
    _sleeper: trio.CancelScope | None = None

    @property
    def idle(self) -> bool:
        """Whether a caller may apply in place: then its mutation is the next one in order."""
        return self.in_place and not (self.queue.entries or self.owner.busy or self.queue.closed)

    @enable_ki_protection
    def step(self, place: "Place[Lane]", incarnation: Incarnation, mutation: Mutation) -> Applied:
        """Compare the incarnation, apply, lease and count, with nothing in between.

        Raises:
            StaleIncarnation: It no longer lives, now, whatever was true at the call.
            IndexerError: The index refused the mutation before writing.
            LaneCrashed: The index broke.
        """
        counts = self.counts
        if place.current is not incarnation:
            counts.rejected += 1
            raise place.stale(incarnation)
        now = trio.current_time()
        lease = mutation.lease if isinstance(mutation, Store) else None
        if lease is not None and lease.ttl_seconds is None:
            lease = self._default(lease)
            mutation = mutation._replace(lease=lease)  # type: ignore[call-arg]  # it is a Store
        try:
            applied = self.owner.apply(mutation, now)
        except Exception:
            counts.rejected += 1
            raise
        counts.applied += 1
        if lease is not None:
            counts.leases_granted += applied.applied
            counts.leases_refreshed += applied.duplicates
            deadline = now + lease.ttl_seconds - lease.age_seconds  # type: ignore[operator]
            if deadline < self.wake_at:
                self.wake_by(max(now, deadline))
        return applied

    def _default(self, lease: Lease) -> Lease:
        if not lease.age_seconds:
            return self.default_lease
        return Lease(self.default_lease.ttl_seconds, lease.age_seconds)

    def wake_by(self, deadline: float) -> None:
        """Look for due leases no later than `deadline`; the sleeper's scope moves in place."""
        self.wake_at = min(self.wake_at, deadline)
        if self._sleeper is not None:
            self._sleeper.deadline = self.wake_at

    def pass_barrier(self, barrier: Barrier) -> None:
        """Arrive now if nothing is ahead, else in turn. Never a checkpoint."""
        if self.queue.entries or self.owner.busy:
            self.queue.control(barrier)
        else:
            barrier.arrive()

    async def run(self, ended: Callable[[], None]) -> None:
        """Serve the queue and the leases until the queue is closed and empty."""
        try:
            with self.scope:
                while True:
                    await self._turn()
                    if self.queue.closed and not self.queue.entries:
                        break
        finally:
            self._abandon()
            ended()

    async def _turn(self) -> None:
        """What was queued at this moment first, then one slice of expiry, then sleep if idle."""
        left = len(self.queue.entries)
        while left > 0 and self.queue.entries:
            self._drain(min(left, DRAIN_SLICE))
            left -= DRAIN_SLICE
            await trio.lowlevel.checkpoint()
        self._expire_due()
        if self.queue.entries or self.queue.closed or self.wake_at <= trio.current_time():
            await trio.lowlevel.checkpoint()
        else:
            await self._sleep()

    @enable_ki_protection
    def _drain(self, count: int) -> None:
        while count > 0 and self.queue.entries:
            count -= 1
            item = self.queue.pop()
            if isinstance(item, Barrier):
                item.arrive()
            else:
                item.settle(self.outcome(item))

    def outcome(self, entry: Entry) -> Applied | Exception:
        try:
            return self.step(entry.place, entry.incarnation, entry.mutation)
        except Exception as error:
            return error

    @enable_ki_protection
    def _expire_due(self) -> None:
        now = trio.current_time()
        if now < self.wake_at:
            return
        lag = now - self.wake_at
        self.wake_at = math.inf
        expired = self.owner.expire(now, self.ranks)
        # A store may have come in between only from inside the index; its deadline counts too.
        self.wake_at = min(self.wake_at, expired.next_deadline)
        if expired.entries:
            self.counts.expired(expired.blocks, lag)

    async def _sleep(self) -> None:
        """Until something is queued or a lease may end. No race: nothing awaits before parking."""
        with trio.CancelScope(deadline=self.wake_at) as self._sleeper:
            await self.queue.park()
        self._sleeper = None

    def fail_queued(self, error: Callable[[], Exception]) -> None:
        """Settle every queued mutation with an error of its own; barriers keep their turn."""
        for entry in self.queue.take_mutations():
            self.refuse(entry, error())

    def refuse(self, entry: Entry, error: Exception) -> None:
        self.counts.rejected += 1
        entry.settle(error)

    @enable_ki_protection
    def _abandon(self) -> None:
        """The lane ends: whoever still waits is told now."""
        self.fail_queued(lambda: LaneClosed("the lanes closed before this was applied"))
        while self.queue.entries:
            barrier = self.queue.pop()
            assert isinstance(barrier, Barrier)
            barrier.fail(LaneClosed("the lanes closed before this barrier was passed"))

    def statistics(self) -> LaneStatistics:
        """Never a checkpoint. O(1)."""
        queue = self.queue
        return LaneStatistics(
            depth=queue.depth,
            peak_depth=queue.peak_depth,
            waiting_for_room=len(queue.overflow),
            ranks=len(self.ranks),
            **attrs.asdict(self.counts),
        )
