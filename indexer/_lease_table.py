"""Leases for a backend that has none: who holds what how long, kept beside it, block by block."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import attrs

from kvlanes.indexer._counts import require_count
from kvlanes.indexer._deadlines import deadline_of, require_tick
from kvlanes.indexer._digest import rank_key, rows_digest, shown
from kvlanes.indexer._dump import decode, encode
from kvlanes.indexer._errors import BlockSizeMismatch, BudgetRefused, DumpRefused
from kvlanes.indexer._identity import Prompt
from kvlanes.indexer._lease_dump import Restoring, content_of
from kvlanes.indexer._lease_holding import Holding
from kvlanes.indexer._lease_timers import LeaseTimers
from kvlanes.indexer._mutations import Applied, Mutation, Rank, Remove, Store
from kvlanes.indexer._names import Names
from kvlanes.indexer._paths import Paths
from kvlanes.indexer._protocol import Expired, Overlap
from kvlanes.indexer._validation import require_valid, unpack


class LeaselessBackend(Protocol):
    """What `LeaseTable` asks of the backend it wraps: an `IndexBackend` without leases.

    It is given confirmed stores, removes and clears only, never two names for one block, and it
    must keep what it was told until it is told otherwise: no budget of its own.
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
        timers: Armed timers; at most one a leased block, however often it was refreshed.
    """

    ranks: int
    blocks: int
    leased_blocks: int
    timers: int


class LeaseTable:
    """Gives a backend without leases the leases, and exact names, of `RadixIndex`.

    A leased block has no engine hash, and a backend can only remove what it can name. So the
    wrapped backend never sees an engine's hash: every block reaches it under the published
    sequence hash of its prefix, which is one name a block and can be computed for guesses too.
    The engine's own hashes are translated here, a table a rank, so they can neither clash with
    those names nor with each other, even where an engine uses the published chain itself.

    The table is the only writer of the backend it wraps. About 330 bytes a (rank, block) beside
    what the backend takes, and one armed timer a leased block, however often it is refreshed.

    Args:
        inner: The backend, empty.
        tick_seconds: Leases end at the end of a tick of this length, never early.

    Raises:
        ValueError: `tick_seconds` is below 1e-9 or not finite.
        BudgetRefused: The backend gives up blocks by itself: its `budget_blocks` is not `None`.
    """

    def __init__(self, inner: LeaselessBackend, *, tick_seconds: float = 0.1) -> None:
        require_tick(tick_seconds)
        budget_blocks = getattr(inner, "budget_blocks", None)
        if budget_blocks is not None:
            raise BudgetRefused("LeaseTable", budget_blocks)
        self._inner = inner
        self._tick_seconds = tick_seconds
        self._ranks: dict[Rank, Holding] = {}
        self._paths = Paths()

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._inner.block_size

    def apply(self, mutation: Mutation, now: float) -> Applied:
        """Apply one mutation to the table and the backend. O(blocks). Never a checkpoint.

        Raises:
            IndexerError: Its parts do not fit together; nothing was written.
        """
        names = unpack(require_valid(mutation, now))
        if isinstance(mutation, Store):
            return self._store(mutation, names, now)
        held = self._ranks.get(mutation.rank)
        if isinstance(mutation, Remove):
            return self._remove(mutation.rank, names, held, now)
        if held is None:
            return Applied()
        self._inner.apply(mutation, now)
        self._let_go(held)
        self._ranks[mutation.rank] = self._nothing()
        return Applied(applied=len(held))

    def _nothing(self) -> Holding:
        return Holding(Names(), LeaseTimers(self._tick_seconds))

    def _let_go(self, places: Iterable[int]) -> None:
        for place in places:
            self._paths.let_go(place)

    def _store(self, store: Store, names: Sequence[int], now: float) -> Applied:
        count = len(store.blocks) // 8
        held = self._ranks.get(store.rank)
        if held is None:
            held = self._nothing()
        places = held.names.below(store.parent, store.blocks)
        if places is None or not count:
            return Applied(missing_parent=count)
        parent = None if store.parent is None else held.names.places[store.parent]
        fresh = [k for k, place in enumerate(places) if place not in held]
        if fresh:
            self._inner.apply(Store(store.rank, parent, store.blocks, places), now)
        for k in fresh:
            before = places[k - 1] if k else parent
            self._paths.hold(places[k], before, store.blocks[8 * k : 8 * k + 8])
        self._ranks[store.rank] = held
        if store.lease is None:
            duplicates, lost = held.confirm(places, names)
            self._forget(store.rank, lost, now)
        else:
            duplicates = held.guess(places, deadline_of(store.lease, now))
        return Applied(applied=count - duplicates, duplicates=duplicates)

    def _remove(
        self, rank: Rank, names: Sequence[int], held: Holding | None, now: float
    ) -> Applied:
        table = held.names if held is not None else Names()
        taken = [table.take(name) for name in names]
        places = [place for place in taken if place is not None]
        self._forget(rank, places, now)
        return Applied(applied=len(places), unknown=len(taken) - len(places))

    def _forget(self, rank: Rank, places: Sequence[int], now: float) -> None:
        if places:
            self._inner.apply(Remove(rank, places), now)
            self._let_go(places)

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
        require_count("limit", limit, 1)
        entries = blocks = 0
        for rank, held in self._asked(ranks):
            looked, ended = held.leases.fire(now, limit - entries)
            self._forget(rank, ended, now)
            entries, blocks = entries + looked, blocks + len(ended)
        waiting = (held.leases.next_deadline() for _, held in self._asked(ranks))
        return Expired(entries, blocks, min(waiting, default=math.inf))

    def _asked(self, ranks: Collection[Rank] | None) -> Iterator[tuple[Rank, Holding]]:
        for rank in self._ranks if ranks is None else ranks:
            if rank in self._ranks:
                yield rank, self._ranks[rank]

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        """Forget a worker's ranks (or one of them); the blocks that went. O(ranks + blocks)."""
        self._inner.drop(worker_id, dp_rank)
        asked = [r for r in self._ranks if r[0] == worker_id and dp_rank in (None, r[1])]
        gone = [self._ranks.pop(rank) for rank in asked]
        for held in gone:
            self._let_go(held)
        return sum(map(len, gone))

    def dump(self, now: float) -> bytes:
        """Everything held, leases with the seconds that remain, as plain bytes. O(blocks).

        The format is that of `RadixIndex`; each restores the other's dumps.
        """
        return encode(content_of(self._ranks, self._paths, now), self.block_size)

    def restore(self, dump: bytes, now: float) -> None:
        """Become what was dumped; the table must be empty. O(blocks x depth).

        Raises:
            BlockSizeMismatch: The dump was made with another block size.
            DumpRefused: Another format or hash scheme, a damaged or contradictory dump, or this
                table knows a rank already. Nothing was written.
        """
        if self._ranks:
            raise DumpRefused(f"a table that knows {len(self._ranks)} ranks cannot be restored")
        restoring = Restoring(decode(dump, self.block_size))
        ranks, links = restoring.ranks(now), list(restoring.links())
        for place, before, block in links:  # held by the dump itself until the ranks hold theirs
            self._paths.hold(place, before, block)
        blocks = {place: (before, block) for place, before, block in links}
        for restored in ranks:
            for mutation in restored.mutations:
                self._inner.apply(mutation, now)
            held = self._ranks[restored.rank] = self._nothing()
            held.confirm([*restored.named], [*restored.named.values()])
            for place, deadline in restored.leased.items():
                held.leases.extend(place, deadline)
            for place in held:
                self._paths.hold(place, *blocks[place])
        self._let_go(place for place, _, _ in reversed(links))

    def digest(self) -> str:
        """An order-free digest of confirmed coverage and its names. O(blocks)."""
        ranks = self._ranks.items()
        return shown(sum([rows_digest(rank_key(r), held.names.names.items()) for r, held in ranks]))

    def statistics(self) -> LeaseStatistics:
        """Counts as of now. O(ranks)."""
        held = self._ranks.values()
        return LeaseStatistics(
            ranks=len(held),
            blocks=sum(map(len, held)),
            leased_blocks=sum(len(h.leases.deadlines) for h in held),
            timers=sum(len(h.leases.armed) for h in held),
        )

    def check(self) -> None:
        """Assert every invariant of the table. O(blocks)."""
        for held in self._ranks.values():
            held.check()
        places = [place for held in self._ranks.values() for place in held]
        self._paths.check(Counter(places))
