"""The contract of every index backend, for your own one too.

Run it against a backend of yours: name a fixture `make_index` and collect the classes.

    from tests.indexer.contract import CoverageContract as TestMyCoverage
    from tests.indexer.contract_guesses import GuessContract as TestMyGuesses
    from tests.indexer.contract_leases import LeaseContract as TestMyLeases
    from tests.indexer.contract_long import LongContract as TestMyLongChains
    from tests.indexer.contract_ranks import NameContract as TestMyNames
    from tests.indexer.contract_ranks import OverlapContract as TestMyOverlaps
    from tests.indexer.contract_ranks import RankContract as TestMyRanks

    @pytest.fixture
    def make_index():
        return lambda: LeaseTable(MyIndex(16))

`make_index()` answers an empty index of 16 tokens a block with the methods of `ContractIndex`.
A backend without leases of its own takes part through `LeaseTable`, which brings leases, names,
digest, statistics and dumps along (`tests/indexer/backends.py` has one in twenty lines), or leaves
`LeaseContract` and `GuessContract` out. `DumpContract` wants a fixture `make_dumped`. The
definitions behind all of this stand in `tests/indexer/oracle.py`; `tests/indexer/machines.py`
compares step by step.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pytest

from kvlanes.indexer import (
    Applied,
    BlockSizeMismatch,
    Clear,
    Counted,
    IndexBackend,
    IndexerError,
    Mutation,
    Prompt,
    Rank,
    Remove,
    Store,
)
from tests.indexer.chains import A, B, extend, names, packed, prompt, remove, store


class ContractIndex(IndexBackend, Protocol):
    def digest(self) -> str: ...

    def statistics(self) -> Counted: ...

    def check(self) -> None: ...


MakeIndex: TypeAlias = Callable[[], ContractIndex]


def feed(index: ContractIndex, *mutations: Mutation) -> list[Applied]:
    """Apply in order, checking every invariant after each."""
    results = []
    for mutation in mutations:
        results.append(index.apply(mutation, 0.0))
        index.check()
    return results


def depths(index: ContractIndex, chain: Sequence[int]) -> dict[str, int]:
    """What the overlap of a chain says, three ways that must agree."""
    overlap = index.overlap(prompt(*chain))
    scores = overlap.scores()
    assert all(overlap.of(rank) == depth > 0 for rank, depth in scores.items())
    assert overlap.best() == max(scores.values(), default=0)
    return {str(rank): depth for rank, depth in scores.items()}


FIVE = [1, 2, 3, 4, 5]


class CoverageContract:
    """Confirmed coverage: stores, removals, clears, departures, and what overlaps say of them."""

    @pytest.fixture
    def index(self, make_index: MakeIndex) -> ContractIndex:
        return make_index()

    # -- one rank, one chain ----------------------------------------------------------------

    def test_stored_chain_is_found(self, index: ContractIndex) -> None:
        assert feed(index, store(A, FIVE)) == [Applied(applied=5)]
        assert depths(index, FIVE) == {"a": 5}

    def test_duplicate_store_changes_nothing_and_counts_once(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE))
        before = index.digest()
        assert feed(index, store(A, FIVE)) == [Applied(duplicates=5)]
        assert index.digest() == before

    def test_continuation_is_no_duplicate(self, index: ContractIndex) -> None:
        _, more = feed(index, store(A, [1, 2]), extend(A, [1, 2], [3, 4, 5]))
        assert more == Applied(applied=3)
        assert depths(index, FIVE) == {"a": 5}

    def test_partly_known_store_counts_both_kinds(self, index: ContractIndex) -> None:
        assert feed(index, store(A, [1, 2]), store(A, FIVE))[1] == Applied(3, 2)

    def test_size_follows_stores_continuations_and_removals(self, index: ContractIndex) -> None:
        sizes = []
        steps: list[Mutation] = [
            store(A, [1, 2, 3]),
            store(A, [1, 2, 3]),
            extend(A, [1, 2, 3], [4, 5]),
        ]
        steps += [remove(A, FIVE, 5), remove(A, FIVE, 1), remove(A, FIVE, 2, 3, 4)]
        for step in steps:
            feed(index, step)
            sizes.append(index.statistics().blocks)
        assert sizes == [3, 3, 5, 4, 3, 0]

    def test_chain_of_parents(self, index: ContractIndex) -> None:
        feed(index, store(A, [1]), *[extend(A, FIVE[:k], [k + 1]) for k in range(1, 5)])
        assert depths(index, FIVE) == {"a": 5}

    def test_several_chains_of_one_rank(self, index: ContractIndex) -> None:
        feed(index, store(A, [1, 2]), store(A, [3, 4, 5]), store(A, [1, 6]))
        assert [depths(index, c) for c in ([1, 2], [3, 4, 5], [1, 6])] == [
            {"a": 2},
            {"a": 3},
            {"a": 2},
        ]

    def test_empty_prompt_and_miss(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE))
        assert depths(index, []) == {}
        assert depths(index, [9, 1, 2]) == {}
        assert index.overlap(prompt(9)).best([A, B]) == 0

    def test_partial_match_ends_at_the_divergence(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE))
        assert depths(index, [1, 2, 9, 4, 5]) == {"a": 2}
        assert depths(index, [*FIVE, 6, 7]) == {"a": 5}
        assert depths(index, FIVE[:3]) == {"a": 3}

    def test_tokens_find_what_tokens_stored(self, index: ContractIndex) -> None:
        tokens = list(range(16 * 3 + 5))
        whole = Prompt(tokens, 16)
        feed(index, Store(A, None, whole.blocks, whole.sequence_hashes))
        assert index.overlap(Prompt(tokens, 16)).scores() == {A: 3}
        assert index.overlap(Prompt(tokens[:40], 16)).scores() == {A: 2}

    def test_repeated_blocks_are_different_places(self, index: ContractIndex) -> None:
        """One token over and over: four blocks, and the third removed leaves two."""
        feed(index, store(A, [5, 5, 5, 5]))
        assert depths(index, [5, 5, 5, 5, 5]) == {"a": 4}
        feed(index, remove(A, [5, 5, 5, 5], 3))
        assert depths(index, [5, 5, 5, 5]) == {"a": 2}
        assert index.statistics().blocks == 3

    def test_store_without_blocks_is_nothing(self, index: ContractIndex) -> None:
        assert feed(index, Store(A, None, b""), Store(A, 77, b"")) == [Applied(), Applied()]
        assert index.statistics().blocks == 0

    # -- removal and holes ------------------------------------------------------------------

    def test_removing_all_leaves_nothing(self, index: ContractIndex) -> None:
        empty = index.digest()
        _, removed = feed(index, store(A, FIVE), remove(A, FIVE))
        assert removed == Applied(applied=5)
        assert depths(index, FIVE) == {}
        assert index.digest() == empty

    def test_removing_the_last_block_shortens_by_one(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), remove(A, FIVE, 5))
        assert depths(index, FIVE) == {"a": 4}

    def test_hole_hides_and_restoring_reveals(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), remove(A, FIVE, 3))
        assert depths(index, FIVE) == {"a": 2}
        assert index.statistics().blocks == 4
        assert feed(index, extend(A, [1, 2], [3])) == [Applied(applied=1)]
        assert depths(index, FIVE) == {"a": 5}

    def test_first_block_removed_hides_all(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), remove(A, FIVE, 1))
        assert depths(index, FIVE) == {}
        feed(index, store(A, [1]))
        assert depths(index, FIVE) == {"a": 5}

    def test_hidden_block_is_still_a_parent(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), remove(A, FIVE, 2))
        assert feed(index, extend(A, FIVE, [6])) == [Applied(applied=1)]
        assert depths(index, [*FIVE, 6]) == {"a": 1}
        feed(index, extend(A, [1], [2]))
        assert depths(index, [*FIVE, 6]) == {"a": 6}

    def test_removed_block_is_no_parent(self, index: ContractIndex) -> None:
        feed(index, store(A, FIVE), remove(A, FIVE, 3))
        assert feed(index, extend(A, [1, 2, 3], [9, 8])) == [Applied(missing_parent=2)]

    @pytest.mark.parametrize("order", [FIVE, FIVE[::-1], [3, 1, 5, 2, 4]])
    def test_order_within_a_removal_is_free(self, index: ContractIndex, order: list[int]) -> None:
        removed = feed(index, store(A, FIVE), remove(A, FIVE, *order))[1]
        assert removed == Applied(applied=5)
        assert index.statistics().blocks == 0

    @pytest.mark.parametrize("order", [FIVE, FIVE[::-1], [3, 1, 5, 2, 4]])
    def test_batched_removal_equals_serial(self, make_index: MakeIndex, order: list[int]) -> None:
        batched, serial = make_index(), make_index()
        feed(batched, store(A, FIVE), store(B, FIVE), remove(A, FIVE, *order[:3]))
        feed(serial, store(A, FIVE), store(B, FIVE), *[remove(A, FIVE, k) for k in order[:3]])
        assert batched.digest() == serial.digest()
        assert depths(batched, FIVE) == depths(serial, FIVE)

    def test_batch_with_unknown_names_processes_all(self, index: ContractIndex) -> None:
        known = names(FIVE)
        batch = Remove(A, [known[4], 999, known[3], known[4]])
        assert feed(index, store(A, FIVE), batch)[1] == Applied(applied=2, unknown=2)
        assert depths(index, FIVE) == {"a": 3}

    def test_removal_from_strangers_is_harmless(self, index: ContractIndex) -> None:
        strangers: list[Mutation] = [remove(B, FIVE, 1, 2), Clear(B), Remove(B, [])]
        results = feed(index, store(A, FIVE), *strangers)
        assert results[1:] == [Applied(unknown=2), Applied(), Applied()]
        assert index.drop("nobody") == 0
        assert depths(index, FIVE) == {"a": 5}

    def test_sibling_survives_removal_of_its_twin(self, index: ContractIndex) -> None:
        feed(index, store(A, [1, 2, 3]), store(A, [1, 2, 4]), remove(A, [1, 2, 3], 3))
        assert depths(index, [1, 2, 4]) == {"a": 3}
        assert depths(index, [1, 2, 3]) == {"a": 2}

    def test_block_stored_again_after_its_last_owner_left(self, index: ContractIndex) -> None:
        """Emptied and stored again at the same key: the replacement must stay reachable."""
        feed(index, store(A, FIVE))
        for _ in range(3):
            feed(index, remove(A, FIVE, 4, 5), extend(A, FIVE[:3], [4, 5]))
            feed(index, remove(A, FIVE), store(A, FIVE))
        assert depths(index, FIVE) == {"a": 5}

    def test_another_block_size_is_refused_with_both_numbers(self, index: ContractIndex) -> None:
        with pytest.raises(BlockSizeMismatch, match=r"64.*16"):
            index.overlap(Prompt(list(range(128)), 64))
        assert index.block_size == 16

    @pytest.mark.parametrize(
        "malformed",
        [
            Store(A, None, packed([1, 2])[:-1], [1, 2]),
            Store(A, None, packed([1, 2]), [1]),
            Store(A, None, packed([1, 2]), ()),
            Store(A, None, packed([1, 2]), [1, 2, 3]),
            Store(A, None, packed([1, 2, 3]), [7, 8, 7]),
            Store(A, names([9])[0], packed([1, 2]), [7, names([9])[0]]),
            Store(A, None, packed([1, 2]), [7, -1]),
            Store(A, None, packed([1, 2]), [7, 2**64]),
            Remove(A, [names([9])[0], 2**64]),
        ],
        ids=lambda mutation: str(mutation.sequence_hashes),
    )
    def test_malformed_store_is_refused_before_it_writes(
        self, index: ContractIndex, malformed: Mutation
    ) -> None:
        feed(index, store(A, [9]))
        before = index.digest()
        with pytest.raises(IndexerError) as refused:
            index.apply(malformed, 0.0)
        assert isinstance(refused.value, ValueError)
        index.check()
        assert index.digest() == before
        assert depths(index, [1, 2, 3]) == {}

    @pytest.mark.parametrize(
        "stranger",
        [
            None,
            (A, [1]),
            Store(("a", 0), None, packed([1]), [1]),  # type: ignore[arg-type]
            Store([A], None, packed([1]), [1]),  # type: ignore[arg-type]
            Store(A, None, bytearray(8), [1]),  # type: ignore[arg-type]
            Store(A, None, None, [1]),  # type: ignore[arg-type]
            Store(A, [1], packed([1]), [1]),  # type: ignore[arg-type]
            Store(A, 1.0, packed([1]), [1]),  # type: ignore[arg-type]
            Store(A, None, packed([1]), [1], 5.0),  # type: ignore[arg-type]
            Remove([A], [1]),  # type: ignore[arg-type]
            Clear([A]),  # type: ignore[arg-type]
        ],
        ids=str,
    )
    def test_what_is_no_mutation_is_refused(self, index: ContractIndex, stranger: Any) -> None:
        """By an error of this package: anything else would say that the index is broken."""
        feed(index, store(A, [9]))
        with pytest.raises(IndexerError) as refused:
            index.apply(stranger, 0.0)
        assert isinstance(refused.value, TypeError)
        index.check()
        assert index.statistics().blocks == 1

    @pytest.mark.parametrize("names", [None, 5, ["a"], [1.0]], ids=str)
    def test_names_that_are_none_are_refused(self, index: ContractIndex, names: Any) -> None:
        feed(index, store(A, [9]))
        for malformed in (Store(A, None, packed([1]), names), Remove(A, names)):
            with pytest.raises(IndexerError, match="64-bit"):
                index.apply(malformed, 0.0)
        assert index.statistics().blocks == 1

    def test_names_may_come_in_any_sequence_of_integers(self, make_index: MakeIndex) -> None:
        plain, others = make_index(), make_index()
        feed(plain, Store(A, None, packed(FIVE), [11, 12, 13, 14, 15]), Remove(A, [15]))
        feed(others, Store(A, None, packed(FIVE), np.arange(11, 16, dtype=np.uint64)))  # type: ignore[arg-type]
        feed(others, Remove(A, array("Q", [15])))
        assert others.digest() == plain.digest()

    def test_digest_takes_any_worker_name(self, index: ContractIndex) -> None:
        before = index.digest()
        feed(index, store(Rank("half a pair \ud800"), FIVE))
        assert index.digest() != before
