"""Coverage in more than one tier: what left the device may still be near."""

import enum
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import attrs

from kvlanes.indexer._digest import shown
from kvlanes.indexer._errors import BudgetRefused, MutationInvalid
from kvlanes.indexer._identity import Prompt
from kvlanes.indexer._mutations import Applied, Mutation, Rank, Remove, Store
from kvlanes.indexer._names import Names, continued
from kvlanes.indexer._positional import PositionalIndex
from kvlanes.indexer._protocol import Counted, Expired, IndexBackend
from kvlanes.indexer._validation import require_valid, unpack


class Tier(enum.Enum):
    """Where a rank keeps a block, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    EXTERNAL = "external"


SLOWER = (Tier.HOST, Tier.DISK, Tier.EXTERNAL)


class TierBlocks(NamedTuple):
    """One rank's overlap, by tier: each tier continues where the faster ones stopped."""

    device: int = 0
    host: int = 0
    disk: int = 0
    external: int = 0


@attrs.frozen
class TieredOverlap:
    """An `Overlap` whose depth is the sum over the tiers, and which tells them apart."""

    _ends: tuple[Mapping[Rank, int], ...]

    def tiers(self, rank: Rank) -> TierBlocks:
        """The blocks that each tier adds; zeros when `rank` holds nothing of the prompt."""
        ends = [0, *(end.get(rank, 0) for end in self._ends)]
        return TierBlocks(*[end - before for before, end in itertools.pairwise(ends)])

    def of(self, rank: Rank) -> int:
        """Blocks of the prompt that `rank` reaches through all its tiers; 0 when none."""
        return self._ends[-1].get(rank, 0)

    def best(self, eligible: Collection[Rank] | None = None) -> int:
        """The deepest overlap of any (eligible) rank, in blocks."""
        ranks = self._ends[-1] if eligible is None else eligible
        return max(map(self.of, ranks), default=0)

    def scores(self) -> dict[Rank, int]:
        """Every rank that reaches at least the first block, with its overlap in blocks."""
        return dict(self._ends[-1])


@attrs.frozen
class TierStatistics:
    """A snapshot of a `TierIndex`: (rank, block) pairs held.

    Attributes:
        blocks: In all tiers together; a block that lies in two tiers counts twice.
        by_tier: In each tier.
    """

    blocks: int
    by_tier: Mapping[Tier, int]


class DeviceIndex(IndexBackend, Protocol):
    """What `TierIndex` asks of the index of the device tier; every backend here has it."""

    def digest(self) -> str: ...

    def statistics(self) -> Counted: ...

    def check(self) -> None: ...


class TierIndex:
    """A device index and, behind it, what its ranks keep in host memory, on disk and outside.

    Each tier is exact by itself: a removal or a clear in one leaves the others. An overlap
    begins on the device and continues in host memory from the first block that the device does
    not hold, then on disk, then outside; it never turns back to a faster tier, so blocks that
    lie interleaved are under-reported.

    A store in a slower tier may name a parent that this rank holds in any tier, since engines
    offload a child before its parent. For that, the names of confirmed device blocks are kept
    here a second time (about 180 bytes a block). Leases live on the device only.

    Args:
        device: The index of the device tier, empty; written by this index only.

    Raises:
        BudgetRefused: The device index gives up blocks by itself: its `budget_blocks` is not
            `None`. Their names would stay here for ever.
    """

    def __init__(self, device: DeviceIndex) -> None:
        budget_blocks = getattr(device, "budget_blocks", None)
        if budget_blocks is not None:
            raise BudgetRefused("TierIndex", budget_blocks)
        self._device = device
        self._device_names: dict[Rank, Names] = {}
        self._slower = {tier: PositionalIndex(device.block_size) for tier in SLOWER}

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._device.block_size

    def apply(self, mutation: Mutation, now: float, tier: Tier = Tier.DEVICE) -> Applied:
        """Apply one mutation to one tier. O(blocks). Never a checkpoint.

        Raises:
            IndexerError: Its parts do not fit together, or a lease outside the device tier;
                nothing was written.
        """
        if tier is Tier.DEVICE:
            done = self._device.apply(mutation, now)
            self._mirror(mutation, done)
            return done
        names = unpack(require_valid(mutation, now))
        if isinstance(mutation, Store):
            return self._store(mutation, names, tier)
        return self._slower[tier].apply(mutation)

    def _mirror(self, mutation: Mutation, done: Applied) -> None:
        if isinstance(mutation, Store):
            if mutation.lease is None and (done.applied or done.duplicates):
                self._mirror_store(mutation)
        elif isinstance(mutation, Remove):
            names = self._device_names.get(mutation.rank, Names())
            for name in mutation.sequence_hashes:
                names.take(name)
        else:
            self._device_names.pop(mutation.rank, None)

    def _mirror_store(self, store: Store) -> None:
        names = self._device_names.setdefault(store.rank, Names())
        places = names.below(store.parent, store.blocks)
        assert places is not None  # the device took it, so it is held under this name
        for place, name in zip(places, store.sequence_hashes, strict=True):
            names.give(place, name)

    def _store(self, store: Store, names: Sequence[int], tier: Tier) -> Applied:
        if store.lease is not None:
            raise MutationInvalid(f"leases live on the device tier, not on {tier.value}")
        if store.parent is None:
            return self._slower[tier].apply(store)
        place = self._place(store.rank, store.parent, tier)
        if place is None:
            return Applied(missing_parent=len(store.blocks) // 8)
        places = continued(place, store.blocks)
        return self._slower[tier].store_at(store.rank, places, names)

    def _place(self, rank: Rank, name: int, tier: Tier) -> int | None:
        """Where a block of this name lies: this tier's own word first, then fastest first."""
        place = self._slower[tier].place(rank, name)
        if place is None and rank in self._device_names:
            place = self._device_names[rank].places.get(name)
        for other in self._slower.values():
            place = other.place(rank, name) if place is None else place
        return place

    def overlap(self, prompt: Prompt) -> TieredOverlap:
        """How deep each rank's coverage reaches, tier by tier. O(blocks x ranks).

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
        """
        ends: list[Mapping[Rank, int]] = [self._device.overlap(prompt).scores()]
        for index in self._slower.values():
            ends.append(index.continued(prompt.sequence_hashes, ends[-1]))
        return TieredOverlap(tuple(ends))

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired:
        """End leases that are due on the device, as its index does it."""
        return self._device.expire(now, limit, ranks)

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        """Forget a worker's ranks (or one of them) in every tier; the blocks that went."""
        gone = [r for r in self._device_names if r[0] == worker_id and dp_rank in (None, r[1])]
        for rank in gone:
            del self._device_names[rank]
        tiers: list[IndexBackend] = [self._device, *self._slower.values()]
        return sum([index.drop(worker_id, dp_rank) for index in tiers])

    def digest(self) -> str:
        """An order-free digest over all tiers; the device's own while the others are empty."""
        total = int(self._device.digest(), 16)
        for tier, index in self._slower.items():
            total += index.digest_of(tier.value)
        return shown(total)

    def statistics(self) -> TierStatistics:
        """Counts as of now. O(ranks)."""
        by_tier = {Tier.DEVICE: self._device.statistics().blocks}
        by_tier |= {tier: index.statistics().blocks for tier, index in self._slower.items()}
        return TierStatistics(sum(by_tier.values()), by_tier)

    def check(self) -> None:
        """Assert every invariant of every tier. O(blocks)."""
        self._device.check()
        for names in self._device_names.values():
            names.check()
        for index in self._slower.values():
            index.check()
