"""The bounds of `RadixIndex`: timers, ticks, the budget, and what it refuses."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlanes.indexer import (
    Applied,
    BlockSizeInvalid,
    Clear,
    MutationInvalid,
    RadixIndex,
    Rank,
    Remove,
    Store,
)
from tests.indexer.chains import A, B, C, extend, guess, names, packed, prompt, remove, store
from tests.indexer.test_radix import shape


@pytest.fixture
def index() -> RadixIndex:
    return RadixIndex(16)


# Timers


def test_endless_refreshes_leave_one_entry_a_segment(index: RadixIndex) -> None:
    for tick in range(10_000):
        index.apply(guess(A, [1, 2, 3]), tick / 7)
    assert index.statistics().timers == 1
    index.check()


def test_splits_and_merges_of_an_idle_rank_leave_no_timers(index: RadixIndex) -> None:
    chain = list(range(64))
    index.apply(guess(A, chain, 1e6), 0.0)
    for number in range(5_000):
        index.apply(guess(B, chain[: number % 63 + 1], 1e6), 0.0)
        index.apply(Clear(B), 0.0)
    assert index.statistics().timers <= 40
    assert shape(index) == (1, 64)


def test_entry_met_too_early_is_armed_again(index: RadixIndex) -> None:
    index.apply(guess(A, [1]), 0.0)
    index.apply(guess(A, [1]), 5.0)
    first = index.expire(10.0)
    assert (first.entries, first.blocks) == (1, 0)
    assert 15.0 <= first.next_deadline <= 15.1 + 1e-9
    assert index.expire(first.next_deadline) == (1, 1, float("inf"))


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e4), st.sampled_from([0.1, 0.3, 1e-3, 7.0]))
def test_lease_ends_within_a_tick_and_never_early(now: float, ttl: float, tick: float) -> None:
    index = RadixIndex(16, tick_seconds=tick)
    index.apply(guess(A, [1], ttl), now)
    deadline, wakes = now + ttl, 0
    while (due := index.expire(now).next_deadline) < float("inf"):
        wakes += 1
        assert wakes <= 2
        if index.expire(due).blocks:
            assert deadline <= due <= deadline + 1.01 * tick
    assert shape(index) == (0, 0)


def test_next_deadline_speaks_of_the_ranks_asked_for(index: RadixIndex) -> None:
    index.apply(guess(A, [1], 1.0), 0.0)
    index.apply(guess(B, [1], 5.0), 0.0)
    assert index.expire(3.0, ranks=[B]).next_deadline == 5.0
    assert index.expire(0.0).next_deadline == 1.0
    assert index.expire(3.0, ranks=[C]).next_deadline == float("inf")


def test_names_of_a_cleared_rank_are_purged_in_slices(index: RadixIndex) -> None:
    for number in range(100):
        index.apply(store(A, range(number * 20, number * 20 + 20)), 0.0)
    assert index.apply(Clear(A), 0.0) == Applied(2_000)
    index.check()
    assert index.statistics().names == 2_000, "a clear does not wait for its names"
    for left in range(1_744, 0, -256):
        index.expire(0.0)
        index.check()
        assert index.statistics().names == left
    index.expire(0.0)
    assert index.statistics().names == 0


def test_names_of_a_cleared_rank_can_be_used_at_once(index: RadixIndex) -> None:
    for number in range(100):
        index.apply(store(A, range(number * 20, number * 20 + 20)), 0.0)
    index.apply(store(B, range(20), engine=1), 0.0)  # keeps the first segment alive
    index.apply(Clear(A), 0.0)
    # At the same place, at another place, as a parent, and for removal.
    assert index.apply(store(A, range(20)), 0.0) == Applied(20)
    index.apply(Store(C, None, packed([7, 8]), names(range(40, 60))[:2]), 0.0)
    index.check()
    assert index.apply(extend(A, range(40, 60), [1]), 0.0) == Applied(missing_parent=1)
    assert index.apply(remove(A, range(60, 80)), 0.0) == Applied(unknown=20)
    assert index.apply(remove(A, range(20)), 0.0) == Applied(20)
    for _ in range(10):
        index.expire(0.0)
    index.check()
    assert index.statistics().names == 2


def test_failed_check_shows_the_tree(index: RadixIndex, capsys: pytest.CaptureFixture[str]) -> None:
    index.apply(store(A, [1, 2, 3]), 0.0)
    index._tree.entries += 1
    with pytest.raises(AssertionError):
        index.check()
    assert "0000000000000001 +3 held [0] named [0] own []" in capsys.readouterr().out


# Refusals


@pytest.mark.parametrize("tick", [0.0, -1.0, 1e-300, float("inf"), float("nan")])
def test_bad_tick_is_refused(tick: float) -> None:
    with pytest.raises(ValueError, match="tick_seconds must be at least 1e-09"):
        RadixIndex(16, tick_seconds=tick)


def test_bad_block_size_and_budget_are_refused() -> None:
    with pytest.raises(BlockSizeInvalid, match="-1"):
        RadixIndex(-1)
    with pytest.raises(ValueError, match="budget_blocks must be >= 1, got 0"):
        RadixIndex(16, budget_blocks=0)


@pytest.mark.parametrize("count", [math.nan, 1.5, True])
def test_a_count_is_an_integer(count: Any) -> None:
    with pytest.raises(TypeError, match="budget_blocks must be an integer"):
        RadixIndex(16, budget_blocks=count)
    with pytest.raises(TypeError, match="limit must be an integer"):
        RadixIndex(16).expire(0.0, limit=count)


def test_a_moment_is_a_number() -> None:
    index = RadixIndex(16)
    index.apply(guess(A, [1]), 0.0)
    with pytest.raises(ValueError, match="now must be a number, got nan"):
        index.expire(math.nan)
    with pytest.raises(ValueError, match="now must be a number, got nan"):
        index.dump(math.nan)
    with pytest.raises(ValueError, match="needs a finite now, got inf"):
        index.dump(math.inf)


def _named(**parts: Any) -> Store:
    return store(A, [1, 2])._replace(**parts)


def _guess(**parts: Any) -> Store:
    return guess(A, [1])._replace(**parts)


BAD: list[tuple[Any, type[Exception], str]] = [
    (_named(sequence_hashes=[1, -2]), MutationInvalid, "unsigned 64-bit"),
    (_named(sequence_hashes=[1, 2**64]), MutationInvalid, "unsigned 64-bit"),
    (_named(sequence_hashes=[1, "x"]), MutationInvalid, "unsigned 64-bit"),
    (_named(sequence_hashes=[1, None]), MutationInvalid, "unsigned 64-bit"),
    (_named(blocks=bytearray(16)), TypeError, "bytearray"),
    (_named(rank=("a", 0)), TypeError, "carries a Rank"),
    (_guess(rank="a"), TypeError, "carries a Rank"),
    (_guess(blocks=memoryview(bytes(8))), TypeError, "memoryview"),
    (Remove(A, [2**64]), MutationInvalid, "unsigned 64-bit"),
    (("a", 0), TypeError, "a Store, a Remove or a Clear"),
    (None, TypeError, "a Store, a Remove or a Clear"),
]


@pytest.mark.parametrize(("mutation", "error", "words"), BAD, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_is_refused_before_it_writes(
    index: RadixIndex, mutation: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        index.apply(mutation, 0.0)
    assert shape(index) == (0, 0)
    assert index.statistics().ranks == 0


def test_time_that_is_no_number_is_refused_before_it_writes(index: RadixIndex) -> None:
    with pytest.raises(MutationInvalid, match="no deadline at nan"):
        index.apply(guess(A, [1]), float("nan"))
    assert index.statistics().ranks == 0


def test_ttl_beyond_all_clocks_is_a_lease_without_an_end(index: RadixIndex) -> None:
    assert index.apply(guess(A, [1, 2], 1e300), 0.0) == Applied(2)
    assert index.expire(1e12).next_deadline == float("inf")
    assert index.statistics().leased_blocks == 2


# Budget


def test_budget_is_never_exceeded_and_leaves_go_before_parents() -> None:
    index = RadixIndex(16, budget_blocks=6)
    index.apply(store(A, [1, 2, 3, 4]), 0.0)
    index.apply(store(A, [1, 2, 8]), 0.0)
    assert shape(index)[1] == 5
    index.apply(store(B, [5, 6, 7]), 0.0)
    assert shape(index)[1] == 6
    # The leaf [3, 4] was stored least recently; its prefix serves the leaf [8].
    assert index.overlap(prompt(1, 2, 3, 4)).of(A) == 2
    assert index.overlap(prompt(1, 2, 8)).of(A) == 3
    assert index.overlap(prompt(5, 6, 7)).of(B) == 3
    assert index.statistics().evicted == 2


def test_store_larger_than_the_budget_keeps_its_head() -> None:
    index = RadixIndex(16, budget_blocks=3)
    assert index.apply(store(A, range(10)), 0.0) == Applied(10)
    assert shape(index) == (1, 3)
    assert index.overlap(prompt(*range(10))).of(A) == 3
    # What was evicted is unknown from now on, and no parent.
    assert index.apply(remove(A, range(10)), 0.0) == Applied(applied=3, unknown=7)


def test_reading_moves_nothing() -> None:
    # P72: the shared prompt survives because it is stored again, not because it is looked up.
    def survivors(*, refresh: bool) -> set[int]:
        index = RadixIndex(16, budget_blocks=4)
        for block in (1, 2, 3, 4):
            index.apply(guess(A, [block]), 0.0)
        for _ in range(50):
            index.overlap(prompt(1)).scores()
        if refresh:
            index.apply(guess(A, [1]), 0.0)
        index.apply(guess(A, [5]), 0.0)
        return {block for block in range(1, 6) if index.overlap(prompt(block)).of(A)}

    assert survivors(refresh=False) == {2, 3, 4, 5}
    assert survivors(refresh=True) == {1, 3, 4, 5}


def test_silent_publisher_is_met_by_the_budget() -> None:
    # P39: nobody ever removes; the index stays at its bound and the counters stay exact.
    index = RadixIndex(16, budget_blocks=100)
    for number in range(2_000):
        index.apply(store(Rank(str(number % 3)), [number * 5 + k for k in range(5)]), 0.0)
    segments, entries = shape(index)
    assert (segments, entries, index.statistics().evicted) == (20, 100, 9_900)
