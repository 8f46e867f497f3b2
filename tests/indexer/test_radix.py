"""What only `RadixIndex` promises: its shape follows what is alive, and its bounds are hard.

That it answers like every other backend is the matter of the contract and the machines.
"""

import gc
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlanes.indexer import (
    Clear,
    Lease,
    Prompt,
    RadixIndex,
    Rank,
    Remove,
    Store,
)
from kvlanes.indexer._radix_node import common
from tests.indexer.chains import A, B, C, extend, guess, names, packed, prompt, remove, store
from tests.support.profiles import budget


def shape(index: RadixIndex) -> tuple[int, int]:
    index.check()
    statistics = index.statistics()
    return statistics.segments, statistics.entries


@pytest.fixture
def index() -> RadixIndex:
    return RadixIndex(16)


# Segments


def test_one_chain_is_one_segment_however_it_came(index: RadixIndex) -> None:
    chain = range(1, 11)
    for depth in chain:
        index.apply(extend(A, range(1, depth), [depth]) if depth > 1 else store(A, [1]), 0.0)
    assert shape(index) == (1, 10)


def test_splits_of_one_chain_merge_back_to_one_segment(index: RadixIndex) -> None:
    chain = list(range(1, 2_002))
    blocks, named = packed(chain), names(chain)
    index.apply(store(A, chain), 0.0)
    for depth in range(1, 2_001):
        index.apply(Store(B, None, blocks[: 8 * depth], named[:depth]), 0.0)
        index.apply(Remove(B, [named[depth - 1]]), 0.0)
    assert shape(index)[0] <= 2
    index.apply(Clear(B), 0.0)
    assert shape(index) == (1, 2_001)
    assert index.overlap(prompt(*chain)).scores() == {A: 2_001}


@pytest.mark.parametrize("engine", [0, 7])
def test_cuts_at_every_block_merge_when_their_rank_leaves(index: RadixIndex, engine: int) -> None:
    chain = list(range(1, 300))
    index.apply(store(A, chain), 0.0)
    index.apply(store(B, chain, engine), 0.0)
    for depth in random.Random(1).sample(range(1, 299, 2), 149):
        index.apply(remove(B, chain, depth, engine=engine), 0.0)
    assert shape(index)[0] == 298
    assert index.drop("b") == 150
    assert shape(index) == (1, 299)


def test_leases_merge_when_their_deadlines_meet(index: RadixIndex) -> None:
    index.apply(guess(A, [1, 2, 3, 4]), 0.0)
    index.apply(guess(A, [1, 2]), 1.0)
    assert shape(index) == (2, 4)
    index.apply(guess(A, [1, 2, 3, 4]), 2.0)
    assert shape(index) == (1, 4)


def test_branch_that_ends_leaves_its_trunk_whole(index: RadixIndex) -> None:
    index.apply(store(A, [1, 2, 3, 4]), 0.0)
    index.apply(guess(A, [1, 2, 9]), 0.0)
    assert shape(index) == (3, 5)
    assert index.expire(11.0).blocks == 1
    assert shape(index) == (1, 4)


def test_hole_without_anything_behind_it_goes(index: RadixIndex) -> None:
    index.apply(store(A, [1, 2, 3, 4]), 0.0)
    index.apply(remove(A, [1, 2, 3, 4], 2, 3), 0.0)
    assert shape(index) == (3, 4)
    index.apply(remove(A, [1, 2, 3, 4], 4), 0.0)
    assert shape(index) == (1, 1)
    index.apply(remove(A, [1]), 0.0)
    assert shape(index) == (0, 0)


def test_same_key_stored_while_its_last_owner_leaves_is_reachable(index: RadixIndex) -> None:
    # P36 and P04: emptiness is judged and acted on in one synchronous step, on the same object.
    for _ in range(3):
        index.apply(store(A, [1, 2]), 0.0)
        index.apply(store(B, [1]), 0.0)
        index.drop("a")
        assert index.overlap(prompt(1, 2)).scores() == {B: 1}
        index.apply(Clear(B), 0.0)
        index.check()


@settings(max_examples=budget(ci=100, deep=2_000))
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.booleans()), max_size=60))
def test_every_add_that_nobody_took_back_is_visible(events: list[tuple[int, int, bool]]) -> None:
    # P36: eight owners add and evict three keys in any order.
    index, held = RadixIndex(16), set[tuple[Rank, int]]()
    for owner, key, add in events:
        rank = Rank(str(owner))
        index.apply(store(rank, [key]) if add else remove(rank, [key]), 0.0)
        (held.add if add else held.discard)((rank, key))
        index.check()
        for each in range(3):
            expected = {rank: 1 for rank, one in held if one == each}
            assert index.overlap(prompt(each)).scores() == expected


