"""The ledgers of one stream: of which rank each batch tells."""

from collections.abc import Collection, Iterator

from kvlanes.engine.feeds._feed import Feed
from kvlanes.engine.feeds._ledger import Ledger
from kvlanes.engine.feeds._options import FollowOptions
from kvlanes.engine.feeds._protocols import EventSink
from kvlanes.indexer import Clear, Rank

_NAMED_RANKS = 1024  # numbers that may be remembered: they come from the wire


class Ledgers:
    """One ledger for each rank that the stream has named, the configured one first.

    Written by the stream's follower.

    Attributes:
        whole: Whether all of them were complete when last looked at.
    """

    def __init__(
        self, sink: EventSink, feed: Feed, options: FollowOptions, elsewhere: Collection[int]
    ) -> None:
        """Make the ledger of the configured rank; `elsewhere` have a stream of their own."""
        self.whole = True
        self._unbroken = True  # a rank that is named only now missed nothing of this process
        self._sink = sink
        self._feed = feed
        self._options = options
        self._elsewhere = elsewhere
        self._by_rank = {feed.rank: self._new(feed.rank)}
        self._by_number: dict[int | None, Ledger] = {None: self._by_rank[feed.rank]}

    def __iter__(self) -> Iterator[Ledger]:
        return iter(tuple(self._by_rank.values()))

    def of(self, number: int | None) -> Ledger:
        """The ledger of the rank that a batch names."""
        ledger = self._by_number.get(number)
        return self._name(number) if ledger is None else ledger

    def look(self) -> bool:
        """Whether all are complete now."""
        self.whole = all(ledger.complete for ledger in self._by_rank.values())
        return self.whole

    def become(self, *, complete: bool) -> None:
        """All of them are complete, those of ranks named later too; or none is known to be."""
        self._unbroken = complete
        for ledger in self._by_rank.values():
            ledger.complete = complete

    def lose(self) -> list[Clear]:
        """Something was missed that may have removed blocks of any rank: hold nothing."""
        self._unbroken = False
        return [ledger.lose() for ledger in self._by_rank.values()]

    def restart(self) -> None:
        """Another engine process begins."""
        self._unbroken = True
        for ledger in self._by_rank.values():
            ledger.restart()

    def _name(self, number: int | None) -> Ledger:
        """The ledger of a rank that the stream names for the first time.

        The engine knows its ranks better than a port does; but a rank that another stream
        follows, or that the worker does not have, is taken for this stream's own.
        """
        rank = None
        if number is not None and number >= 0 and number not in self._elsewhere:
            rank = self._sink.rank(number)
        if rank is None:
            rank = self._feed.rank
        elif rank not in self._by_rank:
            self._by_rank[rank] = self._new(rank)
            self._feed.ranks[rank] = None
        if len(self._by_number) < _NAMED_RANKS:
            self._by_number[number] = self._by_rank[rank]
        return self._by_rank[rank]

    def _new(self, rank: Rank) -> Ledger:
        return Ledger(
            rank,
            self._sink.block_size,
            counting=self._options.counting,
            group=self._options.group,
            complete=self._unbroken,
            counts=self._feed.events,
        )
