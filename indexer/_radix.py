"""`RadixIndex`: the default backend. Structure: `_radix_node`, `_radix_tree`, `_radix_timers`."""

import math
from collections.abc import Collection, Iterable, Sequence

import attrs

from kvlanes.indexer._counts import require_count
from kvlanes.indexer._deadlines import NEVER, clamped, require_now, require_tick
from kvlanes.indexer._dump import decode, encode
from kvlanes.indexer._errors import BlockSizeMismatch, DumpRefused
from kvlanes.indexer._identity import Prompt, require_block_size
from kvlanes.indexer._mutations import Applied, Clear, Mutation, Rank, Remove, Store
from kvlanes.indexer._protocol import Expired
from kvlanes.indexer._radix_budget import deepest, evict
from kvlanes.indexer._radix_check import check
from kvlanes.indexer._radix_confirm import confirm, remove
from kvlanes.indexer._radix_digest import digest
from kvlanes.indexer._radix_dump import build, content_of
from kvlanes.indexer._radix_holder import Holder
from kvlanes.indexer._radix_lease import expire, lease_chain
from kvlanes.indexer._radix_node import Node
from kvlanes.indexer._radix_overlap import RadixOverlap, walk
from kvlanes.indexer._radix_tree import SegmentTree
from kvlanes.indexer._validation import require_store, require_valid

NO_NAMES: Sequence[int] = ()  # one object in all programs: what a leased store has for names


@attrs.frozen
class RadixStatistics:
    """A snapshot of a `RadixIndex`.

    Attributes:
        ranks: Known ranks.
        blocks: (Rank, block) pairs that are held.
        leased_blocks: Those of them that a lease holds.
        entries: Blocks in the tree, each counted once, path blocks without a holder included.
        segments: Nodes of the tree, without its root.
        names: Engine hashes that ranks share, those included that nobody uses and that later calls
            purge; a rank's own ones are not counted.
        timers: Armed timer entries, stale ones included.
        evicted: Entries that were given up for the budget, so far.
    """

    ranks: int
    blocks: int
    leased_blocks: int
    entries: int
    segments: int
    names: int
    timers: int
    evicted: int


