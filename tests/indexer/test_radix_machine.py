"""Random histories of a `RadixIndex` beside the naive model, with everything that may go wrong.

Few blocks, few names and few ranks, so that names clash, move and swap, holes open and close, and
slots change hands. Time moves in whole ticks, so that both sides end leases at the same moment.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvlanes.indexer import (
    Clear,
    Lease,
    MutationInvalid,
    RadixIndex,
    Rank,
    Remove,
    Store,
    sequence_hashes,
)
from tests.indexer.chains import packed, prompt
from tests.indexer.oracle import Oracle
from tests.support.profiles import budget

ranks = st.builds(Rank, st.sampled_from(["a", "b", "c"]), st.integers(0, 1))
chains = st.lists(st.integers(1, 3), min_size=1, max_size=7)
wild = st.lists(st.integers(1, 9), min_size=7, max_size=7, unique=True)
engines = st.sampled_from([0, 0, 1, 2])


class RadixMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = RadixIndex(16, tick_seconds=1.0)
        self.oracle = Oracle(16)
        self.now = 0.0
        self.seen: list[list[int]] = [[1]]

    def both(self, mutation: Store | Remove | Clear) -> None:
        try:
            expected = self.oracle.apply(mutation, self.now)
        except MutationInvalid:
            digest = self.index.digest()
            try:
                self.index.apply(mutation, self.now)
            except MutationInvalid:
                assert self.index.digest() == digest
                return
            raise AssertionError(f"not refused: {mutation}") from None
        assert self.index.apply(mutation, self.now) == expected

    @rule(rank=ranks, chain=chains, cut=st.integers(0, 6), engine=engines)
    def confirm(self, rank: Rank, chain: list[int], cut: int, engine: int) -> None:
        """As an engine does: names follow from the whole prefix."""
        named = [name ^ engine for name in sequence_hashes(packed(chain))]
        cut = min(cut, len(chain) - 1)
        parent = named[cut - 1] if cut else None
        self.seen.append(chain)
        self.both(Store(rank, parent, packed(chain[cut:]), named[cut:]))

    @rule(rank=ranks, chain=chains, named=wild, parent=st.sampled_from([None, None, 1, 2, 3]))
    def confirm_under_any_names(
        self, rank: Rank, chain: list[int], named: list[int], parent: int | None
    ) -> None:
        """As a broken engine does: names are used again for other places."""
        self.seen.append(chain)
        self.both(Store(rank, parent, packed(chain), named[: len(chain)]))

    @rule(
        rank=ranks,
        chain=chains,
        ttl=st.sampled_from([0.0, 1.0, 2.0, 2.0, 5.0, float("inf")]),
        age=st.sampled_from([0.0, 0.0, 1.0, 3.0]),
    )
    def guess(self, rank: Rank, chain: list[int], ttl: float, age: float) -> None:
        self.seen.append(chain)
        self.both(Store(rank, None, packed(chain), (), Lease(ttl, age)))

    @rule(rank=ranks, chain=chains, engine=engines, data=st.data())
    def remove(self, rank: Rank, chain: list[int], engine: int, data: st.DataObject) -> None:
        """Runs up, runs down, and single blocks in any order."""
        named = [name ^ engine for name in sequence_hashes(packed(chain))]
        picked = data.draw(st.sampled_from([named, named[::-1], named[1:3], named[-2:]]))
        self.both(Remove(rank, data.draw(st.permutations(picked)) if engine else picked))

    @rule(rank=ranks, named=wild)
    def remove_any_names(self, rank: Rank, named: list[int]) -> None:
        self.both(Remove(rank, named))

    @rule(rank=ranks)
    def clear(self, rank: Rank) -> None:
        self.both(Clear(rank))

    @rule(worker=st.sampled_from("abc"), dp_rank=st.sampled_from([None, 0, 1]))
    def drop(self, worker: str, dp_rank: int | None) -> None:
        assert self.index.drop(worker, dp_rank) == self.oracle.drop(worker, dp_rank)

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.0]), asked=st.none() | st.sets(ranks, max_size=3))
    def expire(self, seconds: float, asked: set[Rank] | None) -> None:
        self.now += seconds
        expected = self.oracle.expire(self.now, 10_000, asked)
        blocks = 0
        while True:
            slice_ = self.index.expire(self.now, 2, asked)
            self.index.check()
            assert slice_.entries <= 2
            blocks += slice_.blocks
            if slice_.next_deadline > self.now:
                break
        assert blocks == expected.blocks
        # Entries may be armed for an earlier moment than the lease they belong to, never later.
        assert slice_.next_deadline <= expected.next_deadline
        assert (slice_.next_deadline == float("inf")) == (expected.next_deadline == float("inf"))

    @rule()
    def restore(self) -> None:
        """Go on with a copy that came through a dump."""
        twin = RadixIndex(16, tick_seconds=1.0)
        twin.restore(self.index.dump(self.now), self.now)
        self.index = twin

    @invariant()
    def agree(self) -> None:
        self.index.check()
        assert self.index.digest() == self.oracle.digest()
        ours, theirs = self.index.statistics(), self.oracle.statistics()
        assert (ours.ranks, ours.blocks) == (theirs.ranks, theirs.blocks)
        assert ours.leased_blocks == theirs.leased_blocks
        for chain in self.seen[-4:]:
            question = prompt(*chain, 1)
            assert self.index.overlap(question).scores() == self.oracle.overlap(question).scores()


def test_random_histories_agree_with_the_naive_model() -> None:
    run_state_machine_as_test(
        RadixMachine,
        settings=settings(max_examples=budget(ci=80, deep=4_000), stateful_step_count=40),
    )


class BudgetMachine(RuleBasedStateMachine):
    """No model says which blocks are given up; the bound and every invariant must hold."""

    BUDGET = 6

    def __init__(self) -> None:
        super().__init__()
        self.index = RadixIndex(16, budget_blocks=self.BUDGET, tick_seconds=1.0)
        self.twin = RadixIndex(16, budget_blocks=self.BUDGET, tick_seconds=1.0)
        self.now = 0.0

    def both(self, mutation: Store | Remove | Clear) -> None:
        assert self.index.apply(mutation, self.now) == self.twin.apply(mutation, self.now)

    @rule(rank=ranks, chain=chains, cut=st.integers(0, 6), engine=engines)
    def confirm(self, rank: Rank, chain: list[int], cut: int, engine: int) -> None:
        named = [name ^ engine for name in sequence_hashes(packed(chain))]
        cut = min(cut, len(chain) - 1)
        parent = named[cut - 1] if cut else None
        self.both(Store(rank, parent, packed(chain[cut:]), named[cut:]))

    @rule(rank=ranks, chain=chains, ttl=st.sampled_from([1.0, 2.0, 5.0]))
    def guess(self, rank: Rank, chain: list[int], ttl: float) -> None:
        self.both(Store(rank, None, packed(chain), (), Lease(ttl)))
        # A store of its own path is the last to be given up.
        expected = min(len(chain), self.BUDGET)
        assert self.index.overlap(prompt(*chain)).of(rank) == expected

    @rule(rank=ranks, chain=chains, first=st.integers(0, 6))
    def remove(self, rank: Rank, chain: list[int], first: int) -> None:
        self.both(Remove(rank, sequence_hashes(packed(chain))[first:]))

    @rule(worker=st.sampled_from("abc"))
    def drop(self, worker: str) -> None:
        assert self.index.drop(worker) == self.twin.drop(worker)

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.0]))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        assert self.index.expire(self.now) == self.twin.expire(self.now)

    @rule()
    def restore(self) -> None:
        copy = RadixIndex(16, budget_blocks=self.BUDGET, tick_seconds=1.0)
        copy.restore(self.index.dump(self.now), self.now)
        copy.check()
        assert copy.digest() == self.index.digest()

    @invariant()
    def agree(self) -> None:
        self.index.check()
        assert self.index.statistics().entries <= self.BUDGET
        assert self.index.statistics() == self.twin.statistics()
        assert self.index.dump(self.now) == self.twin.dump(self.now), "victims depend on luck"


def test_budget_holds_in_random_histories() -> None:
    run_state_machine_as_test(
        BudgetMachine,
        settings=settings(max_examples=budget(ci=80, deep=2_000), stateful_step_count=40),
    )
