"""The contract of every index backend, continued: coverage that ends by itself."""

import math
from collections.abc import Collection, Sequence

import pytest

from kvlanes.indexer import (
    Applied,
    Clear,
    Expired,
    Mutation,
    Rank,
)
from tests.indexer.chains import A, B, C, extend, guess, prompt, remove, store
from tests.indexer.contract import FIVE, ContractIndex, MakeIndex, depths

TICK = 0.25  # the longest tick that a backend may have here; times below are whole seconds
BEFORE = 1e-3


def at(index: ContractIndex, now: float, *mutations: Mutation) -> list[Applied]:
    results = [index.apply(mutation, now) for mutation in mutations]
    index.check()
    return results


def expire(
    index: ContractIndex, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
) -> Expired:
    """Slice by slice until nothing is due; the sum of what the slices did."""
    entries = blocks = 0
    while True:
        done = index.expire(now, limit, ranks)
        index.check()
        assert done.entries <= limit
        entries, blocks = entries + done.entries, blocks + done.blocks
        if done.next_deadline > now:
            return Expired(entries, blocks, done.next_deadline)
        assert done.entries == limit, "cut short without having used its limit"


def ends_at(index: ContractIndex, chain: Sequence[int], end: float, rest: dict[str, int]) -> None:
    """The lease holds until just before `end` and is gone at most one tick after it."""
    before = depths(index, chain)
    expire(index, end - BEFORE)
    assert depths(index, chain) == before != rest
    expire(index, end + TICK)
    assert depths(index, chain) == rest


