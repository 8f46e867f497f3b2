"""The books of a rank: every figure equals a recount, and every close happens once."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvlanes.engine.load import Booking, RankBook
from kvlanes.engine.selection import Weights
from kvlanes.indexer import Rank

PROMPT = bytes(8 * 4)


def book() -> RankBook:
    return RankBook(Rank("w0"), 16, Weights(request=1.0), {})


def figures(rank_book: RankBook) -> tuple[int, int, int]:
    return rank_book.state[1:4]


def test_identical_prompts_count_their_blocks_once() -> None:
    """The reference's worked example: 128 tokens, 4 blocks, 2 requests; then 64 and 5."""
    ours = book()
    first = ours.book(PROMPT, 64, 1)
    ours.book(PROMPT, 64, 2)
    assert figures(ours) == (128, 4, 2)
    first.first_output()
    first.grow(1)
    assert figures(ours) == (64, 5, 2)
    assert ours.state.cost == 64 / 16 + 5 + 2


def test_prefill_leaves_at_the_first_output() -> None:
    """P82: a prefill worker does not look busy for the whole generation."""
    ours = book()
    booking = ours.book(b"", 160, 1)
    booking.first_output()
    booking.first_output()
    assert figures(ours) == (0, 0, 1)
    booking.close()
    booking.first_output()
    assert figures(ours) == (0, 0, 0)


def test_closing_late_or_twice_changes_nothing() -> None:
    ours = book()
    first, second = ours.book(PROMPT, 8, 1), ours.book(PROMPT, 8, 2)
    first.close()
    first.close()
    first.grow(7)
    assert figures(ours) == (8, 4, 1)
    second.close()
    assert figures(ours) == (0, 0, 0)


def test_growing_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks must be >= 0, got -1"):
        book().book(PROMPT, 8, 1).grow(-1)


def test_the_recount_sees_a_figure_that_is_wrong() -> None:
    ours = book()
    ours.book(PROMPT, 8, 1)
    right = ours.state
    for wrong in (
        right._replace(requests=2),
        right._replace(prefill_tokens=9),
        right._replace(decode_blocks=5),
    ):
        ours.state = wrong
        with pytest.raises(AssertionError):
            ours.check()
    ours.state = right
    ours.check()


class Books(RuleBasedStateMachine):
    """Random lives of bookings, late calls included; the book recounts after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.book = book()
        self.bookings: list[Booking] = []

    @rule(prompt=st.sampled_from([b"", PROMPT, PROMPT[:16]]), tokens=st.integers(0, 99))
    def begin(self, prompt: bytes, tokens: int) -> None:
        self.bookings.append(self.book.book(prompt, tokens, len(self.bookings) + 1))

    @rule(
        pick=st.integers(0, 99),
        step=st.sampled_from([Booking.first_output, Booking.close, lambda b: b.grow(2)]),
    )
    def move(self, pick: int, step: "object") -> None:
        if self.bookings:
            assert callable(step)
            step(self.bookings[pick % len(self.bookings)])

    @invariant()
    def counters_equal_a_recount(self) -> None:
        self.book.check()
        assert (self.book.state.requests == 0) == (not any(b.open for b in self.bookings))


TestBooks = Books.TestCase
