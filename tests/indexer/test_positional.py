"""What is special to the flat index: entries follow blocks, and it keeps no leases."""

import gc

import pytest

from kvlanes.indexer import (
    Applied,
    BlockSizeInvalid,
    Clear,
    Expired,
    MutationInvalid,
    PositionalIndex,
    Store,
)
from tests.indexer.chains import A, B, C, extend, guess, packed, prompt, remove, store

FIVE = [1, 2, 3, 4, 5]


def entries(index: PositionalIndex) -> int:
    index.check()
    return index.statistics().entries


@pytest.mark.parametrize("size", [0, -4, 1.5, None, True])
def test_block_size_must_be_a_positive_integer(size: int) -> None:
    with pytest.raises(BlockSizeInvalid, match=repr(size)):
        PositionalIndex(size)


def test_entry_goes_with_its_last_holder() -> None:
    index = PositionalIndex(16)
    for rank in (A, B, C):
        index.apply(store(rank, FIVE))
    assert entries(index) == 5
    index.apply(remove(A, FIVE))
    index.apply(Clear(B))
    assert entries(index) == 5
    assert index.drop("c") == 5
    assert entries(index) == 0


def test_hole_counts_as_a_hole_however_many_still_match_behind_it() -> None:
    """Jumping ahead by counting holders overcounts here: three hold both ends of the gap."""
    index = PositionalIndex(16)
    chain = range(1, 41)
    for rank in (A, B, C):
        index.apply(store(rank, chain))
    for rank, hole in ((A, 9), (B, 18), (C, 40)):
        index.apply(remove(rank, chain, hole))
    assert index.overlap(prompt(*chain)).scores() == {A: 8, B: 17, C: 39}


def test_rank_that_joins_behind_the_root_is_not_counted() -> None:
    index = PositionalIndex(16)
    index.apply(store(A, FIVE))
    index.apply(store(B, FIVE))
    index.apply(remove(B, FIVE, 1))
    assert index.overlap(prompt(*FIVE)).scores() == {A: 5}


def test_one_unknown_name_does_not_stop_the_batch() -> None:
    index = PositionalIndex(16)
    index.apply(Store(A, None, packed([1, 2, 3]), [11, 12, 13]))
    done = index.apply(remove(A, [9])._replace(sequence_hashes=[99, 13, 98, 11]))
    assert done == Applied(applied=2, unknown=2)


def test_same_block_at_another_depth_is_another_entry() -> None:
    index = PositionalIndex(16)
    index.apply(store(A, [7, 7]))
    index.apply(store(B, [7]))
    index.apply(extend(B, [7], [8]))
    assert index.overlap(prompt(7, 7, 7)).scores() == {A: 2, B: 1}


def test_lease_is_refused_by_name_and_nothing_ever_expires() -> None:
    index = PositionalIndex(16)
    with pytest.raises(MutationInvalid, match="LeaseTable"):
        index.apply(guess(A, FIVE))
    assert index.expire(1e9) == Expired(0, 0, float("inf"))
    with pytest.raises(ValueError, match="got 0"):
        index.expire(1e9, limit=0)
    assert index.statistics().ranks == 0


def test_churn_leaves_no_entry_and_no_object() -> None:
    """Distinct chains come and go under one live prefix, thousands of times."""
    index = PositionalIndex(16)
    index.apply(store(A, FIVE))

    def churn(first: int, rounds: int) -> int:
        for k in range(first, first + rounds):
            tail = range(1000 + 4 * k, 1004 + 4 * k)
            index.apply(extend(A, FIVE[: k % 5 + 1], tail))
            index.apply(remove(A, [*FIVE[: k % 5 + 1], *tail], *range(k % 5 + 2, k % 5 + 6)))
        gc.collect()
        return len(gc.get_objects())

    before = churn(0, 100)
    assert churn(100, 3_000) <= before + 20
    assert entries(index) == 5
