"""The contract of every index backend, continued: several ranks, names, what an overlap is."""

import itertools
import random

import pytest

from kvlanes.indexer import (
    Applied,
    Clear,
    Prompt,
    Rank,
    Remove,
    Store,
)
from tests.indexer.chains import A, B, C, extend, packed, prompt, remove, store
from tests.indexer.contract import FIVE, ContractIndex, MakeIndex, depths, feed

ENGINE = 0xABCDEF0123456789  # another engine: other names for the same content


class RankContract:
    """Ranks are apart: sharing blocks, parents, clears and departures."""

    @pytest.fixture
    def index(self, make_index: MakeIndex) -> ContractIndex:
        return make_index()

    def test_two_ranks_share_one_block_and_diverge(self, index: ContractIndex) -> None:
        feed(index, store(A, [1, 2, 3]), store(B, [1, 4, 5]))
        assert depths(index, [1, 2, 3]) == {"a": 3, "b": 1}
        assert depths(index, [1, 4, 5]) == {"a": 1, "b": 3}

    def test_parent_held_by_others_only_is_missing(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, [1]))
        before = index.digest()
        assert feed(index, extend(B, FIVE, [6, 7])) == [Applied(missing_parent=2)]
        assert feed(index, extend(C, FIVE, [6, 7])) == [Applied(missing_parent=2)]
        assert index.digest() == before
        assert depths(index, FIVE) == {"a": 5, "b": 1}

    def test_prefix_only_rank_reuses_the_suffix_then_appends(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, [1, 2]), extend(B, [1, 2], [3, 4, 5]))
        feed(index, extend(B, FIVE, [6]))
        assert depths(index, [*FIVE, 6]) == {"a": 5, "b": 6}

    def test_removal_from_one_rank_leaves_the_others(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, FIVE), store(A, [1, 2, 3, 9]), remove(A, FIVE, 2))
        assert depths(index, FIVE) == {"a": 1, "b": 5}
        feed(index, extend(A, [1, 2, 3, 9], [10]))
        feed(index, extend(A, [1], [2]))
        assert depths(index, [1, 2, 3, 9, 10]) == {"a": 5, "b": 3}

    def test_ranks_of_one_worker_are_apart(self, index: ContractIndex) -> None:
        ranks = [Rank("w", dp) for dp in range(3)]
        feed(index, *[store(rank, FIVE[: 2 + k]) for k, rank in enumerate(ranks)])
        assert index.overlap(prompt(*FIVE)).scores() == dict(zip(ranks, [2, 3, 4]))

    def test_clear_is_scoped_to_its_rank(self, index: ContractIndex) -> None:
        left, right = Rank("w", 0), Rank("w", 1)
        feed(index, store(left, FIVE), store(right, FIVE), store(A, FIVE))
        assert feed(index, Clear(left)) == [Applied(applied=5)]
        assert index.overlap(prompt(*FIVE)).scores() == {right: 5, A: 5}

    def test_cleared_rank_can_be_used_again(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), Clear(A))
        assert feed(index, extend(A, FIVE, [6])) == [Applied(missing_parent=1)]
        assert feed(index, store(A, [1, 2]), Clear(A), Clear(A))[1:] == [Applied(2), Applied()]
        feed(index, store(A, FIVE))
        assert depths(index, FIVE) == {"a": 5}

    def test_departure_takes_all_ranks_of_the_worker_only(self, index: ContractIndex) -> None:
        left, right = Rank("w", 0), Rank("w", 1)
        feed(index, store(left, FIVE), store(right, [1, 2]), store(A, FIVE))
        assert index.drop("w") == 7
        index.check()
        assert depths(index, FIVE) == {"a": 5}
        assert index.drop("w") == 0

    def test_departure_of_one_rank(self, index: ContractIndex) -> None:
        left, right = Rank("w", 0), Rank("w", 1)
        feed(index, store(left, FIVE), store(right, [1, 2]))
        assert index.drop("w", 1) == 2
        assert index.overlap(prompt(*FIVE)).scores() == {left: 5}

    def test_worker_that_left_comes_back_empty(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, FIVE))
        assert index.drop("a") == 5
        assert feed(index, extend(A, FIVE, [6])) == [Applied(missing_parent=1)]
        feed(index, store(A, [1]))
        assert depths(index, FIVE) == {"a": 1, "b": 5}

    @pytest.mark.parametrize("order", [(A, B, C), (B, C, A), (C, B, A)])
    def test_cycles_of_adding_and_removing_leave_no_trace(
        self, index: ContractIndex, order: tuple[Rank, ...]
    ) -> None:
        empty, full = index.digest(), set()
        for _ in range(3):
            feed(index, *[store(rank, FIVE) for rank in order])
            full.add(index.digest())
            feed(index, *[remove(rank, FIVE) for rank in reversed(order)])
            assert index.digest() == empty
        assert len(full) == 1


