"""Which lane each rank sits on, and which of its incarnations lives."""

import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

from kvlanes.indexer import CapacityModel, Rank
from kvlanes.nursery._errors import StaleIncarnation

LaneT = TypeVar("LaneT")


@attrs.frozen(eq=False)
class Incarnation:
    """One life of a rank, from its registration to its reset or departure. Opaque: compare by `is`.

    Attributes:
        rank: Whose life.
        number: Counts all incarnations of a lane set, for messages.
    """

    rank: Rank
    number: int


@attrs.define(eq=False)
class Place(Generic[LaneT]):
    """Where one rank is served. Written by `Places` alone, `model` by the rank's lane."""

    rank: Rank
    lane: LaneT
    current: Incarnation | None = None
    departures: int = 0  # barriers under way; the place is forgotten with the last one
    model: CapacityModel | None = None  # of the living incarnation

    def seed(self) -> None:
        """The index is empty: the same capacity again, and nobody in it."""
        if self.model is not None:
            self.model = CapacityModel(self.rank, self.model.statistics().capacity)

    def stale(self, incarnation: Incarnation) -> StaleIncarnation:
        alive = "none" if self.current is None else f"number {self.current.number}"
        return StaleIncarnation(
            f"incarnation {incarnation.number} of {incarnation.rank} is not the living one "
            f"of {self.rank} ({alive})"
        )


@attrs.define(eq=False)
class Places(Generic[LaneT]):
    """The one table that says which incarnation lives. Written by its lane set alone.

    A rank keeps its lane until its departure is through: a producer that looked the lane up
    before may still queue there, and a second lane would let later work overtake it.
    """

    lanes: list[LaneT]
    table: dict[Rank, Place[LaneT]] = attrs.Factory(dict)
    leaving: set[Rank] = attrs.Factory(set)  # a departure of theirs is under way
    _turn: Iterator[LaneT] = attrs.field(init=False)
    _numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))

    @_turn.default
    def _round_robin(self) -> Iterator[LaneT]:
        return itertools.cycle(self.lanes)

    def attach(self, rank: Rank) -> Place[LaneT]:
        """The rank's place, with a living incarnation in it. O(1).

        Raises:
            TypeError: No `Rank`.
        """
        place = self.table.get(rank)
        if place is None:
            if not isinstance(rank, Rank):
                raise TypeError(f"a rank is a Rank, got {rank!r}")
            place = self.table[rank] = Place(rank, next(self._turn))
        if place.current is None:
            place.current = Incarnation(rank, next(self._numbers))
        return place

    def find(self, rank: Rank) -> Place[LaneT]:
        """The rank's place; if it has none, one where no incarnation lives. O(1)."""
        return self.table.get(rank) or Place(rank, self.lanes[0])

    def revoke(self, worker_id: str, dp_rank: int | None) -> list[Place[LaneT]]:
        """End the incarnations of a worker's ranks (or of one); their places stay. O(ranks)."""
        gone = [
            place
            for place in self.table.values()
            if place.rank.worker_id == worker_id and dp_rank in (None, place.rank.dp_rank)
        ]
        for place in gone:
            place.current = place.model = None
            place.departures += 1
            self.leaving.add(place.rank)
        return gone

    def departed(self, places: list[Place[LaneT]]) -> list[Place[LaneT]]:
        """A departure is through: forget the ranks that nobody registered again meanwhile."""
        gone = []
        for place in places:
            place.departures -= 1
            if place.departures:
                continue
            self.leaving.discard(place.rank)
            if place.current is None:
                gone.append(self.table.pop(place.rank))
        return gone
