"""What can happen to a rank's coverage: a closed union of values, and the counts that answer."""

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs


class _RankFields(NamedTuple):
    worker_id: str
    dp_rank: int


class Rank(_RankFields):
    """One data-parallel rank of one worker: the unit that holds blocks and owns a lane.

    A tuple below, because a rank is a dictionary key on every hot path and tuples hash and
    compare in C (35 ns against 180 ns of a generated `__hash__`).

    Args:
        worker_id: The worker's name, not empty.
        dp_rank: The data-parallel rank, 0 when the worker has only one.

    Raises:
        TypeError: The name is no string or the rank no integer. `None` is never rank 0.
        ValueError: The name is empty or the rank negative.
    """

    __slots__ = ()

    def __new__(cls, worker_id: str, dp_rank: int = 0) -> "Rank":
        if not isinstance(worker_id, str):
            raise TypeError(f"worker_id must be a string, got {worker_id!r}")
        if not isinstance(dp_rank, int) or isinstance(dp_rank, bool):
            raise TypeError(f"dp_rank must be an integer, got {dp_rank!r}")
        if not worker_id:
            raise ValueError("worker_id must not be empty")
        if dp_rank < 0:
            raise ValueError(f"dp_rank must not be negative, got {dp_rank}")
        return super().__new__(cls, worker_id, dp_rank)

    def __str__(self) -> str:
        return self.worker_id if self.dp_rank == 0 else f"{self.worker_id}:{self.dp_rank}"


def _seconds(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    if value is None:
        return
    if not isinstance(value, int | float):
        raise TypeError(f"{attribute.name} must be a number of seconds, got {value!r}")
    # Also refuses NaN, and integers that no float can hold.
    if not 0.0 <= value <= sys.float_info.max and value != math.inf:
        raise ValueError(f"{attribute.name} must be >= 0 and fit in a float, got {value!r:.40}")


def _finite(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if math.isinf(value):
        raise ValueError(f"{attribute.name} must be finite, got {value}")


@attrs.frozen
class Lease:
    """How long a guess of ours stands: coverage that nobody confirmed ends by itself.

    Args:
        ttl_seconds: Life from the moment the guess became true; 0 ends at once, infinity never,
            `None` takes the default of the lane that applies it.
        age_seconds: How long ago that moment was when the mutation was made (finite).

    Raises:
        TypeError: Something that is no number.
        ValueError: A negative number, NaN, or an integer that is too large for a float.
    """

    ttl_seconds: float | None = attrs.field(default=None, validator=_seconds)
    age_seconds: float = attrs.field(default=0.0, validator=[_seconds, _finite])


class Store(NamedTuple):
    """A rank now holds a run of blocks.

    Without a lease this is *confirmed* coverage: an engine event said so, and it stays until a
    removal, a clear or a departure. With a lease it is a guess that ends; a guess always starts
    at the root and carries no engine hashes.

    Attributes:
        rank: Who holds the blocks.
        parent: Sequence hash of the block before the first one, as this rank named it;
            `None` at the root. Always `None` with a lease.
        blocks: Block hashes, 8 bytes big-endian each, root side first (`Prompt.blocks`).
        sequence_hashes: The engine's own name of each block after its prefix, one for each
            block, any unsigned 64-bit integers; empty with a lease.
        lease: `None` for confirmed coverage.
    """

    rank: Rank
    parent: int | None
    blocks: bytes
    sequence_hashes: Sequence[int] = ()
    lease: Lease | None = None


class Remove(NamedTuple):
    """A rank no longer holds these blocks, named by the sequence hashes it stored them under."""

    rank: Rank
    sequence_hashes: Sequence[int]


class Clear(NamedTuple):
    """A rank holds nothing any more; it stays known."""

    rank: Rank


Mutation: TypeAlias = Store | Remove | Clear


class Applied(NamedTuple):
    """What one mutation did, in blocks; the four counts add up to the blocks it named.

    Attributes:
        applied: Coverage that changed (for `Clear`: the blocks that went).
        duplicates: Already as the mutation wants it. A refreshed lease counts here.
        missing_parent: Refused: this rank does not hold the parent.
        unknown: Named for removal, but not held by this rank.
    """

    applied: int = 0
    duplicates: int = 0
    missing_parent: int = 0
    unknown: int = 0