class NameContract:
    """Engine hashes: one name a block, one block a name, each rank for itself."""

    @pytest.fixture
    def index(self, make_index: MakeIndex) -> ContractIndex:
        return make_index()

    def test_two_engines_name_one_chain_apart(self, index: ContractIndex) -> None:
        """Both can be removed and can parent, by their own names only."""
        feed(index, store(A, FIVE), store(B, FIVE, ENGINE))
        strange = feed(index, remove(B, FIVE, 5), extend(B, FIVE, [6]))
        assert strange == [Applied(unknown=1), Applied(missing_parent=1)]
        strange = feed(index, remove(A, FIVE, 5, engine=ENGINE), extend(A, FIVE, [6], ENGINE))
        assert strange == [Applied(unknown=1), Applied(missing_parent=1)]
        feed(index, extend(A, FIVE, [6]), extend(B, FIVE, [6], ENGINE))
        assert depths(index, [*FIVE, 6]) == {"a": 6, "b": 6}
        feed(index, remove(B, FIVE, 2, engine=ENGINE))
        assert depths(index, [*FIVE, 6]) == {"a": 6, "b": 1}
        feed(index, remove(A, FIVE, 4), extend(B, [1], [2], ENGINE))
        assert depths(index, [*FIVE, 6]) == {"a": 3, "b": 6}

    def test_names_of_engines_survive_a_split_by_a_third(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, FIVE, ENGINE), store(C, [1, 2, 9]))
        feed(index, remove(A, FIVE, 2), remove(B, FIVE, 3, engine=ENGINE))
        assert depths(index, FIVE) == {"a": 1, "b": 2, "c": 2}
        feed(index, extend(A, FIVE, [6]), extend(B, FIVE, [6], ENGINE))
        feed(index, extend(A, [1], [2]), extend(B, [1, 2], [3], ENGINE))
        assert depths(index, [*FIVE, 6]) == {"a": 6, "b": 6, "c": 2}

    def test_one_name_may_mean_different_blocks_to_two_ranks(self, index: ContractIndex) -> None:
        feed(index, Store(A, None, packed([1, 2]), [7, 8]), Store(B, None, packed([3]), [8]))
        feed(index, Store(B, 8, packed([4]), [7]), Store(A, 8, packed([3]), [9]))
        assert depths(index, [1, 2, 3]) == {"a": 3}
        assert depths(index, [3, 4]) == {"b": 2}
        assert feed(index, Remove(B, [8, 9])) == [Applied(applied=1, unknown=1)]
        assert depths(index, [1, 2, 3]) == {"a": 3}
        assert depths(index, [3, 4]) == {}

    def test_block_under_another_name_is_renamed(self, index: ContractIndex) -> None:
        results = feed(index, store(A, FIVE), store(A, FIVE, ENGINE), remove(A, FIVE))
        assert results[1:] == [Applied(duplicates=5), Applied(unknown=5)]
        assert depths(index, FIVE) == {"a": 5}
        feed(index, extend(A, FIVE, [6], ENGINE), remove(A, [*FIVE, 6], 5, 6, engine=ENGINE))
        assert depths(index, [*FIVE, 6]) == {"a": 4}

    def test_renaming_is_the_rank_s_own_matter(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, FIVE), store(B, FIVE[:3], ENGINE))
        assert feed(index, remove(A, FIVE, 3), remove(B, FIVE, 3)) == [
            Applied(applied=1),
            Applied(unknown=1),
        ]
        assert feed(index, remove(B, FIVE, 4)) == [Applied(applied=1)]
        assert depths(index, FIVE) == {"a": 2, "b": 3}

    def test_name_used_again_elsewhere_moves(self, index: ContractIndex) -> None:
        """The name now means the later block, and the earlier one is a hole."""
        feed(index, Store(A, None, packed([1, 2, 3]), [11, 12, 13]))
        assert feed(index, Store(A, None, packed([8, 9]), [12, 18])) == [Applied(applied=2)]
        assert depths(index, [1, 2, 3]) == {"a": 1}
        assert depths(index, [8, 9]) == {"a": 2}
        assert index.statistics().blocks == 4
        assert feed(index, Remove(A, [12])) == [Applied(applied=1)]
        assert depths(index, [8, 9]) == {}

    def test_name_may_move_down_its_own_chain(self, index: ContractIndex) -> None:
        feed(index, Store(A, None, packed([1, 2]), [11, 12]))
        assert feed(index, Store(A, 12, packed([3]), [11])) == [Applied(applied=1)]
        assert depths(index, [1, 2, 3]) == {}
        feed(index, Store(A, None, packed([1]), [10]))
        assert depths(index, [1, 2, 3]) == {"a": 3}

    def test_swapped_names_equal_their_blocks_one_by_one(self, make_index: MakeIndex) -> None:
        at_once, one_by_one = make_index(), make_index()
        for index in (at_once, one_by_one):
            feed(index, Store(A, None, packed([1, 2]), [11, 12]))
        assert feed(at_once, Store(A, None, packed([1, 2]), [12, 11])) == [Applied(1, 1)]
        assert feed(
            one_by_one, Store(A, None, packed([1]), [12]), Store(A, 12, packed([2]), [11])
        ) == [Applied(duplicates=1), Applied(applied=1)]
        assert at_once.digest() == one_by_one.digest()
        assert depths(at_once, [1, 2]) == {"a": 2}

    def test_extreme_names(self, index: ContractIndex) -> None:
        feed(index, Store(A, None, packed([1, 2]), [0, 2**64 - 1]))
        assert feed(index, Store(A, 0, packed([3]), [1])) == [Applied(applied=1)]
        assert feed(index, Remove(A, [2**64 - 1, 0])) == [Applied(applied=2)]
        assert index.statistics().blocks == 1

    def test_digest_knows_names_but_not_order(self, make_index: MakeIndex) -> None:
        digests = set()
        for order in itertools.permutations([store(A, [1, 2]), store(A, [3]), store(B, [1])]):
            index = make_index()
            feed(index, *order)
            digests.add(index.digest())
        assert len(digests) == 1
        feed(index, store(B, [1], ENGINE))
        assert index.digest() not in digests


