"""What one rank holds in one tier, by its engine's own account; makes the index mutations. Pure.

An engine may store one block several times (a prompt computed twice) and then removes it as
often, so announcements are counted and the index hears of the last removal only. Stores are
handed on even when they are known: a confirming event revokes a guess of ours, and an index that
dropped a block for its budget gets it back.

Every doubt is decided so that too little is reported: a block whose parent, depth, content or
size is uncertain is left out, and its removals then find nothing.
"""

from itertools import repeat
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from kvlanes.engine.feeds._decode import read_tokens
from kvlanes.engine.feeds._errors import TokensUnreadable
from kvlanes.engine.feeds._events import Batch, Cleared, Event, Removed, Stored, Unknown, Unreadable
from kvlanes.engine.feeds._feed import EventCounts
from kvlanes.engine.feeds._options import Counting
from kvlanes.indexer import Clear, Mutation, Rank, Remove, Store, block_hashes, multimodal_key

Identity: TypeAlias = tuple[str | None, str | None]
_BASE: Identity = (None, None)
_NOT_HELD = -1

_TIERS = {
    "GPU": "device",
    "DEVICE": "device",
    "CPU": "host",
    "CPU_PINNED": "host",
    "CPU_TIER1": "host",
    "CPU_TIER2": "disk",
    "DISK": "disk",
    "NVME": "disk",
    "STORAGE": "disk",
}
_WHOLE_PREFIX = ("full_attention", "mla_attention")


