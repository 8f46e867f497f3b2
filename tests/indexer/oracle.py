"""The naive index: two dictionaries a rank. What it does is what every backend must do.

Where the design leaves something open, this page decides; the contract tests pin it.

Store
    A confirmed store equals its blocks stored one after another, each under the one before.
    One name a block and one block a name, within a rank:
    a held block that comes under another name is renamed (a duplicate; the old name is unknown
    from then on), and a name that comes at another place moves there (the block it named before
    is forgotten, counted nowhere, and leaves a hole).
    Not held before, or held by a lease: `applied` (confirming revokes the lease). Held and
    confirmed: `duplicates`.
    The parent is looked up in this rank's own names before the first block; it may lie behind a
    hole, it may not *be* the hole. Not found: every block counts as `missing_parent`.
    A leased store goes block by block from the root: not held, `applied`; held by a lease,
    `duplicates`, and the later deadline stays; confirmed, `duplicates`, and no lease is kept.
    Its deadline is `now + ttl_seconds - age_seconds`, or `now` when that has passed already: the
    next `expire` ends it. From 2**53 on it is a lease that never ends by itself; it has no name,
    so only a confirming store, `Clear` or `drop` ends it.
    No blocks: `Applied()`, whatever the parent; the rank does not become known by it.
Remove
    Names from left to right: `applied` for a block that this rank held under that name, else
    `unknown` (also the second time within one batch, and for a rank never seen). Leased blocks
    have no name and are never reached. What lay behind stays held, and hidden.
Clear
    Everything the rank held, confirmed and leased, goes and counts as `applied`.
Refused before anything is written
    Always by an `IndexerError`: any other exception says that the index is broken.
    By `PackedLengthInvalid`: packed blocks whose length is no multiple of 8.
    By `MutationInvalid`: names that are no unsigned 64-bit integers; not exactly one name a block
    in a confirmed store; a name twice in one store; the parent's name among the store's own names;
    a lease together with a parent or names; a lease without `ttl_seconds`, or at a time that is no
    number.
    By `MutationTypeInvalid`: what is no mutation, a rank that is no `Rank`, blocks that are no
    bytes, a parent that is no integer, a lease that is none.
Expire
    A lease ends when its deadline is at or before `now`, never earlier, and at most one tick
    later (ticks are the backend's matter; 0 here). Which of the due entries a limited call takes
    is free. `limit` < 1 is a `ValueError`. Unknown ranks are nothing to do. While due entries are
    left `next_deadline <= now`; otherwise it is later than `now`, and infinity when calling again
    would never end anything.
Drop
    Ends all coverage of the worker's ranks (or of one) and forgets that they were known.
    Answers the blocks that went; an unknown worker is 0.
Overlap
    A value of its moment: later mutations do not change it. Only ranks with at least one block
    are in `scores()`; `best(())` is 0.
Digest
    Over confirmed coverage only, since a lease is one router's private guess: the sum modulo 2**64
    of a hash of each row (rank, sequence hash of the whole prefix, name), as 16 hex digits. All
    backends give the same digest for the same rows (`digest_row`).
"""

import itertools
import math
import operator
from collections.abc import Collection

import attrs
from xxhash import xxh3_64_intdigest

from kvlanes.indexer import (
    Applied,
    BlockSizeMismatch,
    Clear,
    Expired,
    Lease,
    Mutation,
    MutationInvalid,
    MutationTypeInvalid,
    PackedLengthInvalid,
    Prompt,
    Rank,
    Remove,
    Store,
    sequence_hashes,
)


def digest_row(rank: Rank, path_hash: int, name: int) -> int:
    """One row's share of the digest; names are UTF-8, lone surrogates too; numbers big-endian."""
    key = f"{rank.worker_id}\0{rank.dp_rank}\0".encode(errors="surrogatepass")
    return xxh3_64_intdigest(key + path_hash.to_bytes(8, "big") + name.to_bytes(8, "big"))


@attrs.frozen
class OracleOverlap:
    depths: dict[Rank, int]

    def of(self, rank: Rank) -> int:
        return self.depths.get(rank, 0)

    def best(self, eligible: Collection[Rank] | None = None) -> int:
        ranks = self.depths if eligible is None else eligible
        return max((self.of(rank) for rank in ranks), default=0)

    def scores(self) -> dict[Rank, int]:
        return dict(self.depths)


@attrs.frozen
class OracleStatistics:
    ranks: int
    blocks: int
    leased_blocks: int


@attrs.define(eq=False)
class Holdings:
    """What one rank holds: prefixes (packed blocks from the root), by name or by lease."""

    named: dict[bytes, int] = attrs.Factory(dict)
    leased: dict[bytes, float] = attrs.Factory(dict)

    def __contains__(self, path: bytes) -> bool:
        return path in self.named or path in self.leased

    def __len__(self) -> int:
        return len(self.named) + len(self.leased)

    def path_of(self, name: int) -> bytes | None:
        return next((path for path, other in self.named.items() if other == name), None)

    def confirm(self, path: bytes, name: int) -> bool:
        """Hold `path` under `name`; whether that was more than a duplicate."""
        before = self.path_of(name)
        if before is not None and before != path:
            del self.named[before]
        fresh = path not in self.named
        self.named[path] = name
        self.leased.pop(path, None)
        return fresh

    def guess(self, path: bytes, deadline: float) -> bool:
        fresh = path not in self
        if path not in self.named:
            self.leased[path] = max(deadline, self.leased.get(path, -math.inf))
        return fresh

    def remove(self, name: int) -> bool:
        path = self.path_of(name)
        if path is not None:
            del self.named[path]
        return path is not None

    def depth(self, blocks: bytes) -> int:
        ends = range(8, len(blocks) + 1, 8)
        held = itertools.takewhile(lambda end: blocks[:end] in self, ends)
        return sum(1 for _ in held)


