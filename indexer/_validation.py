"""What a mutation must be before any backend looks at it: one rule for all of them."""

import struct
from collections.abc import Sequence

from kvlanes.indexer._deadlines import deadline_of
from kvlanes.indexer._errors import MutationInvalid, MutationTypeInvalid, PackedLengthInvalid
from kvlanes.indexer._mutations import Clear, Lease, Mutation, Rank, Remove, Store


def require_valid(mutation: Mutation, now: float) -> bytes:
    """Refuse what does not fit together, before anything is written. O(blocks).

    Returns:
        Its sequence hashes, packed: 8 bytes big-endian each.

    Raises:
        MutationTypeInvalid: No mutation, or a part of another type.
        MutationInvalid: Parts that contradict each other, names that do not fit in 64 bits, or a
            deadline that is no number.
        PackedLengthInvalid: Packed blocks that are no whole number of hashes.
    """
    if isinstance(mutation, Store):
        return require_store(mutation, now)
    if not isinstance(mutation, Remove | Clear):
        raise MutationTypeInvalid(f"a mutation is a Store, a Remove or a Clear, got {mutation!r}")
    if not isinstance(mutation.rank, Rank):
        raise MutationTypeInvalid(f"a mutation carries a Rank, got {mutation.rank!r}")
    return pack(mutation.sequence_hashes) if isinstance(mutation, Remove) else b""


def require_store(store: Store, now: float) -> bytes:
    """`require_valid` for what is known to be a store."""
    rank, parent, blocks, names, lease = store
    if not isinstance(rank, Rank):
        raise MutationTypeInvalid(f"a mutation carries a Rank, got {rank!r}")
    if not isinstance(blocks, bytes):
        raise MutationTypeInvalid(f"blocks are packed in bytes, got {type(blocks).__name__}")
    if len(blocks) & 7:
        raise PackedLengthInvalid(len(blocks))
    packed, count = pack(names), len(blocks) >> 3
    if lease is not None:
        _require_guess(lease, parent, packed, now)
    elif parent is not None and not isinstance(parent, int):
        raise MutationTypeInvalid(f"a parent is an integer or None, got {parent!r}")
    elif len(packed) != len(blocks):
        raise MutationInvalid(f"{count} blocks need as many names, got {len(packed) >> 3}")
    elif len({*unpack(packed), parent}) != count + 1:
        raise MutationInvalid(f"a sequence hash comes twice in {count} blocks and their parent")
    return packed


def _require_guess(lease: Lease, parent: int | None, packed: bytes, now: float) -> None:
    if not isinstance(lease, Lease):
        raise MutationTypeInvalid(f"a lease is a Lease or None, got {lease!r}")
    if parent is not None or packed:
        raise MutationInvalid(f"a lease beside parent {parent!r} and {len(packed) >> 3} hashes")
    deadline_of(lease, now)


def pack(names: Sequence[int]) -> bytes:
    """Integers as packed 64-bit values.

    Raises:
        MutationInvalid: Something else, or an integer that does not fit.
    """
    try:
        return struct.pack(f">{len(names)}Q", *names)
    except (struct.error, TypeError) as error:
        raise MutationInvalid(
            f"sequence hashes are unsigned 64-bit integers (see engine_hash): {error}"
        ) from error


def unpack(packed: bytes) -> tuple[int, ...]:
    """Packed 64-bit values as integers."""
    return struct.unpack(f">{len(packed) >> 3}Q", packed)