class RadixIndex:
    """An exact index of which rank holds which blocks, in compressed segments.

    One writer: whoever owns the index calls it from one place at a time; nothing here waits.

    Args:
        block_size: Tokens a block.
        budget_blocks: Hard limit on blocks in the tree, each counted once however many ranks hold
            it, path blocks included; least recently stored leaves go first. `None`: no limit.
        tick_seconds: How much later than its deadline a lease may end; timers are grouped by it.

    Raises:
        BlockSizeInvalid: `block_size` is no integer >= 1.
        ValueError: `budget_blocks` is below 1, or `tick_seconds` below 1e-9 or not finite.
    """

    __slots__ = ("_evicted", "_ranks", "_tree", "block_size", "budget_blocks")

    def __init__(
        self, block_size: int, *, budget_blocks: int | None = None, tick_seconds: float = 0.1
    ) -> None:
        require_block_size(block_size)
        if budget_blocks is not None:
            require_count("budget_blocks", budget_blocks, 1)
        require_tick(tick_seconds)
        self.block_size = block_size
        self.budget_blocks = budget_blocks
        self._evicted = 0
        self._tree = SegmentTree(tick_seconds, ordered=budget_blocks is not None)
        self._ranks = self._tree.ranks

    def apply(self, mutation: Mutation, now: float) -> Applied:
        """Do what one mutation says, all of its blocks, and count what that changed.

        Args:
            mutation: What happened.
            now: Seconds on the clock of all calls to this index; only leases look at it.

        Raises:
            IndexerError: `MutationTypeInvalid`, `MutationInvalid` or `PackedLengthInvalid`;
                nothing was written.

        Cost: O(segments on the path) for a leased store, O(blocks) for what has names, O(segments
        of the rank) for a clear. Never a checkpoint.
        """
        if type(mutation) is not Store and not isinstance(mutation, Store):
            return self._take_away(mutation, require_valid(mutation, now))
        # The leased store stands here and not in a method of its own: it is every routing
        # decision, and 60 ns of 600. One glance, and what is unusual goes to the rule itself.
        rank, parent, blocks, names, lease = mutation
        if lease is None:
            return self._confirm(mutation, require_store(mutation, now))
        try:
            holder = self._ranks.get(rank)
            deadline = now + lease.ttl_seconds - lease.age_seconds  # type: ignore[operator]
        except (AttributeError, TypeError):
            require_store(mutation, now)
            raise
        if (
            holder is None
            or parent is not None
            or names is not NO_NAMES
            or type(blocks) is not bytes
            or not blocks
            or len(blocks) & 7
        ):
            require_store(mutation, now)
            if not blocks:
                return Applied()
            holder = holder or self._tree.register(rank)
        if not now < deadline < NEVER:
            deadline = clamped(deadline, now)
        applied = lease_chain(self._tree, holder, blocks, deadline)
        if self.budget_blocks is not None:
            self._stay_within(self.budget_blocks, deepest(self._tree, blocks))
        return applied

    def _take_away(self, mutation: Remove | Clear, names: bytes) -> Applied:
        tree, holder = self._tree, self._ranks.get(mutation.rank)
        if isinstance(mutation, Clear):
            return Applied(applied=tree.clear(holder) if holder else 0)
        if tree.names.stale:
            tree.names.purge()
        if holder is None:
            return Applied(unknown=len(names) >> 3)
        return remove(tree, holder, names)

    def _confirm(self, store: Store, names: bytes) -> Applied:
        rank, parent, blocks, _, _ = store
        if not blocks:
            return Applied()
        holder = self._ranks.get(rank)
        if holder is None:
            if parent is not None:
                return Applied(missing_parent=len(blocks) >> 3)
            holder = self._tree.register(rank)
        tree = self._tree
        if tree.names.stale:
            tree.names.purge()
        applied = confirm(tree, holder, parent, blocks, names)
        if self.budget_blocks is not None and not applied.missing_parent:
            last = tree.names.find(holder, int.from_bytes(names[-8:], "big"))
            assert last is not None
            self._stay_within(self.budget_blocks, last)
        return applied

    def _stay_within(self, budget_blocks: int, last: Node) -> None:
        """A store went down to `last`: that path is the freshest now, and others make room."""
        self._tree.touch(last)
        self._evicted += evict(self._tree, budget_blocks)

    def overlap(self, prompt: Prompt) -> RadixOverlap:
        """How deep each rank's coverage of a prompt reaches. Changes nothing.

        Raises:
            BlockSizeMismatch: The prompt was cut into blocks of another size.

        Cost: O(segments on the path). Never a checkpoint.
        """
        if prompt.block_size != self.block_size:
            raise BlockSizeMismatch(prompt.block_size, self.block_size)
        tree, blocks = self._tree, prompt.blocks
        node = tree.root.kids.get(blocks[:8])
        if node is not None and node.held and node.edge == blocks:
            # One segment is the whole prompt: a third faster than the walk.
            return RadixOverlap((len(blocks) >> 3,), (node.held,), tree.table)
        depths, masks = walk(node, blocks)
        return RadixOverlap(depths, masks, tree.table)

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired:
        """End leases whose deadline has come, a bounded slice of them.

        Args:
            now: Seconds on the clock of `apply`.
            limit: Timer entries to look at, at least 1.
            ranks: Touch and report these only; `None` means all.

        Raises:
            ValueError: `limit` is below 1, or `now` is no number.

        Cost: O(ranks asked for + entries). Never a checkpoint.
        """
        require_count("limit", limit, 1)
        require_now(now)
        self._tree.names.purge()
        room, blocks, following = limit, 0, math.inf
        for holder in self._holders(ranks):
            timers = holder.timers
            if room and timers.live and timers.next_deadline() <= now:
                looked, ended = expire(self._tree, holder, now, room)
                room -= looked
                blocks += ended
            following = min(following, timers.next_deadline())
        return Expired(limit - room, blocks, following)

    def _holders(self, ranks: Iterable[Rank] | None) -> list[Holder]:
        known = self._tree.ranks
        if ranks is None:
            return list(known.values())
        return [known[rank] for rank in ranks if rank in known]

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        """Forget a worker's ranks (or one): coverage, leases and slots; the blocks that went.

        Cost: O(ranks + segments of those ranks). Never a checkpoint.
        """
        tree = self._tree
        gone = [r for r in self._ranks if r[0] == worker_id and dp_rank in (None, r[1])]
        blocks = 0
        for rank in gone:
            holder = self._ranks[rank]
            blocks += tree.clear(holder)
            tree.retire(holder)
        return blocks

    def dump(self, now: float) -> bytes:
        """Everything as plain bytes, leases with the seconds that remain. O(blocks).

        Raises:
            ValueError: `now` is not finite.
        """
        require_now(now)
        if math.isinf(now):
            raise ValueError(f"what remains of a lease needs a finite now, got {now}")
        return encode(content_of(self._tree, now), self.block_size)

    def restore(self, dump: bytes, now: float) -> None:
        """Become what was dumped; the index must be empty.

        Raises:
            BlockSizeMismatch: The dump was made with another block size.
            DumpRefused: Another format or hash scheme, a damaged or contradictory dump, or this
                index knows a rank already. Nothing was written. A dump above the budget is no
                error; its excess is evicted.

        Cost: O(blocks).
        """
        if self._ranks:
            raise DumpRefused(f"an index that knows {len(self._ranks)} ranks cannot be restored")
        content = decode(dump, self.block_size)
        ordered = self.budget_blocks is not None
        # Built aside: a dump that is refused half way leaves nothing behind.
        tree = build(content, now, SegmentTree(self._tree.tick_seconds, ordered))
        self._tree, self._ranks = tree, tree.ranks
        if self.budget_blocks is not None:
            self._evicted += evict(tree, self.budget_blocks)

    def held(self, rank: Rank) -> int:
        """How many blocks a rank holds, confirmed and leased. O(1)."""
        holder = self._ranks.get(rank)
        return holder.blocks if holder else 0

    def statistics(self) -> RadixStatistics:
        """Counters, a snapshot. O(ranks)."""
        tree = self._tree
        holders = self._ranks.values()
        return RadixStatistics(
            ranks=len(holders),
            blocks=sum([h.blocks for h in holders]),
            leased_blocks=sum([h.blocks - h.confirmed for h in holders]),
            entries=tree.entries,
            segments=tree.nodes,
            names=len(tree.names.nodes),
            timers=sum([h.timers.live + h.timers.stale for h in holders]),
            evicted=self._evicted,
        )

    def digest(self) -> str:
        """16 hex digits that are equal where confirmed coverage is. O(confirmed blocks)."""
        return digest(self._tree)

    def check(self) -> None:
        """Assert every invariant and recount every counter. O(everything); for tests."""
        check(self._tree)
