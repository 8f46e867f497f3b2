"""What lanes count, and the snapshots that show it."""

import attrs

from kvlanes.indexer import Rank


@attrs.define(eq=False)
class Counts:
    """What one lane counts. Written by that lane alone, `posts_dropped` by its lane set."""

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


@attrs.frozen
class LaneStatistics:
    """One lane at one moment. Leases are counted in blocks, times in seconds.

    Attributes:
        depth: Accepted mutations and steps of block pools that wait now, a mutation that a waiting
            backend works on included.
        peak_depth: The most that ever waited in the queue.
        waiting_for_room: Callers whose mutation is not accepted yet.
        ranks: Ranks that sit on this lane.
        applied: Mutations that reached the index.
        rejected: Mutations that did not: stale, malformed, closed or lost in a crash.
        leases_granted: Blocks that a leased store added.
        leases_refreshed: Blocks of leased stores that were covered already.
        leases_expired: Blocks whose lease ended by its deadline.
        expiry_lag_seconds: How late the latest slice of expiry ran, at most.
        peak_expiry_lag_seconds: The latest that any ran, at most.
        posts_dropped: Posted mutations, and starts and growths of capacity leases, that found the
            queue full or closed.
    """

    depth: int
    peak_depth: int
    waiting_for_room: int
    ranks: int
    applied: int
    rejected: int
    leases_granted: int
    leases_refreshed: int
    leases_expired: int
    expiry_lag_seconds: float
    peak_expiry_lag_seconds: float
    posts_dropped: int


@attrs.frozen
class LaneSetStatistics:
    """All lanes at one moment.

    Attributes:
        lanes: One snapshot a lane, in lane order.
        crashes: How often the index broke and was replaced.
        resync: Ranks whose coverage was lost in a crash and which nobody has reset since.
        leases_held: Blocks that leases hold now, if the index tells.
    """

    lanes: tuple[LaneStatistics, ...]
    crashes: int
    resync: frozenset[Rank]
    leases_held: int

    @property
    def leases_revoked(self) -> int:
        """Blocks whose lease ended by a confirmation, a removal, a departure or a crash.

        What is neither held nor expired of all that was granted; leases that the factory filled
        in were granted by nobody.
        """
        granted, expired = self.total("leases_granted"), self.total("leases_expired")
        return max(0, int(granted - expired) - self.leases_held)

    def total(self, name: str) -> float:
        """The sum of one figure over all lanes, by its name in `LaneStatistics`."""
        return float(sum(getattr(lane, name) for lane in self.lanes))
