"""Who is here: registered workers, their ranks' books, and who may be chosen right now.

A `Member` is one registration of one worker. Everything that refers to a worker at work (a
reservation, a booking, a placement) refers to its member, so what comes late for a worker that
left or was registered anew finds an object that nobody reads any more.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator

import attrs

from kvlanes.engine._errors import UnknownWorker, WorkerExists
from kvlanes.engine._worker import Worker
from kvlanes.engine.load import HitRecord, RankBook, RunningPrompts
from kvlanes.engine.selection import Field, LoadState, Weights
from kvlanes.indexer import BlockSizeMismatch, Rank
from kvlanes.nursery import Ending, Incarnation


@attrs.define(eq=False)
class LiveRank:
    """One rank of a member.

    Attributes:
        incarnation: The lane's proof of this registration; old ones apply nothing.
        book: Its load; written by bookings only.
        fed: Whether engine events arrive for it; written by `Engine.apply`.
        fed_at: When the last one did, on Trio's clock.
        hits: Predicted against measured cache hits; written by reservations.
    """

    rank: Rank
    incarnation: Incarnation
    book: RankBook
    member: "Member"
    fed: bool = False
    fed_at: float = -math.inf
    hits: HitRecord = attrs.field(factory=HitRecord)


@attrs.define(eq=False)
class Member:
    """One registration of a worker. Written by the engine's worker methods."""

    worker: Worker
    ranks: tuple[LiveRank, ...] = ()
    draining: bool = False
    connect_failures: int = 0
    ejections: int = 0
    ejected_until: float = -math.inf
    ending: Ending = attrs.field(factory=Ending)  # ends its dispatches when it departs

    def check(self) -> None:
        for live in self.ranks:
            live.book.check()


@attrs.frozen(eq=False)
class Candidates:
    """The ranks that a request may be sent to, and why the others may not."""

    field: Field
    live: tuple[LiveRank, ...]
    excluded: dict[str, str]

    def states(self) -> list[LoadState]:
        return [live.book.state for live in self.live]


class Registry:
    """The one table of workers. Written only by the engine's register, update and departure."""

    def __init__(self, block_size: int, weights: Weights) -> None:
        self._block_size = block_size
        self._weights = weights
        self._members: dict[str, Member] = {}
        self._ranks: dict[Rank, LiveRank] = {}
        self._running: RunningPrompts = {}  # written by the bookings
        self._everyone: Candidates | None = None  # None after each change that can exclude

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._members

    def member(self, worker_id: str) -> Member:
        try:
            return self._members[worker_id]
        except KeyError:
            raise UnknownWorker(worker_id) from None

    def live(self, rank: Rank) -> LiveRank | None:
        return self._ranks.get(rank)

    def refuse(self, workers: Iterable[Worker]) -> None:
        """Raise what adding these workers would raise, before any state exists."""
        seen: set[str] = set()
        for worker in workers:
            if worker.worker_id in self._members or worker.worker_id in seen:
                raise WorkerExists(worker.worker_id)
            seen.add(worker.worker_id)
            self.refuse_shape(worker)

    def refuse_shape(self, worker: Worker) -> None:
        if worker.block_size not in (None, self._block_size):
            assert worker.block_size is not None
            raise BlockSizeMismatch(
                worker.block_size, self._block_size, f"worker {worker.worker_id!r}"
            )

    def add(self, worker: Worker, attach: Callable[[Rank], Incarnation]) -> Member:
        """List a worker that `refuse` let pass."""
        member = Member(worker)
        member.ranks = tuple(
            LiveRank(rank, attach(rank), self._book(rank), member) for rank in worker.ranks
        )
        self._members[worker.worker_id] = member
        self._ranks.update((live.rank, live) for live in member.ranks)
        self._everyone = None
        return member

    def _book(self, rank: Rank) -> RankBook:
        return RankBook(rank, self._block_size, self._weights, self._running)

    def running(self, prompt: bytes) -> frozenset[Rank]:
        """Registered ranks on which an identical prompt runs."""
        books = self._running.get(prompt, ())
        return frozenset(book.rank for book in books if self._reads(book))

    def _reads(self, book: RankBook) -> bool:
        live = self._ranks.get(book.rank)
        return live is not None and live.book is book

    def discard(self, worker_id: str) -> Member:
        """Unlist a worker; the caller ends what it holds."""
        member = self.member(worker_id)
        del self._members[worker_id]
        for live in member.ranks:
            del self._ranks[live.rank]
        self._everyone = None
        return member

    def changed(self) -> None:
        """A member's own state may now exclude it, or no longer."""
        self._everyone = None

    def candidates(
        self,
        now: float,
        *,
        exclude: Collection[str | Rank] = (),
        allowed: Collection[str | Rank] | None = None,
        requires: Collection[str] = (),
    ) -> Candidates:
        """Filter before anything is scored. O(1) for a request without wishes of its own."""
        if exclude or allowed is not None or requires:
            return self._filtered(now, exclude, allowed, requires)
        if self._everyone is None or self._everyone.excluded:
            self._everyone = self._filtered(now, (), None, ())
        return self._everyone

    def _filtered(
        self,
        now: float,
        exclude: Collection[str | Rank],
        allowed: Collection[str | Rank] | None,
        requires: Collection[str],
    ) -> Candidates:
        live: list[LiveRank] = []
        excluded: dict[str, str] = {}
        for rank, candidate in self._ranks.items():
            why = unfit(candidate.member, now, requires) or unwanted(rank, exclude, allowed)
            if why:
                excluded[str(rank)] = why
            else:
                live.append(candidate)
        return Candidates(Field(c.rank for c in live), tuple(live), excluded)

    def check(self) -> None:
        """Assert what must hold between any two steps."""
        for member in self:
            member.check()
        listed = {live.rank for member in self for live in member.ranks}
        assert listed == set(self._ranks), (listed, set(self._ranks))


def unfit(member: Member, now: float, requires: Collection[str]) -> str | None:
    """Why this member may serve nobody, or not this request."""
    if member.draining:
        return "draining"
    if now < member.ejected_until:
        return f"ejected for {member.ejected_until - now:.1f} s more"
    missing = sorted(set(requires) - member.worker.capabilities)
    return f"lacks {', '.join(missing)}" if missing else None


def unwanted(
    rank: Rank, exclude: Collection[str | Rank], allowed: Collection[str | Rank] | None
) -> str | None:
    """Why this request does not want the rank. A worker's name stands for all its ranks."""
    if rank in exclude or rank.worker_id in exclude:
        return "excluded by the request"
    if allowed is not None and rank not in allowed and rank.worker_id not in allowed:
        return "not among those allowed"
    return None
