"""Who may serve: filters that run before anything is scored, from the one table that knows."""

from collections.abc import Collection

import attrs
import trio

from kvlanes.engine._registry import LiveRank, Registry
from kvlanes.engine.selection import COMMON, Field, LoadRows
from kvlanes.indexer import Rank


def _named(what: str, names: Collection[str | Rank]) -> frozenset[str | Rank]:
    # A string is a collection of its letters, and a bare tuple may carry a rank `None`, which
    # must never be taken for rank 0: both are refused here and not quietly matched to nothing.
    if isinstance(names, (str, Rank)):
        raise TypeError(f"{what} must be a collection of worker names and ranks, got {names!r}")
    for name in names:
        if not isinstance(name, (str, Rank)):
            raise TypeError(f"{what} names workers by string or ranks by Rank, got {name!r}")
    return frozenset(names)


@attrs.frozen
class Wishes:
    """What one request wants of its worker. A worker's name stands for all its ranks.

    Attributes:
        exclude: Workers or ranks that shall not serve, such as those that failed before.
        allowed: The only ones that may; a single rank pins. `None` allows all.
        requires: Capabilities the worker must have.
    """

    exclude: frozenset[str | Rank] = frozenset()
    allowed: frozenset[str | Rank] | None = None
    requires: frozenset[str] = frozenset()

    @staticmethod
    def of(
        exclude: Collection[str | Rank],
        allowed: Collection[str | Rank] | None,
        requires: Collection[str],
    ) -> "Wishes":
        """These wishes, or `ANY` when there are none. O(names).

        Raises:
            TypeError: Something that is no collection of names.
        """
        if allowed is None and not exclude and not requires:
            return ANY
        if isinstance(requires, str):
            raise TypeError(f"requires must be a collection of words, got {requires!r}")
        only = None if allowed is None else _named("allowed", allowed)
        return Wishes(_named("exclude", exclude), only, frozenset(requires))

    def reject(self, live: LiveRank) -> str | None:
        """Why this request does not want the rank."""
        rank = live.rank
        if rank in self.exclude or rank.worker_id in self.exclude:
            return "excluded by the request"
        if self.allowed is not None and self.allowed.isdisjoint((rank, rank.worker_id)):
            return "not among those allowed"
        missing = sorted(self.requires - live.member.worker.capabilities)
        return f"lacks {', '.join(missing)}" if missing else None


ANY = Wishes()


@attrs.frozen(eq=False)
class Candidates:
    """The ranks that may be chosen now, and why the others may not."""

    field: Field
    rows: LoadRows
    live: tuple[LiveRank, ...]
    excluded: dict[str, str]

    def follow(self) -> None:
        """Have the books keep the rows up to date, so that these candidates can be kept."""
        for position, live in enumerate(self.live):
            live.book.show(self.rows, position)


class Eligibility:
    """Finds the candidates of a request.

    Without wishes the answer is kept until the registry changes. What time alone can change is the
    end of an exclusion: while anybody is left out for another reason than draining, nothing is
    kept.
    """

    __slots__ = ("_everyone", "_overload_at", "_registry", "_version")

    def __init__(self, registry: Registry, overload_at: float) -> None:
        self._registry = registry
        self._overload_at = overload_at
        self._everyone: Candidates | None = None
        self._version = -1

    def candidates(self, wishes: Wishes) -> Candidates:
        """O(1) while nobody is left out but those that drain, and without wishes; else O(ranks)."""
        if wishes is not ANY:
            return self._filter(wishes)
        if self._version != self._registry.version or self._everyone is None:
            found = self._filter(ANY)
            if len(found.excluded) == sum(live.member.draining for live in self._registry.ranks()):
                found.follow()
                self._everyone, self._version = found, self._registry.version
            return found
        return self._everyone

    def check(self) -> None:
        """Assert that what is kept is what would be found now."""
        if self._everyone is not None and self._version == self._registry.version:
            kept, found = self._everyone, self._filter(ANY)
            assert (kept.live, kept.excluded) == (found.live, found.excluded)
            assert kept.field.worth == found.field.worth, "a worth changed unseen"
            assert kept.rows.states == found.rows.states, "a book moved without its row"
            assert (kept.rows.costs, kept.rows.turns) == (found.rows.costs, found.rows.turns)

    def _filter(self, wishes: Wishes) -> Candidates:
        now = trio.current_time()
        lives: list[LiveRank] = []
        excluded: dict[str, str] = {}
        for live in self._registry.ranks():
            why = self.unfit(live, now) or (None if wishes is ANY else wishes.reject(live))
            if why:
                excluded[str(live.rank)] = why
            else:
                lives.append(live)
        for name in wishes.allowed or ():
            if name not in self._registry:
                excluded[str(name)] = "not registered"
        worth = {live.rank: own for live in lives if (own := live.worth) is not COMMON}
        field = Field((live.rank for live in lives), worth)
        rows = LoadRows(live.book.state for live in lives)
        return Candidates(field, rows, tuple(lives), excluded)

    def retry_after_seconds(self) -> float:
        """When an ejection ends at the earliest; a second when time alone changes nothing."""
        now = trio.current_time()
        ends = (live.member.ejected_until for live in self._registry.ranks())
        return min((end - now for end in ends if end > now), default=1.0)

    def unfit(self, live: LiveRank, now: float) -> str | None:
        """Why this rank may serve nobody now."""
        member = live.member
        if member.draining:
            return "draining"
        if now < member.ejected_until:
            return f"ejected for {member.ejected_until - now:.1f} s more"
        if len(live.reports):
            busiest = live.reports.busiest(now)
            if busiest is not None and busiest.busy >= self._overload_at:
                return f"overloaded: {busiest.busy:.0%} busy says {busiest.source}"
        return None
