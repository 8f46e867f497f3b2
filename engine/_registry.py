"""Who is here: registered workers, and what is known of each of their ranks.

A `LiveRank` is one life of one rank. Everything that refers to a rank at work (a reservation, a
booking, a placement) refers to that life, so what comes late for a rank that left, restarted or
was registered anew finds an object that nobody reads any more.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import trio

from kvlanes.engine._errors import RanksAlike, UnknownWorker, WorkerExists
from kvlanes.engine._worker import Worker
from kvlanes.engine.load import HitRecord, LoadReports, RankBook, RunningPrompts
from kvlanes.engine.selection import COMMON, Weights, Worth
from kvlanes.indexer import BlockSizeMismatch, Rank
from kvlanes.nursery import Ending, Incarnation

NOBODY: frozenset[Rank] = frozenset()


def namesake(rank: Rank) -> Rank | None:
    """The one other rank that figures and reasons would call by the same name.

    Rank 1 of worker `a`, and the only rank of a worker that is named `a:1`.
    """
    if rank.dp_rank:
        return Rank(str(rank))
    name, _, number = rank.worker_id.rpartition(":")
    like_a_rank = name and number.isdecimal() and number == str(int(number)) != "0"
    return Rank(name, int(number)) if like_a_rank else None


@attrs.define(eq=False)
class LiveRank:
    """One life of one rank.

    Attributes:
        incarnation: The lane's proof of this life; mutations of earlier ones apply nothing.
        book: Its load; written by bookings only.
        member: The registration it belongs to.
        ending: Ends its dispatches when this life ends.
        hits: Predicted against measured cache hits; written by reservations.
        reports: What others say about its load; written by the fleet, as all below.
        fed: Whether engine events arrive for it.
        fed_at: When the last one did, or when this life began, on Trio's clock.
        pool_blocks: Size of its modelled block pool, `None` while leases stand in for it.
        label: Its name in the digest.
    """

    rank: Rank
    incarnation: Incarnation
    book: RankBook
    member: "Member"
    ending: Ending = attrs.field(factory=Ending)
    hits: HitRecord = attrs.field(factory=HitRecord)
    reports: LoadReports = attrs.field(factory=LoadReports)
    fed: bool = False
    fed_at: float = attrs.field(factory=trio.current_time)
    pool_blocks: int | None = None
    label: bytes = attrs.field(init=False)

    @label.default
    def _label(self) -> bytes:
        return f"{self.rank}\n".encode()

    @property
    def doubted(self) -> bool:
        """Whether the events that tell what it holds are out of contact or untrusted."""
        return self.rank in self.member.doubted

    @property
    def worth(self) -> Worth:
        """What sets its blocks apart in a choice."""
        tiers, doubted = self.member.worker.tier_weights, self.doubted
        return Worth(tiers, doubted) if doubted or tiers is not None else COMMON

    @property
    def source(self) -> str:
        """Who says what it holds: see `Route.source`."""
        if self.fed:
            return "confirmed"
        return "leased" if self.pool_blocks is None else "modelled"


@attrs.define(eq=False)
class Member:
    """One registration of a worker. Written by the fleet."""

    worker: Worker
    ranks: tuple[LiveRank, ...] = ()
    doubted: set[Rank] = attrs.field(factory=set)  # whose events are out of contact
    draining: bool = False
    connect_failures: int = 0  # in a row
    pause_seconds: float = 0.0  # of the last ejection; 0 once the worker has answered
    ejected_until: float = -math.inf


class Registry:
    """The one table of workers and ranks. Written by the fleet alone; no call is a checkpoint.

    Attributes:
        version: Grows with each change that may exclude a rank or let one in.
    """

    def __init__(self, block_size: int, weights: Weights) -> None:
        self.version = 0
        self._block_size = block_size
        self._weights = weights
        self._members: dict[str, Member] = {}
        self._ranks: dict[Rank, LiveRank] = {}
        self._running: RunningPrompts = {}  # written by the bookings
        self._turns = itertools.count(
            -(2**29)
        )  # of ranks never chosen, in order; small, to compare fast

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, name: str | Rank) -> bool:
        return name in (self._ranks if isinstance(name, Rank) else self._members)

    def ranks(self) -> Iterable[LiveRank]:
        return self._ranks.values()

    def member(self, worker_id: str) -> Member:
        try:
            return self._members[worker_id]
        except KeyError:
            raise UnknownWorker(worker_id) from None

    def live(self, rank: Rank) -> LiveRank:
        try:
            return self._ranks[rank]
        except KeyError:
            if not isinstance(rank, Rank):
                raise TypeError(f"a rank is a Rank, got {rank!r}") from None
            raise UnknownWorker(str(rank)) from None

    def changed(self) -> None:
        """Something about a member or rank may now exclude it, or no longer."""
        self.version += 1

    # -- membership

    def refuse_new(self, workers: Sequence[Worker]) -> None:
        """Raise what adding these workers would raise, before any state exists."""
        for worker in workers:
            if worker.worker_id in self._members:
                raise WorkerExists(worker.worker_id)
        self.refuse_set(workers)
        self.refuse_namesakes(workers)

    def refuse_set(self, workers: Sequence[Worker]) -> None:
        """Raise for workers that could not stand beside each other, known or not."""
        seen: set[str] = set()
        for worker in workers:
            if worker.worker_id in seen:
                raise WorkerExists(worker.worker_id)
            seen.add(worker.worker_id)
            self.refuse_shape(worker)
        ranks = {rank for worker in workers for rank in worker.ranks}
        for rank in ranks:
            if namesake(rank) in ranks:
                raise RanksAlike(str(rank))

    def refuse_namesakes(self, workers: Iterable[Worker]) -> None:
        """Raise where a rank would bear the name of a registered one. O(their ranks)."""
        for worker in workers:
            for rank in worker.ranks:
                if namesake(rank) in self._ranks:
                    raise RanksAlike(str(rank))

    def refuse_shape(self, worker: Worker) -> None:
        """Raise `BlockSizeMismatch` for a worker that cuts prompts into other blocks."""
        if worker.block_size is not None and worker.block_size != self._block_size:
            raise BlockSizeMismatch(
                worker.block_size, self._block_size, f"worker {worker.worker_id!r}"
            )

    def add(self, worker: Worker, attach: Callable[[Rank], Incarnation]) -> Member:
        """List a worker that `refuse_new` let pass."""
        member = self._members[worker.worker_id] = Member(worker)
        self.reshape(member, worker, attach)
        return member

    def reshape(
        self, member: Member, worker: Worker, attach: Callable[[Rank], Incarnation]
    ) -> list[LiveRank]:
        """Make a member's ranks those of `worker`; return the lives that ended."""
        kept = {live.rank: live for live in member.ranks}
        gone = [kept.pop(rank) for rank in list(kept) if rank not in worker.ranks]
        member.worker = worker
        for live in gone:
            del self._ranks[live.rank]
        lives = [kept.get(rank) or self._begin(rank, member, attach) for rank in worker.ranks]
        member.ranks = tuple(lives)
        self.changed()
        return gone

    def restart(self, live: LiveRank, attach: Callable[[Rank], Incarnation]) -> None:
        """Begin the next life of a rank in the place of `live`."""
        member = live.member
        new = self._begin(live.rank, member, attach)
        member.ranks = tuple(new if other is live else other for other in member.ranks)
        self.changed()

    def discard(self, member: Member) -> None:
        """Unlist a worker; the caller ends what was held there."""
        del self._members[member.worker.worker_id]
        for live in member.ranks:
            del self._ranks[live.rank]
        self.changed()

    def _begin(self, rank: Rank, member: Member, attach: Callable[[Rank], Incarnation]) -> LiveRank:
        book = RankBook(rank, self._block_size, self._weights, self._running, next(self._turns))
        live = self._ranks[rank] = LiveRank(rank, attach(rank), book, member)
        return live

    # -- reading

    def running(self, prompt: bytes) -> frozenset[Rank]:
        """Ranks on which an identical prompt runs; a life that ended has no bookings. O(those)."""
        books = self._running.get(prompt)
        return frozenset([book.rank for book in books]) if books else NOBODY

    def check(self) -> None:
        """Assert that the two tables agree and that every book equals a recount."""
        lives = {live.rank: live for member in self for live in member.ranks}
        assert lives == self._ranks, (list(lives), list(self._ranks))
        for live in lives.values():
            assert live.rank in live.member.worker.ranks, live.rank
            live.book.check()
        books = {book for times in self._running.values() for book in times}
        assert books <= {live.book for live in lives.values()}, "a life that ended is still booked"