def refuse_malformed(mutation: Mutation, now: float) -> None:
    if not isinstance(mutation, Store | Remove | Clear) or not isinstance(mutation.rank, Rank):
        raise MutationTypeInvalid(mutation)
    if isinstance(mutation, Clear):
        return
    try:
        names = [operator.index(name) for name in mutation.sequence_hashes]
    except TypeError as error:
        raise MutationInvalid(f"not all unsigned 64-bit integers: {error}") from error
    if not all(0 <= name < 2**64 for name in names):
        raise MutationInvalid(f"not all unsigned 64-bit integers: {names}")
    if isinstance(mutation, Remove):
        return
    if not isinstance(mutation.blocks, bytes) or not isinstance(mutation.lease, Lease | None):
        raise MutationTypeInvalid(mutation)
    if not isinstance(mutation.parent, int | None):
        raise MutationTypeInvalid(mutation)
    if len(mutation.blocks) % 8:
        raise PackedLengthInvalid(len(mutation.blocks))
    blocks, lease = len(mutation.blocks) // 8, mutation.lease
    if lease is not None:
        if mutation.parent is not None or names or lease.ttl_seconds is None or not now > -math.inf:
            raise MutationInvalid(f"a lease has a TTL, no parent, no names: {mutation} at {now}")
    elif len(names) != blocks:
        raise MutationInvalid(f"{blocks} blocks, {len(names)} sequence hashes")
    elif len({*names, mutation.parent}) != blocks + 1:
        raise MutationInvalid(f"a sequence hash comes twice in {blocks} blocks and their parent")


class Oracle:
    """A backend that can be seen to be right. O(everything) for every call."""

    tick_seconds = 0.0

    def __init__(self, block_size: int = 16) -> None:
        self.block_size = block_size
        self.ranks: dict[Rank, Holdings] = {}

    def apply(self, mutation: Mutation, now: float) -> Applied:
        refuse_malformed(mutation, now)
        if isinstance(mutation, Store):
            return self._store(mutation, now)
        held = self.ranks.get(mutation.rank, Holdings())
        if isinstance(mutation, Remove):
            done = sum([held.remove(name) for name in mutation.sequence_hashes])
            return Applied(applied=done, unknown=len(mutation.sequence_hashes) - done)
        gone = len(held)
        held.named.clear()
        held.leased.clear()
        return Applied(applied=gone)

    def _store(self, store: Store, now: float) -> Applied:
        count = len(store.blocks) // 8
        held = self.ranks.get(store.rank, Holdings())
        parent = b"" if store.parent is None else held.path_of(store.parent)
        if parent is None or not count:
            return Applied(missing_parent=count)
        self.ranks[store.rank] = held
        paths = [parent + store.blocks[: 8 * k] for k in range(1, count + 1)]
        if store.lease is None:
            fresh = sum(
                [held.confirm(path, int(n)) for path, n in zip(paths, store.sequence_hashes)]
            )
        else:
            assert store.lease.ttl_seconds is not None
            deadline = max(now, now + store.lease.ttl_seconds - store.lease.age_seconds)
            deadline = deadline if deadline < 2**53 else math.inf
            fresh = sum([held.guess(path, deadline) for path in paths])
        return Applied(applied=fresh, duplicates=count - fresh)

    def overlap(self, prompt: Prompt) -> OracleOverlap:
        if prompt.block_size != self.block_size:
            raise BlockSizeMismatch(prompt.block_size, self.block_size)
        depths = {rank: held.depth(prompt.blocks) for rank, held in self.ranks.items()}
        return OracleOverlap({rank: depth for rank, depth in depths.items() if depth})

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired:
        if limit < 1:
            raise ValueError(f"limit must be >= 1, got {limit}")
        asked = [(r, h) for r, h in self.ranks.items() if ranks is None or r in ranks]
        due = [(h, p) for _, h in asked for p, end in h.leased.items() if end <= now][:limit]
        for held, path in due:
            del held.leased[path]
        left = [end for _, held in asked for end in held.leased.values()]
        return Expired(len(due), len(due), min(left, default=math.inf))

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        gone = [r for r in self.ranks if r[0] == worker_id and dp_rank in (None, r[1])]
        return sum([len(self.ranks.pop(rank)) for rank in gone])

    def digest(self) -> str:
        rows = [(r, p, n) for r, held in self.ranks.items() for p, n in held.named.items()]
        return f"{sum(digest_row(r, sequence_hashes(p)[-1], n) for r, p, n in rows) % 2**64:016x}"

    def statistics(self) -> OracleStatistics:
        held = self.ranks.values()
        blocks, leased = sum(map(len, held)), sum(len(h.leased) for h in held)
        return OracleStatistics(len(held), blocks, leased)

    def check(self) -> None:
        for rank, held in self.ranks.items():
            assert not held.named.keys() & held.leased.keys(), rank
            assert len({*held.named.values()}) == len(held.named), rank
