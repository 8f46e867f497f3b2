"""What one rank holds in a `LeaseTable`."""

from collections.abc import Iterator, Sequence

import attrs

from kvlanes.indexer._lease_timers import LeaseTimers
from kvlanes.indexer._names import Names


@attrs.define(eq=False)
class Holding:
    """What one rank holds: confirmed blocks by name, leased ones by deadline."""

    names: Names
    leases: LeaseTimers

    def __contains__(self, place: object) -> bool:
        return place in self.names or place in self.leases.deadlines

    def __iter__(self) -> Iterator[int]:
        yield from self.names.names
        yield from self.leases.deadlines

    def __len__(self) -> int:
        return len(self.names) + len(self.leases.deadlines)

    def confirm(self, places: Sequence[int], names: Sequence[int]) -> tuple[int, list[int]]:
        """Name blocks in order: how many were confirmed before, and which places lost theirs."""
        duplicates, lost = 0, list[int | None]()
        for place, name in zip(places, names, strict=True):
            duplicates += place in self.names
            lost.append(self.names.give(place, name))
            self.leases.revoke(place)
        return duplicates, [p for p in dict.fromkeys(lost) if p is not None and p not in self]

    def guess(self, places: Sequence[int], deadline: float) -> int:
        """Lease blocks that are not confirmed; how many were held before."""
        duplicates = 0
        for place in places:
            duplicates += place in self
            if place not in self.names:
                self.leases.extend(place, deadline)
        return duplicates

    def check(self) -> None:
        self.names.check()
        self.leases.check()
        assert not self.names.names.keys() & self.leases.deadlines.keys()
