"""What every index backend offers: the seam between lanes and indexes."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from kvlanes.indexer._identity import Prompt
from kvlanes.indexer._mutations import Applied, Mutation, Rank


class Expired(NamedTuple):
    """What one slice of expiry did.

    Attributes:
        entries: Timer entries looked at, at most the limit of the call.
        blocks: Leased (rank, block) pairs that ended.
        next_deadline: When the ranks asked for need the next call, on the caller's clock;
            at or before `now` when the limit cut the slice short, infinity when nothing waits.
    """

    entries: int
    blocks: int
    next_deadline: float


class Overlap(Protocol):
    """How deep each rank's coverage of one prompt reaches; a value, taken at one moment."""

    def of(self, rank: Rank) -> int:
        """Blocks of the longest root-contiguous prefix that `rank` holds; 0 when none."""
        ...

    def best(self, eligible: Collection[Rank] | None = None) -> int:
        """The deepest overlap of any (eligible) rank, in blocks."""
        ...

    def scores(self) -> dict[Rank, int]:
        """Every rank that holds at least the first block, with its overlap in blocks."""
        ...


class IndexBackend(Protocol):
    """An exact account of which rank holds which blocks. Plain synchronous, one caller at a time.

    A raised exception before the first write leaves the index as it was; after it, the index is
    broken and its owner must replace it.
    """

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        ...

    def apply(self, mutation: Mutation, now: float) -> Applied: ...

    def overlap(self, prompt: Prompt) -> Overlap: ...

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired: ...

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int: ...