class LeaseContract:
    """Leased coverage: granted, extended, revoked, consumed."""

    @pytest.fixture
    def index(self, make_index: MakeIndex) -> ContractIndex:
        return make_index()

    # -- life of a lease --------------------------------------------------------------------

    def test_guess_makes_coverage_that_ends(self, index: ContractIndex) -> None:
        assert at(index, 100.0, guess(A, FIVE, ttl=10)) == [Applied(applied=5)]
        assert depths(index, FIVE) == {"a": 5}
        ends_at(index, FIVE, 110.0, {})
        assert index.statistics().blocks == 0

    def test_expiry_counts_blocks_and_says_when_to_come_back(self, index: ContractIndex) -> None:
        assert index.expire(0.0) == Expired(0, 0, math.inf)
        at(index, 0.0, guess(A, FIVE, ttl=10), guess(B, [1, 2], ttl=20))
        waiting = index.expire(5.0)
        assert (waiting.entries, waiting.blocks) == (0, 0)
        assert 10.0 <= waiting.next_deadline <= 10.0 + TICK
        first = expire(index, 10.0 + TICK)
        assert first.blocks == 5
        assert 20.0 <= first.next_deadline <= 20.0 + TICK
        assert expire(index, 30.0).blocks == 2
        assert index.expire(31.0).next_deadline == math.inf

    def test_zero_ttl_ends_at_the_next_expiry(self, index: ContractIndex) -> None:
        at(index, 7.0, guess(A, FIVE, ttl=0))
        expire(index, 7.0 + TICK)
        assert depths(index, FIVE) == {}

    def test_infinite_lease_stays_a_lease(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=math.inf), guess(B, FIVE, ttl=math.inf))
        assert expire(index, 1e12) == Expired(0, 0, math.inf)
        assert at(index, 1e12, remove(A, FIVE)) == [Applied(unknown=5)]
        assert at(index, 1e12, store(A, FIVE), remove(A, FIVE), Clear(B)) == [Applied(5)] * 3
        assert depths(index, FIVE) == {}

    def test_age_counts_from_when_the_guess_became_true(self, index: ContractIndex) -> None:
        at(index, 100.0, guess(A, FIVE, ttl=10, age=4))
        ends_at(index, FIVE, 106.0, {})

    def test_guess_older_than_its_ttl_ends_at_the_next_expiry(self, index: ContractIndex) -> None:
        at(index, 100.0, guess(A, FIVE, ttl=10, age=60))
        expire(index, 100.0)
        assert depths(index, FIVE) == {}

    def test_first_seen_worker_can_be_guessed_and_dropped(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE), store(B, [1]))
        assert depths(index, FIVE) == {"a": 5, "b": 1}
        assert index.drop("a") == 5
        index.check()
        assert depths(index, FIVE) == {"b": 1}

    # -- the later deadline wins ------------------------------------------------------------

    def test_refresh_extends(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10))
        assert at(index, 8.0, guess(A, FIVE, ttl=10)) == [Applied(duplicates=5)]
        ends_at(index, FIVE, 18.0, {})

    def test_shorter_lease_never_shortens(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=100), guess(A, FIVE, ttl=1), guess(A, FIVE, ttl=0))
        at(index, 50.0, guess(A, FIVE, ttl=60, age=20))
        ends_at(index, FIVE, 100.0, {})

    def test_longer_lease_extends_whatever_was_armed(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=1), guess(A, FIVE, ttl=100))
        ends_at(index, FIVE, 100.0, {})

    def test_finite_after_infinite_stays_infinite(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=math.inf), guess(A, FIVE, ttl=1))
        expire(index, 1e9)
        assert depths(index, FIVE) == {"a": 5}

    def test_infinite_after_finite(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=1), guess(A, FIVE, ttl=math.inf))
        assert expire(index, 1e9).next_deadline == math.inf
        assert depths(index, FIVE) == {"a": 5}

    def test_partial_refresh_keeps_the_refreshed_prefix(self, index: ContractIndex) -> None:
        chain = range(1, 9)
        at(index, 0.0, guess(A, chain, ttl=10))
        assert at(index, 8.0, guess(A, chain[:3], ttl=10)) == [Applied(duplicates=3)]
        ends_at(index, chain, 10.0, {"a": 3})
        ends_at(index, chain, 18.0, {})

    def test_longer_chain_refreshes_its_prefix(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10))
        assert at(index, 5.0, guess(A, [*FIVE, 6, 7], ttl=3)) == [Applied(2, 5)]
        ends_at(index, [*FIVE, 6, 7], 8.0, {"a": 5})
        ends_at(index, FIVE, 10.0, {})

    def test_branches_end_apart_and_their_prefix_with_the_later(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, [1, 2, 3], ttl=10), guess(A, [1, 2, 4], ttl=20))
        ends_at(index, [1, 2, 3], 10.0, {"a": 2})
        ends_at(index, [1, 2, 4], 20.0, {})

    def test_ranks_end_apart(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10), guess(B, FIVE, ttl=20), store(C, FIVE))
        ends_at(index, FIVE, 10.0, {"b": 5, "c": 5})
        ends_at(index, FIVE, 20.0, {"c": 5})

    # -- what revokes -----------------------------------------------------------------------

    def test_events_never_end_by_themselves(self, index: ContractIndex) -> None:
        at(index, 0.0, store(A, FIVE))
        assert at(index, 0.0, guess(A, FIVE, ttl=1)) == [Applied(duplicates=5)]
        assert expire(index, 1e9).blocks == 0
        assert depths(index, FIVE) == {"a": 5}
        assert at(index, 1e9, remove(A, FIVE)) == [Applied(applied=5)]

    def test_confirming_revokes(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10))
        assert at(index, 5.0, store(A, FIVE)) == [Applied(applied=5)]
        assert expire(index, 1e9)[1:] == (0, math.inf)
        assert depths(index, FIVE) == {"a": 5}

    def test_confirmed_prefix_outlives_its_guessed_suffix(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, [*FIVE, 6, 7], ttl=10))
        assert at(index, 1.0, store(A, FIVE)) == [Applied(applied=5)]
        ends_at(index, [*FIVE, 6, 7], 10.0, {"a": 5})

    def test_guess_under_a_confirmed_prefix(self, index: ContractIndex) -> None:
        at(index, 0.0, store(A, [1, 2]))
        assert at(index, 0.0, guess(A, FIVE, ttl=10)) == [Applied(3, 2)]
        assert at(index, 0.0, extend(A, [1, 2], [3])) == [Applied(applied=1)]
        ends_at(index, FIVE, 10.0, {"a": 3})

    def test_removal_never_reaches_a_lease(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10), store(A, [1, 2]))
        assert at(index, 0.0, remove(A, FIVE)) == [Applied(applied=2, unknown=3)]
        assert depths(index, FIVE) == {}
        assert index.statistics().blocks == 3
        at(index, 0.0, guess(A, [1, 2], ttl=20))
        assert depths(index, FIVE) == {"a": 5}
        ends_at(index, FIVE, 10.0, {"a": 2})

    def test_guess_is_no_parent(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE))
        assert at(index, 0.0, extend(A, FIVE, [6])) == [Applied(missing_parent=1)]

    def test_lease_removes_only_what_a_lease_created(self, index: ContractIndex) -> None:
        """Cleared, then confirmed under the same prefix, before the old lease came due."""
        at(index, 0.0, guess(A, FIVE, ttl=10), guess(B, FIVE, ttl=10))
        assert at(index, 5.0, Clear(A), store(A, FIVE)) == [Applied(5), Applied(5)]
        assert index.drop("b") == 5
        at(index, 5.0, store(B, FIVE))
        expire(index, 1e9)
        assert depths(index, FIVE) == {"a": 5, "b": 5}

    def test_old_timer_cannot_end_a_new_lease(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10), guess(B, FIVE, ttl=10))
        at(index, 1.0, Clear(A), guess(A, FIVE, ttl=100))
        index.drop("b")
        at(index, 1.0, guess(B, FIVE, ttl=100))
        ends_at(index, FIVE, 101.0, {})

    def test_shorter_lease_after_a_clear_counts(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=100), Clear(A), guess(A, FIVE, ttl=10))
        ends_at(index, FIVE, 10.0, {})

    def test_shorter_lease_after_confirming_and_removing_counts(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=100), store(A, FIVE), remove(A, FIVE))
        at(index, 0.0, guess(A, FIVE, ttl=10))
        ends_at(index, FIVE, 10.0, {})

    def test_clear_and_departure_leave_no_timer(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10), guess(B, FIVE, ttl=20), Clear(A))
        index.drop("b")
        while (later := index.expire(30.0)).entries:
            pass
        assert later == Expired(0, 0, math.inf)

    # -- slices -----------------------------------------------------------------------------

    @pytest.mark.parametrize("limit", [1, 2, 7])
    def test_slices_are_bounded_and_end_all(self, index: ContractIndex, limit: int) -> None:
        ranks = [Rank("w", dp) for dp in range(5)]
        at(index, 0.0, *[guess(rank, [1, 2, 10 + k], ttl=10) for k, rank in enumerate(ranks)])
        assert expire(index, 11.0, limit).blocks == 15
        assert index.statistics().blocks == 0

    def test_refresh_between_slices_saves_the_block(self, index: ContractIndex) -> None:
        """An expiry that is due but not yet applied must not end what was refreshed meanwhile."""
        chains = [[k, k + 100] for k in range(20)]
        at(index, 0.0, *[guess(A, chain, ttl=10) for chain in chains])
        assert index.expire(11.0, limit=3).next_deadline <= 11.0
        at(index, 11.0, *[guess(A, chain, ttl=10) for chain in chains])
        expire(index, 12.0)
        assert all(depths(index, chain) == {"a": 2} for chain in chains)
        expire(index, 21.0 + TICK)
        assert index.statistics().blocks == 0

    def test_only_the_ranks_asked_for_are_touched(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10), guess(B, FIVE, ttl=20), guess(C, FIVE, ttl=10))
        done = expire(index, 15.0, ranks=[A, B])
        assert done.blocks == 5
        assert 20.0 <= done.next_deadline <= 20.0 + TICK
        assert depths(index, FIVE) == {"b": 5, "c": 5}
        assert index.expire(15.0, ranks={A}).next_deadline == math.inf
        assert expire(index, 15.0, ranks={C}).blocks == 5

    def test_strangers_have_nothing_to_expire(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10))
        assert index.expire(1e9, ranks=[]) == Expired(0, 0, math.inf)
        assert index.expire(1e9, ranks=[B, Rank("nobody", 7)]) == Expired(0, 0, math.inf)
        assert depths(index, FIVE) == {"a": 5}

    @pytest.mark.parametrize("limit", [0, -1])
    def test_empty_slice_is_refused(self, index: ContractIndex, limit: int) -> None:
        with pytest.raises(ValueError, match=str(limit)):
            index.expire(0.0, limit)

    def test_endless_refreshes_leave_one_entry_a_block(self, index: ContractIndex) -> None:
        """What an expiry has to look at follows live blocks, not refreshes."""
        for k in range(2_000):
            index.apply(guess(A, FIVE, ttl=10), float(k) / 100)
        assert expire(index, 20.0).entries <= 2 * len(FIVE)
        assert expire(index, 100.0).entries <= 2 * len(FIVE)
        assert index.statistics().blocks == 0

    def test_lease_churn_leaves_no_timers(self, index: ContractIndex) -> None:
        """Granted and revoked over and over, at later and later deadlines."""
        for k in range(500):
            index.apply(guess(A, FIVE, ttl=10 + k), float(k))
            index.apply(Clear(A), float(k))
        assert expire(index, 1e9).entries <= 2 * 500 * len(FIVE)
        assert index.expire(1e9) == Expired(0, 0, math.inf)

    # -- values ------------------------------------------------------------------------------

    def test_guess_without_blocks_is_nothing(self, index: ContractIndex) -> None:
        assert at(index, 0.0, guess(A, [])) == [Applied()]
        assert index.expire(1e9) == Expired(0, 0, math.inf)

    def test_overlap_taken_before_an_expiry_stands(self, index: ContractIndex) -> None:
        at(index, 0.0, guess(A, FIVE, ttl=10))
        taken = index.overlap(prompt(*FIVE))
        expire(index, 20.0)
        assert (taken.scores(), depths(index, FIVE)) == ({A: 5}, {})

    def test_digest_leaves_guesses_out(self, index: ContractIndex) -> None:
        at(index, 0.0, store(A, [1, 2]))
        before = index.digest()
        at(index, 0.0, guess(A, FIVE), guess(B, FIVE))
        assert index.digest() == before
