"""The hard budget of `RadixIndex`, beside an oracle that has none.

Until something was given up both agree exactly. From then on the index may only hold less: never
a block that the oracle does not hold, never more entries than the budget, and, as long as engines
evict from the end of a chain, never a block behind a hole.
"""

import itertools
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvlanes.indexer import Clear, Mutation, Prompt, RadixIndex, Rank, Remove
from tests.indexer.chains import BLOCK_SIZE, A, B, C, extend, guess, prompt, store
from tests.indexer.machines import TICK_SECONDS, chains, limits, picks
from tests.indexer.oracle import Oracle
from tests.support.profiles import budget

BUDGET_BLOCKS = 7
confirming = st.sampled_from([A, B])  # C only ever has leases


class BudgetMachine(RuleBasedStateMachine):
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.index = RadixIndex(16, budget_blocks=BUDGET_BLOCKS, tick_seconds=TICK_SECONDS)
        self.oracle = Oracle(BLOCK_SIZE)
        self.now = 0.0
        self.seen: set[bytes] = set()

    def apply(self, mutation: Mutation) -> None:
        before = self.index.statistics().evicted
        found, expected = [x.apply(mutation, self.now) for x in (self.index, self.oracle)]
        assert sum(found) == sum(expected) or isinstance(mutation, Clear)
        if not self.index.statistics().evicted:
            assert found == expected
        assert before <= self.index.statistics().evicted
        self.seen |= {p for h in self.oracle.ranks.values() for p in [*h.named, *h.leased]}

    @rule(rank=confirming, chain=chains)
    def store(self, rank: Rank, chain: list[int]) -> None:
        self.apply(store(rank, chain))

    @rule(rank=confirming, chain=chains, tail=chains)
    def extend(self, rank: Rank, chain: list[int], tail: list[int]) -> None:
        self.apply(extend(rank, chain, tail))

    @rule(chain=chains, ttl=st.sampled_from([1.0, 3.0, 30.0]))
    def guess(self, chain: list[int], ttl: float) -> None:
        self.apply(guess(C, chain, ttl))

    @rule(rank=confirming, pick=picks, count=st.integers(1, 3))
    def evict_from_the_end(self, rank: Rank, pick: int, count: int) -> None:
        held = self.oracle.ranks.get(rank)
        if held is not None and held.named:
            leaves = [p for p in held.named if not any(q[:-8] == p for q in held.named)]
            path = sorted(leaves)[pick % len(leaves)]
            ends = [path[:end] for end in range(len(path), 0, -8)][:count]
            behind = {q[:-8] for q in held.named if q not in ends}
            alone = itertools.takewhile(lambda end: end not in behind, ends)
            self.apply(Remove(rank, [held.named[end] for end in alone]))

    @rule(rank=st.sampled_from([A, B, C]))
    def clear(self, rank: Rank) -> None:
        self.apply(Clear(rank))

    @rule(worker=st.sampled_from("abc"))
    def drop(self, worker: str) -> None:
        assert self.index.drop(worker) <= self.oracle.drop(worker)

    @rule(seconds=st.integers(1, 4), limit=limits)
    def expire(self, seconds: int, limit: int) -> None:
        self.now += seconds
        self.oracle.expire(self.now, 10_000)
        while self.index.expire(self.now, limit).next_deadline <= self.now:
            pass

    @invariant()
    def stays_within_the_budget_and_below_the_oracle(self) -> None:
        type(self).steps += 1
        self.index.check()
        counts = self.index.statistics()
        assert counts.entries <= BUDGET_BLOCKS
        reached: set[tuple[Rank, bytes]] = set()
        for path in self.seen:
            query = Prompt.from_blocks(path, BLOCK_SIZE)
            limit = self.oracle.overlap(query)
            for rank, depth in self.index.overlap(query).scores().items():
                assert depth <= limit.of(rank)
                reached |= {(rank, path[: 8 * k]) for k in range(1, depth + 1)}
        assert len(reached) == counts.blocks, "something is held behind a hole"
        if not counts.evicted:
            assert self.index.digest() == self.oracle.digest()
            assert counts.blocks == self.oracle.statistics().blocks


def test_budget_beside_an_oracle_without_one() -> None:
    examples = budget(ci=40, deep=1_000)
    run_state_machine_as_test(
        BudgetMachine, settings=settings(max_examples=examples, stateful_step_count=50)
    )
    print(f"budget: {BudgetMachine.steps} steps")
    assert BudgetMachine.steps >= budget(ci=examples, deep=20_000)


def test_silent_publisher_makes_room_for_a_live_one() -> None:
    """1,000 blocks of a rank that fell silent, 1,000 of one that lives, room for 1,500."""
    index = RadixIndex(16, budget_blocks=1_500)
    silent = [range(1000 * k, 1000 * k + 100) for k in range(1, 11)]
    live = [range(1000 * k, 1000 * k + 100) for k in range(21, 31)]
    for chain in silent:
        index.apply(store(A, chain), 0.0)
    for chain in live:
        assert index.apply(store(B, chain), 0.0).applied == 100
        index.check()
    assert index.statistics().entries == index.statistics().blocks == 1_500
    depths = [index.overlap(prompt(*chain)).of(A) for chain in silent]
    assert sum(depths) == 500  # what is left of the silent one is heads, no holes
    assert depths == sorted(depths), "the oldest chains went first"
    assert all(index.overlap(prompt(*chain)).of(B) == 100 for chain in live)
    # Dropping by age is somebody's decision, and takes this rank's coverage only.
    assert index.drop("a") == 500
    assert index.statistics().entries == index.statistics().blocks == 1_000
