"""What an engine calls the blocks of one rank, and what the chain calls them."""

import attrs

from kvlanes.indexer._identity import sequence_hashes


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
