"""Leases in segments: what becomes one segment again, and what timers and memos keep."""

import pytest

from kvlanes.indexer import RadixIndex, Rank
from kvlanes.indexer._radix_timers import SLACK
from tests.indexer.chains import BLOCK_SIZE, A, guess, prompt, remove, store


@pytest.fixture
def index() -> RadixIndex:
    return RadixIndex(BLOCK_SIZE)


def test_hole_that_is_leased_until_the_same_deadline_is_one_segment_again(
    index: RadixIndex,
) -> None:
    index.apply(guess(A, [1, 2], ttl=10), 0.0)
    index.apply(store(A, [1]), 0.0)
    index.apply(remove(A, [1]), 0.0)
    index.check()
    assert index.statistics().segments == 2
    index.apply(guess(A, [1], ttl=10), 0.0)
    index.check()
    assert index.statistics().segments == 1


def test_stale_timers_are_dropped_with_their_ticks(index: RadixIndex) -> None:
    """So nobody is woken for a lease that was confirmed long ago."""
    index.apply(guess(A, [1], ttl=1000), 0.0)
    chains = [[chain] for chain in range(2, SLACK + 4)]  # as many as one compaction takes
    for number, chain in enumerate(chains):
        index.apply(guess(A, chain, ttl=1.0 + number), 0.0)
    for chain in chains:
        index.apply(store(A, chain), 0.0)
    index.check()
    assert index.expire(0.0).next_deadline >= 1000
    assert index.expire(500.0).entries == 0
    assert index.expire(1001.0).blocks == 1


def test_memo_of_holders_stays_bounded_however_many_sets_of_ranks_there_are(
    index: RadixIndex,
) -> None:
    ranks = [Rank(str(number)) for number in range(8)]
    for rank in [A, *ranks]:
        index.apply(guess(rank, [0]), 0.0)
    for mask in range(1, 256):
        for number in range(8):
            if mask >> number & 1:
                index.apply(guess(ranks[number], [mask, 1000, 1001]), 0.0)
        index.apply(guess(A, [mask, 1000]), 0.0)  # splits a segment of this set of ranks
    index.check()
    assert 0 < len(index._tree._groups) <= 128


def test_segment_that_a_removal_cuts_goes_before_its_prefix() -> None:
    index = RadixIndex(BLOCK_SIZE, budget_blocks=6)
    index.apply(store(A, [1, 2, 3, 4, 5]), 0.0)
    index.apply(remove(A, [1, 2, 3, 4, 5], 4), 0.0)
    index.check()
    index.apply(store(A, [6, 7]), 0.0)
    assert index.overlap(prompt(1, 2, 3)).of(A) == 3
