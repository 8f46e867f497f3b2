"""The one way from a lane to its index."""

import math
from typing import Any

import attrs
from trio.abc import Clock
from trio.lowlevel import current_clock, enable_ki_protection

from kvlanes.indexer import Applied, CapacityModel, IndexerError, Lease, Mutation, Rank, Store
from kvlanes.nursery._errors import LaneCrashed
from kvlanes.nursery._incarnations import Incarnation, Seat
from kvlanes.nursery._owner import IndexOwner, crashed, logger
from kvlanes.nursery._queue import CapacityChange, Entry, LaneQueue


@attrs.define(eq=False)
class Step:
    """Applies mutations and ends leases, on behalf of one lane.

    Nothing in here awaits, so the comparison with the living incarnation, the write, the lease
    and the count are one step, whoever takes it.
    """

    owner: IndexOwner
    default_lease: Lease
    queue: LaneQueue
    ranks: set[Rank] = attrs.Factory(set)
    clock: Clock = attrs.Factory(current_clock)  # read without a look-up of the running loop

    @enable_ki_protection
    def apply(self, seat: Seat[Any], incarnation: Incarnation, mutation: Mutation) -> Applied:
        """Apply one mutation, if its incarnation lives now.

        Raises:
            StaleIncarnation: It does not, whatever was true at the call.
            IndexerError: The index refused the mutation before writing.
            LaneCrashed: The index broke.
        """
        counts, owner = self.queue.counts, self.owner
        if seat.current is not incarnation:
            counts.rejected += 1
            raise seat.stale(incarnation)
        now = self.clock.current_time()
        lease = None
        if isinstance(mutation, Store):
            lease = mutation.lease
            if lease is not None and lease.ttl_seconds is None:
                lease = self._default(lease)
                rank, parent, blocks, names, _ = mutation
                mutation = Store(rank, parent, blocks, names, lease)
        owner.busy = True
        try:
            applied = owner.index.apply(mutation, now)
        except IndexerError:
            counts.rejected += 1
            raise  # refused before its first write
        except Exception as error:
            counts.rejected += 1
            raise owner.broke(error) from error
        finally:
            owner.busy = False
            if owner.departures:
                owner.catch_up()
        counts.applied += 1
        if lease is not None:
            granted, refreshed, _, _ = applied
            if granted:
                counts.leases_granted += granted
            if refreshed:
                counts.leases_refreshed += refreshed
            deadline = now + lease.ttl_seconds - lease.age_seconds  # type: ignore[operator]
            if deadline < self.queue.wake_at:
                self.queue.wake_by(max(now, deadline))
        return applied

    def _default(self, lease: Lease) -> Lease:
        if not lease.age_seconds:
            return self.default_lease
        return Lease(self.default_lease.ttl_seconds, lease.age_seconds)

    def outcome(self, entry: Entry) -> Applied | Exception:
        try:
            return self.apply(entry.seat, entry.incarnation, entry.mutation)
        except Exception as error:
            return error
        except BaseException as error:
            entry.settle(crashed(error))  # it ends the lanes, and nobody comes back to this entry
            raise

    @enable_ki_protection
    def change(self, item: CapacityChange) -> None:
        """Move a rank's block pool, and apply what follows, unless its incarnation has ended."""
        seat = item.seat
        if seat.current is not item.incarnation:
            return
        if seat.model is None:
            seat.model = CapacityModel(seat.rank, None)
        try:
            for mutation in item.change(seat.model):
                self.apply(seat, item.incarnation, mutation)
        except LaneCrashed:
            pass  # the pool is empty again too, and nobody waits
        except Exception:  # nobody waits for it, and the lane must outlive it
            logger.exception("a step of the block pool of %s failed", seat.rank)

    @property
    def expiry_due(self) -> bool:
        return self.queue.wake_at <= self.clock.current_time()

    @enable_ki_protection
    def expire(self) -> None:
        """End one slice of the leases that are due now. O(slice)."""
        now, due = self.clock.current_time(), self.queue.wake_at
        if now < due:
            return
        self.queue.wake_at = math.inf
        expired = self.owner.expire(now, self.ranks)
        # Not overwritten: a crash in there asks for a wake of its own.
        self.queue.wake_by(expired.next_deadline)
        if expired.entries:
            self.queue.counts.expired(expired.blocks, now - due)
