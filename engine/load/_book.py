"""A rank's books: what its running requests occupy, moved only by their bookings.

Nothing here looks at a clock. A booking ends when its owner ends it, never by age; and since a
booking knows its book by identity, closing one of a departed worker changes a book that nobody
reads any more.
"""

from typing import TypeAlias

from kvlanes.engine.selection import LoadRows, LoadState, Weights
from kvlanes.indexer import Rank, require_count

RunningPrompts: TypeAlias = "dict[bytes, dict[RankBook, int]]"
"""A running prompt's packed blocks -> the books it stands in, and how often."""


class RankBook:
    """The load of one rank of one incarnation. Written only by its bookings.

    Args:
        rank: Whose load.
        block_size: Tokens a block.
        weights: What a block, a token and a request cost.
        running: The table of running prompts, shared by all books of one registry, so that
            "who runs this already?" is one look-up however many ranks there are.
        turn: Where the rank comes among those that were never chosen.
    """

    __slots__ = (
        "_block_size",
        "_position",
        "_rows",
        "_running",
        "_weights",
        "bookings",
        "rank",
        "state",
    )

    def __init__(
        self,
        rank: Rank,
        block_size: int,
        weights: Weights,
        running: RunningPrompts,
        turn: int = 0,
    ) -> None:
        self.rank = rank
        self.bookings: dict[Booking, None] = {}  # in order of booking
        self.state = LoadState(turn=turn)
        self._rows: LoadRows | None = None
        self._position = 0
        self._block_size = block_size
        self._weights = weights
        self._running = running

    def show(self, rows: LoadRows, position: int) -> None:
        """Keep one place of these rows up to date from now on, instead of any other."""
        self._rows, self._position = rows, position

    def book(self, prompt: bytes, prefill_tokens: int, turn: int) -> "Booking":
        """Count one request in. O(1)."""
        booking = Booking(self, prompt, prefill_tokens)
        books = self._running.setdefault(prompt, {})
        times = books[self] = books.get(self, 0) + 1
        self.bookings[booking] = None
        self._move(prefill_tokens, len(prompt) // 8 if times == 1 else 0, 1, turn)
        return booking

    def end(self) -> None:
        """This life of the rank is over, and every booking with it. O(bookings)."""
        for booking in list(self.bookings):
            booking.close()

    def _unbook(self, booking: "Booking") -> None:
        del self.bookings[booking]
        prompt = booking.prompt
        books = self._running[prompt]
        books[self] -= 1
        blocks = 0 if books[self] else len(prompt) // 8
        if not books[self]:
            del books[self]
            if not books:
                del self._running[prompt]
        self._move(-booking.prefill_tokens, -blocks - booking.grown_blocks, -1, 0)

    def _move(self, prefill_tokens: int, decode_blocks: int, requests: int, turn: int) -> None:
        old = self.state
        prefill = old.prefill_tokens + prefill_tokens
        decode = old.decode_blocks + decode_blocks
        running = old.requests + requests
        cost = self._weights.load_cost(self._block_size, prefill, decode, running)
        self.state = LoadState(cost, prefill, decode, running, turn or old.turn)
        if self._rows is not None:
            self._rows.put(self._position, self.state)

    def check(self) -> None:
        """Assert that the counters equal a recount over the open bookings."""
        distinct = {booking.prompt for booking in self.bookings}
        assert self.state.requests == len(self.bookings), self.state
        assert self.state.prefill_tokens == sum(b.prefill_tokens for b in self.bookings)
        blocks = sum(len(prompt) // 8 for prompt in distinct)
        assert self.state.decode_blocks == blocks + sum(b.grown_blocks for b in self.bookings)
        times = {p: books[self] for p, books in self._running.items() if self in books}
        assert set(times) == distinct, "a prompt is counted that nobody runs"
        assert sum(times.values()) == len(self.bookings)


class Booking:
    """One request's share of a book. Every method is synchronous and may come late or twice."""

    __slots__ = ("_book", "grown_blocks", "prefill_tokens", "prompt")

    def __init__(self, book: RankBook, prompt: bytes, prefill_tokens: int) -> None:
        self._book: RankBook | None = book  # None once closed
        self.prompt = prompt
        self.prefill_tokens = prefill_tokens
        self.grown_blocks = 0

    @property
    def open(self) -> bool:
        return self._book is not None

    def first_output(self) -> None:
        """The prefill is done: its tokens leave the book, the blocks stay."""
        if self._book is not None and self.prefill_tokens:
            self._book._move(-self.prefill_tokens, 0, 0, 0)
            self.prefill_tokens = 0

    def grow(self, blocks: int) -> None:
        """Output filled further blocks.

        Raises:
            TypeError: No integer.
            ValueError: A negative number.
        """
        require_count("blocks", blocks)
        if self._book is not None:
            self.grown_blocks += blocks
            self._book._move(0, blocks, 0, 0)

    def close(self) -> None:
        """Take everything out of the book, once."""
        if self._book is not None:
            book, self._book = self._book, None
            book._unbook(self)
