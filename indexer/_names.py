"""What an engine calls the blocks of one rank, and what the chain calls them."""

import math
import struct

import attrs

from kvlanes.indexer._errors import MutationInvalid, PackedLengthInvalid
from kvlanes.indexer._identity import sequence_hashes
from kvlanes.indexer._mutations import Clear, Lease, Mutation, Rank, Remove, Store


@attrs.define(eq=False)
class Names:
    """One rank's confirmed blocks: one name a block, one block a name.

    A *place* is the published sequence hash of the whole prefix, so it says where a block lies
    whatever its engine calls it. Written only by the backend that owns it.
    """

    places: dict[int, int] = attrs.Factory(dict)
    """Name -> place."""
    names: dict[int, int] = attrs.Factory(dict)
    """Place -> name; the inverse."""

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, place: object) -> bool:
        return place in self.names

    def below(self, parent: int | None, blocks: bytes) -> tuple[int, ...] | None:
        """Places of a run of blocks under a named parent; `None` when it is not held here."""
        if parent is None:
            return sequence_hashes(blocks)
        place = self.places.get(parent)
        return None if place is None else continued(place, blocks)

    def give(self, place: int, name: int) -> int | None:
        """Name a block. Returns the place that lost this name to it, if one did. O(1)."""
        lost = self.places.get(name)
        if lost == place:
            return None
        if lost is not None:
            del self.names[lost]
        if place in self.names:
            del self.places[self.names[place]]
        self.places[name] = place
        self.names[place] = name
        return lost

    def take(self, name: int) -> int | None:
        """Forget a name. Returns the place it named, if it named one. O(1)."""
        place = self.places.pop(name, None)
        if place is not None:
            del self.names[place]
        return place

    def check(self) -> None:
        """Assert that both directions agree. O(blocks)."""
        assert len(self.places) == len(self.names), self
        assert all(self.names[place] == name for name, place in self.places.items()), self


def continued(place: int, blocks: bytes) -> tuple[int, ...]:
    """Places of a run of blocks that begins right after the block at `place`.

    The first link of a chain is named by its content alone, so a place can stand in for it.
    """
    return sequence_hashes(place.to_bytes(8, "big") + blocks)[1:]


def require_valid(mutation: Mutation, now: float) -> None:
    """Refuse what does not fit together, before anything is written. O(blocks).

    Raises:
        TypeError: No mutation, or a rank or blocks of another type.
        MutationInvalid: Parts that contradict each other, names that do not fit in 64 bits, or a
            deadline that is no number.
        PackedLengthInvalid: Packed blocks that are no whole number of hashes.
    """
    if not isinstance(mutation, Store | Remove | Clear):
        raise TypeError(f"a mutation is a Store, a Remove or a Clear, got {mutation!r}")
    if not isinstance(mutation.rank, Rank):
        raise TypeError(f"a mutation carries a Rank, got {mutation.rank!r}")
    if isinstance(mutation, Clear):
        return
    names = mutation.sequence_hashes
    try:
        struct.pack(f">{len(names)}Q", *names)
    except (struct.error, TypeError) as error:
        raise MutationInvalid(f"sequence hashes are unsigned 64-bit integers: {error}") from error
    if isinstance(mutation, Store):
        _require_store(mutation, now)


def _require_store(store: Store, now: float) -> None:
    if not isinstance(store.blocks, bytes):
        raise TypeError(f"blocks are packed in bytes, got {type(store.blocks).__name__}")
    count, rest = divmod(len(store.blocks), 8)
    if rest:
        raise PackedLengthInvalid(len(store.blocks))
    names = store.sequence_hashes
    if store.lease is not None:
        if store.parent is not None or names:
            raise MutationInvalid(f"a lease beside parent {store.parent} and {len(names)} hashes")
        if not deadline_of(store.lease, now) > -math.inf:  # also refuses NaN
            raise MutationInvalid(f"no deadline at {now} under {store.lease}")
    elif len(names) != count:
        raise MutationInvalid(f"{count} blocks need {count} sequence hashes, got {len(names)}")
    elif len({*names, store.parent}) != count + 1:
        raise MutationInvalid(
            f"{count} blocks under {store.parent} share sequence hashes: {list(names)[:8]}"
        )


def deadline_of(lease: Lease, now: float) -> float:
    """When a lease ends that is granted now.

    Raises:
        MutationInvalid: Its TTL was left open and no lane filled it in.
    """
    if lease.ttl_seconds is None:
        raise MutationInvalid(f"the TTL of {lease} was left open and no lane filled it in")
    return now + lease.ttl_seconds - lease.age_seconds