def test_churn_under_a_live_prefix_leaves_nothing(index: RadixIndex) -> None:
    # P04: 10,000 unique suffixes come and go at changing places of one prefix.
    prefix = list(range(1, 9))
    index.apply(store(A, prefix), 0.0)
    rounds = budget(ci=10_000, deep=100_000)
    objects = []
    for number in range(rounds):
        depth, suffix = number % 8 + 1, [10_000 + number * 8 + k for k in range(8)]
        index.apply(extend(A, prefix[:depth], suffix), 0.0)
        index.apply(Remove(A, names([*prefix[:depth], *suffix])[depth:]), 0.0)
        if number in (rounds // 5, rounds - 1):
            gc.collect()
            objects.append(len(gc.get_objects()))
    assert shape(index) == (1, 8)
    assert objects[1] <= objects[0] * 1.02
    index.drop("a")
    assert shape(index) == (0, 0)


def test_partial_match_equals_the_longest_common_prefix() -> None:
    # P78: random chains over two blocks, three ranks, 10,000 questions.
    draw, index = random.Random(78), RadixIndex(16)
    held: dict[Rank, set[tuple[int, ...]]] = {A: set(), B: set(), C: set()}
    for number in range(10_000):
        rank = draw.choice([A, B, C])
        chain = [draw.randrange(2) for _ in range(draw.randint(1, 12))]
        if number % 10 == 0:
            index.apply(store(rank, chain), 0.0)
            held[rank].update(tuple(chain[:k]) for k in range(1, len(chain) + 1))
        question = chain[: draw.randrange(14)]
        prefixes = [tuple(question[:k]) for k in range(1, len(question) + 1)]
        overlap = index.overlap(prompt(*question))
        for each, paths in held.items():
            assert overlap.of(each) == len(list(itertools.takewhile(paths.__contains__, prefixes)))


def test_block_size_one_with_repeated_tokens() -> None:
    # P79: removal of the third of four equal blocks cuts the match to two.
    index, said = RadixIndex(1), Prompt([5, 5, 5, 5], 1)
    index.apply(Store(A, None, said.blocks, said.sequence_hashes), 0.0)
    assert index.overlap(said).of(A) == 4
    index.apply(Remove(A, [said.sequence_hashes[2]]), 0.0)
    assert index.overlap(said).of(A) == 2


def test_adapters_and_tenants_have_disjoint_coverage(index: RadixIndex) -> None:
    # P19: one text four ways; removing one way leaves the other three.
    tokens = list(range(64))
    ways: list[dict[str, Any]] = [{}, {"adapter": "a"}, {"adapter": "b"}, {"namespace": "s"}]
    said = [Prompt(tokens, 16, **way) for way in ways]
    for each in said:
        index.apply(Store(A, None, each.blocks, each.sequence_hashes), 0.0)
    index.apply(Remove(A, said[1].sequence_hashes), 0.0)
    assert [index.overlap(each).of(A) for each in said] == [4, 0, 4, 4]
    assert index.overlap(Prompt(tokens, 16, adapter="unknown")).scores() == {}


def test_a_hundred_thousand_chains_under_a_live_prefix_leave_memory_flat(index: RadixIndex) -> None:
    prefix = list(range(1, 9))
    index.apply(store(A, prefix), 0.0)
    head, parent, peak = packed(prefix), names(prefix)[-1], (0, 0, 0)
    for number in range(100_000):
        tail = packed(range(number * 2, number * 2 + 2))
        named = [parent ^ (number * 2 + 1), parent ^ (number * 2 + 2)]
        index.apply(Store(A, parent, tail, named), 0.0)
        index.apply(Store(B, None, head + tail, (), Lease(5.0)), float(number))
        index.apply(Remove(A, named), 0.0)
        index.expire(float(number))
        if number % 1_000 == 0:
            seen = index.statistics()
            peak = max(peak, (seen.segments, seen.entries, seen.timers))
    assert peak <= (20, 40, 60)
    index.expire(200_000.0)
    assert shape(index) == (1, 8)


# Slots


def test_overlap_never_names_a_rank_that_came_later(index: RadixIndex) -> None:
    index.apply(store(A, [1]), 0.0)
    before = index.overlap(prompt(1))
    index.drop("a")
    index.apply(store(B, [1]), 0.0)  # takes the slot of A
    assert before.scores() == {A: 1}
    assert (before.of(A), before.of(B), before.best([B])) == (1, 0, 0)
    after = index.overlap(prompt(1))
    assert after.scores() == {B: 1}
    assert (after.of(A), after.best([A, C])) == (0, 0)


def test_slots_are_used_again(index: RadixIndex) -> None:
    for number in range(500):
        rank = Rank(f"worker-{number}")
        index.apply(guess(rank, [1, 2, number]), 0.0)
        assert index.overlap(prompt(1, 2)).of(rank) == 2
        if number >= 3:
            index.drop(f"worker-{number - 3}")
        index.check()
    assert index.overlap(prompt(1)).scores().keys() == {
        Rank(f"worker-{n}") for n in (497, 498, 499)
    }


def test_scores_of_many_ranks_at_one_and_at_many_depths(index: RadixIndex) -> None:
    chain = list(range(100))
    for number in range(200):
        index.apply(guess(Rank("w", number), chain[: 50 if number % 2 else number // 2 + 1]), 0.0)
    scores = index.overlap(prompt(*chain)).scores()
    assert scores == {Rank("w", n): 50 if n % 2 else n // 2 + 1 for n in range(200)}
    assert index.overlap(prompt(*chain)).best([Rank("w", 0), Rank("w", 4)]) == 3
    assert "100 blocks at best, 200 ranks" in repr(index.overlap(prompt(*chain)))


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 5), st.integers(0, 2**64 - 1))
def test_common_run_ends_at_the_first_block_that_differs(
    same: int, more: int, before: int, bits: int
) -> None:
    shared, lead = random.Random(same).randbytes(8 * same), packed(range(before))
    parting = bits.to_bytes(8, "big")
    edge = shared + parting + packed(range(more))
    at = len(lead)
    assert common(edge, lead + edge, at) == len(edge)
    assert common(edge, lead + shared, at) == common(shared, lead + edge, at) == 8 * same
    for bit in (0, 17, 63):
        other = (bits ^ (1 << bit)).to_bytes(8, "big")
        assert common(edge, lead + shared + other + edge[8 * same + 8 :], at) == 8 * same