class OverlapContract:
    """An overlap is a value; identity keeps adapters and tenants apart."""

    @pytest.fixture
    def index(self, make_index: MakeIndex) -> ContractIndex:
        return make_index()

    def test_overlap_does_not_change_with_the_index(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, [1, 2]))
        taken = index.overlap(prompt(*FIVE))
        feed(index, Clear(A), store(C, FIVE), extend(B, [1, 2], [3]))
        index.drop("b")
        feed(index, store(Rank("late"), FIVE))
        assert (taken.of(A), taken.of(B), taken.of(C), taken.best()) == (5, 2, 0, 5)
        assert taken.scores() == {A: 5, B: 2}

    def test_best_among_the_eligible(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), store(B, [1, 2]))
        overlap = index.overlap(prompt(*FIVE))
        assert [overlap.best(x) for x in ([A, B], {B}, [C], ())] == [5, 2, 0, 0]

    def test_overlap_changes_nothing(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), remove(A, FIVE, 3))
        before = index.digest(), index.statistics()
        for length in range(8):
            depths(index, range(1, length + 1))
        assert (index.digest(), index.statistics()) == before

    def test_overlap_is_the_longest_common_prefix(self, make_index: MakeIndex) -> None:
        """Random chains over two letters, three ranks, against a brute-force model."""
        rng = random.Random(78)
        for _ in range(100):
            index, held = make_index(), list[tuple[Rank, list[int]]]()
            for _ in range(4):
                rank, chain = rng.choice([A, B, C]), rng.choices([0, 1], k=rng.randint(1, 12))
                feed(index, store(rank, chain))
                held.append((rank, chain))
            for _ in range(100):
                query = rng.choices([0, 1], k=rng.randint(0, 14))
                assert depths(index, query) == brute_force(held, query)

    def test_adapters_and_tenants_are_disjoint(self, index: ContractIndex) -> None:
        tokens = list(range(64))
        variants = [
            Prompt(tokens, 16),
            Prompt(tokens, 16, adapter="a"),
            Prompt(tokens, 16, adapter="b"),
            Prompt(tokens, 16, namespace="s"),
            Prompt(tokens, 16, adapter="a", namespace="s"),
        ]
        for number, variant in enumerate(variants):
            rank = Rank("w", number)
            feed(index, Store(rank, None, variant.blocks, variant.sequence_hashes))
        for number, variant in enumerate(variants):
            assert index.overlap(variant).scores() == {Rank("w", number): 4}
        assert index.overlap(Prompt(tokens, 16, adapter="unknown")).scores() == {}
        index.apply(Remove(Rank("w", 1), variants[1].sequence_hashes), 0.0)
        assert [index.overlap(v).best() for v in variants] == [4, 0, 4, 4, 4]


def brute_force(held: list[tuple[Rank, list[int]]], query: list[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for rank, chain in held:
        common = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chain, query))
        )
        if common:
            found[str(rank)] = max(common, found.get(str(rank), 0))
    return found
