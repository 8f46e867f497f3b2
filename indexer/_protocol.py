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


class Counted(Protocol):
    """What every snapshot of an index tells."""

    @property
    def blocks(self) -> int:
        """(Rank, block) pairs that are held."""
        ...


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

    What it refuses, it refuses by an `IndexerError`, before its first write, and is as it was.
    Any other exception, whatever its type, says that it is broken: its owner must replace it.
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


class DurableBackend(IndexBackend, Protocol):
    """An `IndexBackend` that can be counted, compared and carried to another process.

    `RadixIndex` and whatever a `LeaseTable` wraps are. `TierIndex` is not: its slower tiers have
    no dump, and come back as engines announce them again.
    """

    def dump(self, now: float) -> bytes:
        """Everything held as plain bytes, leases with the seconds that remain."""
        ...

    def restore(self, dump: bytes, now: float) -> None:
        """Become what was dumped; the index must be empty. Refuses with nothing written."""
        ...

    def digest(self) -> str:
        """16 hex digits that are equal where confirmed coverage is."""
        ...

    def statistics(self) -> Counted:
        """Counts as of now, a frozen snapshot."""
        ...

    def check(self) -> None:
        """Assert every invariant and recount every counter; for tests."""
        ...
