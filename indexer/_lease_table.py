"""Leases for a backend that has none: who holds what how long, kept beside it, block by block."""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import attrs

from kvlanes.indexer._errors import BlockSizeMismatch
from kvlanes.indexer._identity import Prompt
from kvlanes.indexer._mutations import Applied, Mutation, Rank, Remove, Store
from kvlanes.indexer._names import Names, block_count
from kvlanes.indexer._positional import rows_digest
from kvlanes.indexer._protocol import Expired, Overlap


class Coverage(Protocol):
    """What `LeaseTable` asks of the backend it wraps: an `IndexBackend` without leases.

    It is given confirmed stores, removes and clears only, and never two names for one block.
    """

    @property
    def block_size(self) -> int: ...

    def apply(self, mutation: Mutation, now: float) -> Applied: ...

    def overlap(self, prompt: Prompt) -> Overlap: ...

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int: ...


@attrs.frozen
class LeaseStatistics:
    """A snapshot of a `LeaseTable`.

    Attributes:
        ranks: Ranks that stored something since they were last dropped.
        blocks: (rank, block) pairs held, confirmed and leased.
        leased_blocks: Those of them that a lease holds.
        timer_entries: Armed timers; at most one a leased block, however often it was refreshed.
    """

    ranks: int
    blocks: int
    leased_blocks: int
    timer_entries: int


@attrs.define(eq=False)
class _Timers:
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
        if deadline == math.inf:
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
        finite = {place for place, deadline in self.deadlines.items() if deadline < math.inf}
        assert finite <= self.armed.keys() <= self.deadlines.keys(), self
        early = [tick * self.tick_seconds for tick in self.armed.values()]
        ends = [self.deadlines[place] + self.tick_seconds for place in self.armed]
        assert all(fire <= end for fire, end in zip(early, ends)), self
        assert self.ticks == sorted(self.buckets), self.ticks
        entries = [(place, tick) for tick, bucket in self.buckets.items() for place in bucket]
        assert sorted(entries) == sorted(self.armed.items()), entries
        assert all(self.buckets.values()), "an empty bucket"


@attrs.define(eq=False)
class _Holding:
    """What one rank holds: confirmed blocks by name, leased ones by deadline."""

    names: Names
    leases: _Timers

    def __contains__(self, place: object) -> bool:
        return place in self.names or place in self.leases.deadlines

    def __len__(self) -> int:
        return len(self.names) + len(self.leases.deadlines)

    def confirm(self, places: Sequence[int], names: Sequence[int]) -> tuple[int, list[int]]:
        """Name blocks in order: how many were confirmed before, and which places lost theirs."""
        duplicates, lost = 0, list[int | None]()
        for place, name in zip(places, names, strict=True):
            duplicates += place in self.names
            lost.append(self.names.give(place, name))
            self.leases.revoke(place)
        return duplicates, [p for p in dict.fromkeys(lost) if p is not None and p not in self]

    def guess(self, places: Sequence[int], deadline: float) -> int:
        """Lease blocks that are not confirmed; how many were held before."""
        duplicates = 0
        for place in places:
            duplicates += place in self
            if place not in self.names:
                self.leases.extend(place, deadline)
        return duplicates

    def check(self) -> None:
        self.names.check()
        self.leases.check()
        assert not self.names.names.keys() & self.leases.deadlines.keys()


