"""The contract of every index backend, continued: long chains, where edges split and jump."""

import random

import pytest

from kvlanes.indexer import Applied, Clear
from tests.indexer.chains import A, B, C, extend, prompt, remove, store
from tests.indexer.contract import ContractIndex, MakeIndex, depths, feed


def other(chain: range, at: int) -> list[int]:
    """The same chain with other blocks from position `at` (0 is the first) on."""
    return [block if k < at else block + 10_000 for k, block in enumerate(chain)]


class LongContract:
    """Long sequences."""

    @pytest.fixture
    def index(self, make_index: MakeIndex) -> ContractIndex:
        return make_index()

    def test_branches_after_a_shared_prefix(self, index: ContractIndex) -> None:
        chain = range(1, 61)
        left, right = list(chain), other(chain, 30)
        feed(index, store(A, left), store(B, right))
        assert depths(index, left) == {"a": 60, "b": 30}
        assert depths(index, right) == {"a": 30, "b": 60}

    def test_partial_removal_of_a_long_chain(self, index: ContractIndex) -> None:
        chain = range(1, 101)
        feed(index, store(A, chain), remove(A, chain, *range(100, 79, -1)))
        assert depths(index, chain) == {"a": 79}

    @pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65, 96])
    def test_lengths_around_powers_of_two(self, index: ContractIndex, length: int) -> None:
        chain = range(1, length + 1)
        feed(index, store(A, chain))
        assert depths(index, chain) == {"a": length}
        assert depths(index, range(1, 200)) == {"a": length}

    @pytest.mark.parametrize("at", [*range(31, 35), 47, *range(63, 67), 95, 96, 97])
    def test_divergence_at_any_place(self, index: ContractIndex, at: int) -> None:
        chain = range(1, 129)
        feed(index, store(A, chain), store(B, other(chain, at)))
        assert depths(index, chain) == {"a": 128, "b": at}

    def test_twenty_continuations_of_ten(self, index: ContractIndex) -> None:
        chain = range(1, 201)
        feed(index, store(A, chain[:10]))
        feed(index, *[extend(A, chain[:k], chain[k : k + 10]) for k in range(10, 200, 10)])
        assert depths(index, chain) == {"a": 200}
        assert feed(index, store(A, chain)) == [Applied(duplicates=200)]

    def test_cleared_and_built_again(self, index: ContractIndex) -> None:
        chain = range(1, 101)
        feed(index, store(A, chain), store(B, chain[:50]), Clear(A))
        assert depths(index, chain) == {"b": 50}
        feed(index, store(A, chain[:80]))
        assert depths(index, chain) == {"a": 80, "b": 50}

    def test_three_ranks_diverge_at_forty(self, index: ContractIndex) -> None:
        base = range(1, 61)
        chains = [[b + 1000 * k if i >= 40 else b for i, b in enumerate(base)] for k in range(3)]
        feed(index, *[store(rank, chain) for rank, chain in zip((A, B, C), chains)])
        for name, chain in zip("abc", chains):
            assert depths(index, chain) == {"a": 40, "b": 40, "c": 40} | {name: 60}

    def test_staggered_depths(self, index: ContractIndex) -> None:
        chain, lengths = range(1, 101), [10, 20, 35, 64, 100]
        ranks = [A._replace(dp_rank=k) for k in range(5)]
        feed(index, *[store(rank, chain[:n]) for rank, n in zip(ranks, lengths)])
        assert index.overlap(prompt(*chain)).scores() == dict(zip(ranks, lengths))
        assert index.overlap(prompt(*chain[:30])).scores() == dict(zip(ranks, [10, 20, 30, 30, 30]))

    def test_thousand_blocks_with_a_divergence_in_the_middle(self, index: ContractIndex) -> None:
        chain = range(1, 1001)
        feed(index, store(A, chain), store(B, other(chain, 500)))
        assert depths(index, chain) == {"a": 1000, "b": 500}
        assert depths(index, other(chain, 500)) == {"a": 500, "b": 1000}

    def test_holes_anywhere_in_a_long_chain(self, index: ContractIndex) -> None:
        rng, chain = random.Random(5), range(1, 129)
        feed(index, store(A, chain), store(B, chain[:100]))
        for at in rng.sample(range(1, 129), 12):
            feed(index, remove(A, chain, at))
            assert depths(index, chain) == {"b": 100} | ({"a": at - 1} if at > 1 else {})
            feed(index, extend(A, chain[: at - 1], chain[at - 1 : at]))
        assert depths(index, chain) == {"a": 128, "b": 100}

    def test_churn_under_a_shared_prefix_leaves_no_trace(self, index: ContractIndex) -> None:
        """Suffixes come and go under one live prefix, splitting it at another place each time."""
        base = range(1, 9)
        feed(index, store(A, base))
        before = index.digest(), index.statistics()
        for k in range(64):
            at = k % 8 + 1
            suffix = range(1000 + 8 * k, 1008 + 8 * k)
            feed(index, extend(A, base[:at], suffix))
            feed(index, remove(A, [*base[:at], *suffix], *range(at + 8, at, -1)))
        assert (index.digest(), index.statistics()) == before
