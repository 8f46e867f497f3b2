"""The flat index: one entry a block and its prefix, no tree. Simple, exact, not fast."""

import math
from collections.abc import Collection, Mapping, Sequence

import attrs

from kvlanes.indexer._counts import require_count
from kvlanes.indexer._digest import rank_key, rows_digest, shown
from kvlanes.indexer._errors import BlockSizeMismatch, MutationInvalid
from kvlanes.indexer._identity import Prompt, require_block_size
from kvlanes.indexer._mutations import Applied, Clear, Mutation, Rank, Remove, Store
from kvlanes.indexer._names import Names
from kvlanes.indexer._protocol import Expired
from kvlanes.indexer._validation import require_valid, unpack


@attrs.frozen
class Depths:
    """An `Overlap` that is counted out: only ranks that hold the first block stand in it."""

    _depths: dict[Rank, int]

    def of(self, rank: Rank) -> int:
        """Blocks of the longest root-contiguous prefix that `rank` holds; 0 when none."""
        return self._depths.get(rank, 0)

    def best(self, eligible: Collection[Rank] | None = None) -> int:
        """The deepest overlap of any (eligible) rank, in blocks."""
        ranks = self._depths if eligible is None else eligible
        return max(map(self.of, ranks), default=0)

    def scores(self) -> dict[Rank, int]:
        """Every rank that holds at least the first block, with its overlap in blocks."""
        return dict(self._depths)


@attrs.frozen
class PositionalStatistics:
    """A snapshot of a `PositionalIndex`.

    Attributes:
        ranks: Ranks that stored something since they were last dropped.
        blocks: (rank, block) pairs held.
        entries: Blocks held by anybody.
    """

    ranks: int
    blocks: int
    entries: int


class PositionalIndex:
    """Coverage in one flat dictionary: sequence hash -> the ranks that hold that block.

    A prompt is looked up block by block from its root, so holes are seen as holes; an entry
    goes with its last holder. It keeps neither leases nor dumps: wrap it,
    `LeaseTable(PositionalIndex(16))`. About 380 bytes a (rank, block).

    Args:
        block_size: Tokens a block.

    Raises:
        BlockSizeInvalid: It is no integer >= 1.
    """

    def __init__(self, block_size: int) -> None:
        require_block_size(block_size)
        self._block_size = block_size
        self._holders: dict[int, set[Rank]] = {}
        self._ranks: dict[Rank, Names] = {}

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._block_size

    def apply(self, mutation: Mutation, now: float = 0.0) -> Applied:
        """Apply one confirmed mutation; `now` is not used. O(blocks). Never a checkpoint.

        Raises:
            IndexerError: A lease, or parts that do not fit together; nothing was written.
        """
        names = unpack(require_valid(mutation, now))
        if isinstance(mutation, Store):
            return self._store(mutation, names)
        if isinstance(mutation, Remove):
            return self._remove(mutation.rank, names)
        return self._clear(mutation)

    def _store(self, store: Store, names: Sequence[int]) -> Applied:
        if store.lease is not None:
            raise MutationInvalid("this index keeps no leases; wrap it in LeaseTable")
        table = self._ranks.get(store.rank) or Names()
        places = table.below(store.parent, store.blocks)
        if places is None:
            return Applied(missing_parent=len(store.blocks) // 8)
        return self.store_at(store.rank, places, names)

    def store_at(self, rank: Rank, places: Sequence[int], names: Sequence[int]) -> Applied:
        """Hold blocks whose places are already known, each under its name. O(blocks)."""
        if not places:
            return Applied()
        table = self._ranks.setdefault(rank, Names())
        duplicates = 0
        for place, name in zip(places, names, strict=True):
            duplicates += place in table
            lost = table.give(place, name)
            if lost is not None:
                self._let_go(rank, lost)
            self._holders.setdefault(place, set()).add(rank)
        return Applied(applied=len(places) - duplicates, duplicates=duplicates)

    def _remove(self, rank: Rank, names: Sequence[int]) -> Applied:
        table = self._ranks.get(rank) or Names()
        applied = 0
        for name in names:
            place = table.take(name)
            if place is not None:
                self._let_go(rank, place)
                applied += 1
        return Applied(applied=applied, unknown=len(names) - applied)

    def _clear(self, clear: Clear) -> Applied:
        table = self._ranks.get(clear.rank)
        if table is None:
            return Applied()
        self._ranks[clear.rank] = Names()
        for place in table.names:
            self._let_go(clear.rank, place)
        return Applied(applied=len(table))

    def _let_go(self, rank: Rank, place: int) -> None:
        holders = self._holders[place]
        holders.remove(rank)
        if not holders:
            del self._holders[place]

    def overlap(self, prompt: Prompt) -> Depths:
        """How deep each rank's coverage reaches. O(blocks x ranks), changes nothing.

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
        """
        if prompt.block_size != self._block_size:
            raise BlockSizeMismatch(prompt.block_size, self._block_size)
        return Depths(self.continued(prompt.sequence_hashes, {}))

    def continued(self, places: Sequence[int], start: Mapping[Rank, int]) -> dict[Rank, int]:
        """Where coverage ends that somebody else held up to `start` (in blocks, else the root).

        Ranks that neither have a start nor hold the first block are left out.
        O(blocks x ranks).
        """
        ends = dict(start)
        for rank in self._holders.get(places[0], ()) if places else ():
            ends.setdefault(rank, 0)
        active = set(ends)
        for depth in range(min(ends.values(), default=0), len(places)):
            holders = self._holders.get(places[depth], set())
            active = {rank for rank in active if rank in holders or ends[rank] > depth}
            if not active:
                break
            ends.update((rank, depth + 1) for rank in active if ends[rank] == depth)
        return ends

    def place(self, rank: Rank, name: int) -> int | None:
        """Where a rank's block of this name lies; `None` when it holds none. O(1)."""
        table = self._ranks.get(rank)
        return None if table is None else table.places.get(name)

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired:
        """Nothing ever ends by itself here. O(1).

        Raises:
            ValueError: `limit` is below 1.
        """
        require_count("limit", limit, 1)
        return Expired(0, 0, math.inf)

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        """Forget a worker's ranks (or one of them); the blocks that went. O(ranks + blocks)."""
        gone = [r for r in self._ranks if r[0] == worker_id and dp_rank in (None, r[1])]
        blocks = sum([self._clear(Clear(rank)).applied for rank in gone])
        for rank in gone:
            del self._ranks[rank]
        return blocks

    def digest(self) -> str:
        """An order-free digest of all coverage and its names. O(blocks)."""
        return shown(self.digest_of(""))

    def digest_of(self, tier: str) -> int:
        """The digest as a number, of rows that lie in a tier of this name. O(blocks)."""
        ranks = self._ranks.items()
        return sum([rows_digest(rank_key(r, tier), table.names.items()) for r, table in ranks])

    def statistics(self) -> PositionalStatistics:
        """Counts as of now. O(ranks)."""
        blocks = sum(map(len, self._ranks.values()))
        return PositionalStatistics(len(self._ranks), blocks, len(self._holders))

    def check(self) -> None:
        """Assert every invariant. O(blocks)."""
        assert all(self._holders.values()), "an entry without a holder"
        for rank, table in self._ranks.items():
            table.check()
            assert all(rank in self._holders[place] for place in table.names), rank
        pairs = sum(map(len, self._holders.values()))
        assert pairs == sum(map(len, self._ranks.values())), pairs