class LeaseTable:
    """Gives a backend without leases the leases, and exact names, of `RadixIndex`.

    A leased block has no engine hash, and a backend can only remove what it can name. So the
    wrapped backend never sees an engine's hash: every block reaches it under the published
    sequence hash of its prefix, which is one name a block and can be computed for guesses too.
    The engine's own hashes are translated here, a table a rank, so they can neither clash with
    those names nor with each other, even where an engine uses the published chain itself.

    The table is the only writer of the backend it wraps. About 500 bytes a (rank, block).

    Args:
        inner: The backend, empty.
        tick_seconds: Leases end at the end of a tick of this length, never early.

    Raises:
        ValueError: `tick_seconds` is not above 0.
    """

    def __init__(self, inner: Coverage, *, tick_seconds: float = 0.1) -> None:
        if not 0.0 < tick_seconds < math.inf:
            raise ValueError(f"tick_seconds must be above 0 and finite, got {tick_seconds}")
        self._inner = inner
        self._tick_seconds = tick_seconds
        self._ranks: dict[Rank, _Holding] = {}

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._inner.block_size

    @property
    def tick_seconds(self) -> float:
        """How late a lease may end."""
        return self._tick_seconds

    def apply(self, mutation: Mutation, now: float) -> Applied:
        """Apply one mutation to the table and the backend. O(blocks). Never a checkpoint.

        Raises:
            MutationInvalid: Its parts do not fit together; nothing was written.
        """
        if isinstance(mutation, Store):
            return self._store(mutation, now)
        held = self._ranks.get(mutation.rank)
        if isinstance(mutation, Remove):
            return self._remove(mutation, held, now)
        if held is None:
            return Applied()
        self._inner.apply(mutation, now)
        self._ranks[mutation.rank] = self._nothing()
        return Applied(applied=len(held))

    def _nothing(self) -> _Holding:
        return _Holding(Names(), _Timers(self._tick_seconds))

    def _store(self, store: Store, now: float) -> Applied:
        count = block_count(store)
        held = self._ranks.get(store.rank)
        if held is None:
            held = self._nothing()
        places = held.names.below(store.parent, store.blocks)
        if places is None or not count:
            return Applied(missing_parent=count)
        if not all(place in held for place in places):
            parent = None if store.parent is None else held.names.places[store.parent]
            self._inner.apply(Store(store.rank, parent, store.blocks, places), now)
        self._ranks[store.rank] = held
        if store.lease is None:
            duplicates, lost = held.confirm(places, store.sequence_hashes)
            self._forget(store.rank, lost, now)
        else:
            assert store.lease.ttl_seconds is not None  # block_count refused it
            deadline = now + store.lease.ttl_seconds - store.lease.age_seconds
            duplicates = held.guess(places, deadline)
        return Applied(applied=count - duplicates, duplicates=duplicates)

    def _remove(self, remove: Remove, held: _Holding | None, now: float) -> Applied:
        names = held.names if held is not None else Names()
        taken = [names.take(name) for name in remove.sequence_hashes]
        places = [place for place in taken if place is not None]
        self._forget(remove.rank, places, now)
        return Applied(applied=len(places), unknown=len(taken) - len(places))

    def _forget(self, rank: Rank, places: Sequence[int], now: float) -> None:
        if places:
            self._inner.apply(Remove(rank, places), now)

    def overlap(self, prompt: Prompt) -> Overlap:
        """How deep each rank's coverage reaches, as the backend answers it.

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
        """
        if prompt.block_size != self._inner.block_size:
            raise BlockSizeMismatch(prompt.block_size, self._inner.block_size)
        return self._inner.overlap(prompt)

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired:
        """End leases that are due, at most `limit` timer entries. O(limit + ranks asked).

        Raises:
            ValueError: `limit` is below 1.
        """
        if limit < 1:
            raise ValueError(f"limit must be >= 1, got {limit}")
        entries = blocks = 0
        for rank, held in self._asked(ranks):
            looked, ended = held.leases.fire(now, limit - entries)
            self._forget(rank, ended, now)
            entries, blocks = entries + looked, blocks + len(ended)
        waiting = (held.leases.next_deadline() for _, held in self._asked(ranks))
        return Expired(entries, blocks, min(waiting, default=math.inf))

    def _asked(self, ranks: Collection[Rank] | None) -> Iterator[tuple[Rank, _Holding]]:
        for rank in self._ranks if ranks is None else ranks:
            if rank in self._ranks:
                yield rank, self._ranks[rank]

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        """Forget a worker's ranks (or one of them); the blocks that went. O(ranks + blocks)."""
        self._inner.drop(worker_id, dp_rank)
        gone = [r for r in self._ranks if r[0] == worker_id and dp_rank in (None, r[1])]
        return sum([len(self._ranks.pop(rank)) for rank in gone])

    def digest(self) -> str:
        """An order-free digest of confirmed coverage and its names. O(blocks)."""
        total = sum(rows_digest(rank, held.names) for rank, held in self._ranks.items())
        return f"{total % 2**64:016x}"

    def statistics(self) -> LeaseStatistics:
        """Counts as of now. O(ranks)."""
        held = self._ranks.values()
        return LeaseStatistics(
            ranks=len(held),
            blocks=sum(map(len, held)),
            leased_blocks=sum(len(h.leases.deadlines) for h in held),
            timer_entries=sum(len(h.leases.armed) for h in held),
        )

    def check(self) -> None:
        """Assert every invariant of the table. O(blocks)."""
        for held in self._ranks.values():
            held.check()
