"""When the leases of one rank end, block by block."""

import math
from bisect import bisect_left, insort

import attrs

from kvlanes.indexer._deadlines import NEVER


@attrs.define(eq=False)
class LeaseTimers:
    """One rank's leases: a deadline a place, and one armed entry a finite deadline.

    A refresh overwrites the deadline and leaves the entry where it is; when the entry fires, the
    deadline is compared, and either the lease ends or the entry moves. So an entry that fires
    late or early never decides anything: the deadline does.
    """

    tick_seconds: float
    deadlines: dict[int, float] = attrs.Factory(dict)
    armed: dict[int, int] = attrs.Factory(dict)
    buckets: dict[int, set[int]] = attrs.Factory(dict)
    ticks: list[int] = attrs.Factory(list)  # sorted keys of `buckets`: garbage-free, unlike a heap

    def extend(self, place: int, deadline: float) -> None:
        """Grant a lease, or move it to the later of its deadline and this one."""
        self.deadlines[place] = max(deadline, self.deadlines.get(place, -math.inf))
        if place not in self.armed:
            self._arm(place)

    def _arm(self, place: int, fired: int | None = None) -> None:
        deadline = self.deadlines[place]
        if deadline >= NEVER:
            return
        tick = math.ceil(deadline / self.tick_seconds)
        # Rounding may put a tick just before its deadline; an entry that fired must still move on.
        tick = tick if fired is None else max(tick, fired + 1)
        if tick not in self.buckets:
            insort(self.ticks, tick)
            self.buckets[tick] = set()
        self.buckets[tick].add(place)
        self.armed[place] = tick

    def _disarm(self, place: int) -> None:
        tick = self.armed.pop(place, None)
        if tick is None:
            return
        self.buckets[tick].remove(place)
        if not self.buckets[tick]:
            del self.buckets[tick]
            del self.ticks[bisect_left(self.ticks, tick)]

    def revoke(self, place: int) -> None:
        """End a lease without a removal; nothing happens where there is none."""
        if self.deadlines.pop(place, None) is not None:
            self._disarm(place)

    def next_deadline(self) -> float:
        return self.ticks[0] * self.tick_seconds if self.ticks else math.inf

    def fire(self, now: float, limit: int) -> tuple[int, list[int]]:
        """Look at due entries, at most `limit`: how many they were, and the places that ended."""
        entries, ended = 0, list[int]()
        while entries < limit and self.next_deadline() <= now:
            tick = self.ticks[0]
            place = next(iter(self.buckets[tick]))
            entries += 1
            self._disarm(place)
            if self.deadlines[place] <= now:
                del self.deadlines[place]
                ended.append(place)
            else:
                self._arm(place, tick)
        return entries, ended

    def check(self) -> None:
        finite = {place for place, deadline in self.deadlines.items() if deadline < NEVER}
        assert finite <= self.armed.keys() <= self.deadlines.keys(), self
        early = [tick * self.tick_seconds for tick in self.armed.values()]
        ends = [self.deadlines[place] + self.tick_seconds for place in self.armed]
        assert all(fire <= end for fire, end in zip(early, ends)), self
        assert self.ticks == sorted(self.buckets), self.ticks
        entries = [(place, tick) for tick, bucket in self.buckets.items() for place in bucket]
        assert sorted(entries) == sorted(self.armed.items()), entries
        assert all(self.buckets.values()), "an empty bucket"
