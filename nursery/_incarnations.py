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
class Seat(Generic[LaneT]):
    """Where one rank is served. Written by `Seats` alone, `model` by the rank's lane."""

    rank: Rank
    lane: LaneT
    current: Incarnation | None = None
    departures: int = 0  # barriers under way; the seat is forgotten with the last one
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
class Seats(Generic[LaneT]):
    """The one table that says which incarnation lives. Written by its lane set alone.

    A rank keeps its lane until its departure is through: a producer that looked the lane up
    before may still queue there, and a second lane would let later work overtake it.
    """

    lanes: list[LaneT]
    table: dict[Rank, Seat[LaneT]] = attrs.Factory(dict)
    of_worker: dict[str, dict[Rank, Seat[LaneT]]] = attrs.Factory(dict)  # the same seats
    leaving: set[Rank] = attrs.Factory(set)  # a departure of theirs is under way
    _turn: Iterator[LaneT] = attrs.field(init=False)
    _numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))

    @_turn.default
    def _round_robin(self) -> Iterator[LaneT]:
        return itertools.cycle(self.lanes)

    def attach(self, rank: Rank) -> Seat[LaneT]:
        """The rank's seat, with a living incarnation in it. O(1).

        Raises:
            TypeError: No `Rank`.
        """
        seat = self.table.get(rank)
        if seat is None:
            if not isinstance(rank, Rank):
                raise TypeError(f"a rank is a Rank, got {rank!r}")
            seat = self.table[rank] = Seat(rank, next(self._turn))
            self.of_worker.setdefault(rank.worker_id, {})[rank] = seat
        if seat.current is None:
            seat.current = Incarnation(rank, next(self._numbers))
        return seat

    def find(self, rank: Rank) -> Seat[LaneT]:
        """The rank's seat; if it has none, one where no incarnation lives. O(1)."""
        return self.table.get(rank) or Seat(rank, self.lanes[0])

    def revoke(self, worker_id: str, dp_rank: int | None) -> list[Seat[LaneT]]:
        """End the incarnations of a worker's ranks (or of one); their seats stay. O(its ranks)."""
        seats = self.of_worker.get(worker_id, {}).values()
        gone = [seat for seat in seats if dp_rank in (None, seat.rank.dp_rank)]
        for seat in gone:
            seat.current = seat.model = None
            seat.departures += 1
            self.leaving.add(seat.rank)
        return gone

    def departed(self, seats: list[Seat[LaneT]]) -> list[Seat[LaneT]]:
        """A departure is through: forget the ranks that nobody registered again meanwhile."""
        gone = []
        for seat in seats:
            seat.departures -= 1
            if seat.departures:
                continue
            self.leaving.discard(seat.rank)
            if seat.current is None:
                gone.append(self._forget(seat.rank))
        return gone

    def _forget(self, rank: Rank) -> Seat[LaneT]:
        siblings = self.of_worker[rank.worker_id]
        del siblings[rank]
        if not siblings:
            del self.of_worker[rank.worker_id]
        return self.table.pop(rank)