class Ledger:
    """The blocks of one (rank, tier), in the one KV-cache group that decides about prefixes.

    A model with several groups keeps each prefix in all of them, but only full attention keeps
    all of its blocks: the first group that says so is followed (group 0 when none says
    anything), and the others are counted.

    One writer: the task that follows the rank. About 100 bytes a held block.

    Args:
        rank: Whose blocks.
        block_size: Tokens a block; stores of another size are refused.
        tier: The tier that is followed: `device`, `host`, `disk` or `external`.
        counting: `refs` counts announcements. `set` is for engines that repeat stores without
            repeating removals (a full report mode): the first removal counts.
        group: The KV-cache group to follow; `None` finds it.
        complete: Whether the rank is known to hold nothing yet.
        counts: What to count in; its own when `None`.

    Attributes:
        complete: Whether all that happened since the cache was last empty was seen; if not,
            what is held here is a part of what the engine holds.
    """

    def __init__(
        self,
        rank: Rank,
        block_size: int,
        *,
        tier: str = "device",
        counting: Counting = "refs",
        group: int | None = None,
        complete: bool = True,
        counts: EventCounts | None = None,
    ) -> None:
        self.rank = rank
        self.block_size = block_size
        self.complete = complete
        self.counts = EventCounts() if counts is None else counts
        self._tier = tier
        self._counted = counting == "refs"
        self._group = group
        self._group_fixed = group is not None
        self._parents: dict[int, int | None] = {}  # each held block, and what it hangs on
        self._extra: dict[int, int] = {}  # announcements beyond the first
        self._ambiguous: set[int] = set()  # held blocks whose name means two contents
        self._identities: dict[int, Identity] = {}  # of blocks that are not the base model's

    def __len__(self) -> int:
        return len(self._parents)

    def announcements(self, block: int) -> int:
        """How often a block was stored and not yet removed. O(1)."""
        return 1 + self._extra.get(block, 0) if block in self._parents else 0

    def apply(self, batch: Batch) -> list[Mutation]:
        """Take a batch, all of it, and say what the index must do. O(tokens). Never raises."""
        mutations: list[Mutation] = []
        for event in batch.events:
            kind = type(event)
            if kind is Stored:
                self._store(event, mutations)  # type: ignore[arg-type]
            elif kind is Removed:
                self._remove(event, mutations)  # type: ignore[arg-type]
            else:
                self._other(event, mutations)
        return mutations

    def lose(self) -> Clear:
        """Something was missed that may have removed blocks: from now on, hold nothing."""
        self._empty(complete=False)
        return Clear(self.rank)

    def restart(self) -> None:
        """Another engine process begins, with an empty cache."""
        self._empty(complete=True)
        if not self._group_fixed:
            self._group = None

    def _empty(self, *, complete: bool) -> None:
        self.counts.clears += 1
        self.complete = complete
        self._parents.clear()
        self._extra.clear()
        self._ambiguous.clear()
        self._identities.clear()

    def _other(self, event: Event, mutations: list[Mutation]) -> None:
        if isinstance(event, Unknown):
            self.counts.unknown_events += 1
        elif isinstance(event, Cleared):
            self._empty(complete=True)
            mutations.append(Clear(self.rank))
        elif isinstance(event, Unreadable):
            self.counts.unreadable_events += 1
            self.complete = False
            if not event.harmless:
                mutations.append(self.lose())

    # -- stores

    def _store(self, event: Stored, mutations: list[Mutation]) -> None:
        if not self._concerns(event) or not self._fits(event):
            return
        identity = self._identity(event)
        blocks = self._blocks(event, identity)
        if blocks is None:
            return
        kept = self._enter(event, identity)
        if kept == len(event.hashes):
            mutations.append(Store(self.rank, event.parent, blocks, event.hashes))
        elif kept:
            store = Store(self.rank, event.parent, blocks[: 8 * kept], event.hashes[:kept])
            mutations.append(store)

    def _concerns(self, event: Stored) -> bool:
        """Whether the store belongs to the followed tier and group; may choose the group."""
        if _TIERS.get(event.medium, "external") != self._tier:
            self.counts.other_tiers += 1
            return False
        if event.block_size != self.block_size:
            self.counts.refused(event.group, event.block_size)
            return False
        if self._group is None and self._decides(event):
            self._group = event.group
        if event.group != self._group:
            self.counts.other_groups += 1
            return False
        return True

    def _decides(self, event: Stored) -> bool:
        return event.kind in _WHOLE_PREFIX or (event.kind is None and event.group == 0)

    def _fits(self, event: Stored) -> bool:
        """Whether the store hangs on a held block and names each block once."""
        hashes, parent = event.hashes, event.parent
        if not hashes:
            self.counts.non_dense += 1
            return False
        if len({parent, *hashes}) <= len(hashes):
            self.counts.malformed += 1
            return False
        if parent is not None and parent not in self._parents:
            self.counts.orphans += 1
            return False
        return True

    def _identity(self, event: Stored) -> Identity:
        """Adapter and salt, inherited from the parent where the event does not name them."""
        if event.parent is None or not self._identities:
            return event.adapter, event.salt
        adapter, salt = self._identities.get(event.parent, _BASE)
        return event.adapter or adapter, event.salt or salt

    def _blocks(self, event: Stored, identity: Identity) -> bytes | None:
        """Packed block hashes of our own; `None` when the tokens do not fill the blocks."""
        try:
            tokens, overlapping = read_tokens(event.tokens)
        except TokensUnreadable:
            self.counts.malformed += 1
            self.complete = False
            return None
        if len(tokens) - overlapping != self.block_size * len(event.hashes):
            self.counts.non_dense += 1
            return None
        adapter, namespace = identity
        keys = [_keys(names) for names in event.keys[: len(event.hashes)]] if event.keys else None
        return block_hashes(
            tokens,
            self.block_size,
            adapter=adapter,
            namespace=namespace,
            multimodal=keys,
            overlapping=overlapping,
        )

    def _enter(self, event: Stored, identity: Identity) -> int:
        """Hold the blocks; how many of the run, since a contradiction ends it."""
        hashes = event.hashes
        parents = self._parents
        if parents.keys().isdisjoint(hashes):
            parents.update(zip(hashes, [event.parent, *hashes]))
            kept = len(hashes)
            self.counts.stored_blocks += kept
        else:
            kept = self._enter_again(hashes, event.parent, identity)
        if identity != _BASE:
            self._identities.update(dict.fromkeys(hashes[:kept], identity))
        return kept

    def _enter_again(self, hashes: list[int], parent: int | None, identity: Identity) -> int:
        for at, block in enumerate(hashes):
            if block not in self._parents:
                self._parents[block] = parent
                self.counts.stored_blocks += 1
            elif (self._parents[block], self._identities.get(block, _BASE)) != (parent, identity):
                # One name for two contents: a removal could mean either, so the first ends both.
                self.counts.conflicts += 1
                self._ambiguous.add(block)
                self._extra.pop(block, None)
                return at
            else:
                self.counts.duplicate_blocks += 1
                if self._counted and block not in self._ambiguous:
                    self._extra[block] = self._extra.get(block, 0) + 1
            parent = block
        return len(hashes)

    # -- removals

    def _remove(self, event: Removed, mutations: list[Mutation]) -> None:
        if _TIERS.get(event.medium, "external") != self._tier:
            self.counts.other_tiers += 1
            return
        if event.group != (self._group or 0):
            self.counts.other_groups += 1
            return
        gone = self._leave(event.hashes)
        if gone:
            self.counts.removed_blocks += len(gone)
            mutations.append(Remove(self.rank, gone))

    def _leave(self, hashes: list[int]) -> list[int]:
        """Undo one announcement of each; the blocks for which it was the last."""
        parents, extra = self._parents, self._extra
        if self._ambiguous or self._identities or (extra and not extra.keys().isdisjoint(hashes)):
            return [block for block in hashes if self._release(block)]
        # Most removals: plain blocks that were announced once.
        before = len(parents)
        hung_on = list(map(parents.pop, hashes, repeat(_NOT_HELD)))
        if before - len(parents) == len(hashes):
            return hashes
        gone = [block for block, parent in zip(hashes, hung_on) if parent != _NOT_HELD]
        self.counts.unknown_removals += len(hashes) - len(gone)
        return gone

    def _release(self, block: int) -> bool:
        """Undo one announcement; whether it was the last."""
        if block not in self._parents:
            self.counts.unknown_removals += 1
            return False
        extra = self._extra.pop(block, 0)
        if extra:
            if extra > 1:
                self._extra[block] = extra - 1
            return False
        del self._parents[block]
        self._ambiguous.discard(block)
        self._identities.pop(block, None)
        return True

    def check(self) -> None:
        """Assert that counts and identities belong to held blocks. O(blocks)."""
        assert self._extra.keys() <= self._parents.keys(), self._extra
        assert self._identities.keys() <= self._parents.keys(), self._identities
        assert self._ambiguous <= self._parents.keys() - self._extra.keys(), self._ambiguous
        assert all(extra > 0 for extra in self._extra.values()), self._extra


def _keys(names: tuple[object, ...]) -> list[int]:
    return [_key(name) for name in names]


def _key(name: object) -> int:
    if isinstance(name, bytes):
        return xxh3_64_intdigest(name, 0)
    return multimodal_key(str(name)) or 0
