"""When a rank's leases end: one armed entry a leased segment, in a bucket of its tick.

The deadline itself stands with the segment, in `Holder.segments`. A refresh overwrites that number
and nothing else. When the armed tick comes, the entry is compared with the number that stands there
*then*: ended, it is ended; later, the entry is armed again at the later tick; gone or confirmed,
the entry was stale. So an expiry that was queued before a refresh cannot harm what was refreshed,
and no timer ever has to be found and cancelled.

Deadlines only ever move later ("the later wins"), hence one entry a lease is always early enough.
Each rank has its own buckets: a lane that expires its ranks never meets another lane's entries,
and a cleared rank drops its timers whole.
"""

import math
from heapq import heappop, heappush

from kvlanes.indexer._deadlines import NEVER
from kvlanes.indexer._radix_node import Node

# Beside a segment stands its deadline, and two values that compare later than any deadline:
CONFIRMED = math.inf  # no lease at all: an engine event vouches for it; the other is `NEVER`

# Stale entries beyond the live ones that are tolerated before the buckets are compacted.
SLACK = 32


class Timers:
    """The armed entries of one rank. Written by `Holder` and by `_radix_lease.expire`."""

    __slots__ = ("buckets", "live", "stale", "tick_seconds", "ticks")

    def __init__(self, tick_seconds: float) -> None:
        self.tick_seconds = tick_seconds
        self.buckets: dict[int, list[Node]] = {}
        self.ticks: list[int] = []  # a heap of the keys of `buckets`
        self.live = 0  # leases that end, each with an entry
        self.stale = 0  # entries whose lease is gone

    def arm(self, node: Node, deadline: float) -> None:
        """A lease that will end by itself: put its entry where it is met at its deadline."""
        self.live += 1
        tick = math.ceil(deadline / self.tick_seconds)
        bucket = self.buckets.get(tick)
        if bucket is None:
            self.buckets[tick] = [node]
            heappush(self.ticks, tick)
        else:
            bucket.append(node)

    def arm_again(self, node: Node, deadline: float, now: float) -> None:
        """An entry was met before its deadline: put it where it is met later than `now`."""
        # Rounding may put a tick's time before the deadline that it was computed from.
        early = math.ceil(deadline / self.tick_seconds) * self.tick_seconds <= now
        self.arm(node, deadline + self.tick_seconds if early else deadline)
        self.live -= 1

    def drop_first(self, bucket: list[Node]) -> None:
        """Drop the earliest bucket, which is empty, unless a compaction already did."""
        if self.ticks and self.buckets[self.ticks[0]] is bucket:
            del self.buckets[heappop(self.ticks)]

    def next_deadline(self) -> float:
        """When the next entry is met; infinity when no lease ends. O(1)."""
        return self.ticks[0] * self.tick_seconds if self.live else math.inf

    def compact(self, segments: dict[Node, float]) -> None:
        """Drop stale entries, keep the earliest of each live lease. O(entries), amortised O(1).

        Buckets change in place, because `expire` may be in the middle of one.
        """
        seen: set[Node] = set()
        for tick in sorted(self.buckets):
            bucket = self.buckets[tick]
            fresh = [n for n in bucket if segments.get(n, CONFIRMED) < NEVER and n not in seen]
            seen.update(fresh)
            bucket[:] = dict.fromkeys(fresh)
            if not bucket:
                del self.buckets[tick]
        self.ticks[:] = sorted(self.buckets)
        self.live, self.stale = len(seen), 0
