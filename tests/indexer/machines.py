"""State machines: any backend beside the oracle, one step at a time, every invariant after each.

Times are whole seconds and so are the ticks of the backends, so both must agree exactly.
`machine_for` also serves backends of your own; see `tests/indexer/contract.py`.
"""

import math
from collections.abc import Callable, Collection
from typing import Any, ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlanes.indexer import (
    CapacityModel,
    Clear,
    Lease,
    Mutation,
    Prompt,
    Rank,
    Remove,
    Store,
)
from tests.indexer.chains import BLOCK_SIZE, A, B, guess, names, packed, prompt
from tests.indexer.contract import ContractIndex
from tests.indexer.oracle import Oracle

MakeMachineIndex: TypeAlias = Callable[[], ContractIndex]

TICK_SECONDS = 1.0
POOLED = Rank("pooled")  # written by its capacity model only
RANKS = [A, Rank("a", 1), B]
ENGINES = [0, 0xABCDEF0123456789]

ranks = st.sampled_from(RANKS)
blocks = st.integers(1, 3)
chains = st.lists(blocks, min_size=1, max_size=6)
engines = st.sampled_from(ENGINES)
small_names = st.lists(st.integers(1, 9), min_size=6, max_size=6, unique=True)
picks = st.integers(0, 40)
ttls = st.sampled_from([0.0, 1.0, 2.0, 5.0, 30.0, math.inf])
ages = st.sampled_from([0.0, 1.0, 7.0])
limits = st.integers(1, 5)
scopes = st.none() | st.sets(st.sampled_from([*RANKS, POOLED]))


class CoverageMachine(RuleBasedStateMachine):
    """Confirmed coverage: stores, aliases, holes, clears, departures."""

    make: ClassVar[MakeMachineIndex]
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.index = type(self).make()
        self.oracle = Oracle(BLOCK_SIZE)
        self.now = 0.0
        self.asked: list[bytes] = []

    def apply(self, mutation: Mutation) -> None:
        expected = self.oracle.apply(mutation, self.now)
        assert self.index.apply(mutation, self.now) == expected, mutation

    def named(self, rank: Rank, pick: int) -> tuple[bytes, int]:
        """A block that the rank holds under a name, or one that it does not."""
        held = self.oracle.ranks.get(rank)
        rows = sorted(held.named.items()) if held is not None else []
        rows.append((b"", 1 + pick % 9))
        return rows[pick % len(rows)]

    @rule(rank=ranks, chain=chains, engine=engines)
    def store_chain(self, rank: Rank, chain: list[int], engine: int) -> None:
        self.apply(Store(rank, None, packed(chain), names(chain, engine)))

    @rule(rank=ranks, chain=chains, named=small_names)
    def store_under_any_names(self, rank: Rank, chain: list[int], named: list[int]) -> None:
        """Names that come again elsewhere, move, and swap."""
        self.apply(Store(rank, None, packed(chain), named[: len(chain)]))

    @rule(rank=ranks, pick=picks, tail=chains, engine=engines)
    def extend_chain(self, rank: Rank, pick: int, tail: list[int], engine: int) -> None:
        path, parent = self.named(rank, pick)
        whole = [int.from_bytes(path[k : k + 8], "big") for k in range(0, len(path), 8)] + tail
        named = names(whole, engine)[-len(tail) :]
        if parent not in named:
            self.apply(Store(rank, parent, packed(tail), named))

    @rule(rank=ranks, pick=picks, tail=chains, named=small_names)
    def extend_under_any_names(
        self, rank: Rank, pick: int, tail: list[int], named: list[int]
    ) -> None:
        _, parent = self.named(rank, pick)
        if parent not in named[: len(tail)]:
            self.apply(Store(rank, parent, packed(tail), named[: len(tail)]))

    @rule(rank=ranks, first=picks, more=st.lists(picks, max_size=5))
    def remove_blocks(self, rank: Rank, first: int, more: list[int]) -> None:
        self.apply(Remove(rank, [self.named(rank, pick)[1] for pick in [first, *more]]))

    @rule(rank=ranks, pick=picks)
    def evict_a_chain_from_its_end(self, rank: Rank, pick: int) -> None:
        path, _ = self.named(rank, pick)
        held = self.oracle.ranks.get(rank)
        if held is not None:
            above = [path[:end] for end in range(len(path), 0, -8)]
            self.apply(Remove(rank, [held.named[p] for p in above if p in held.named]))

    @rule(rank=ranks)
    def clear(self, rank: Rank) -> None:
        self.apply(Clear(rank))

    @rule(worker=st.sampled_from("ab"), dp_rank=st.sampled_from([None, 0, 1]))
    def drop(self, worker: str, dp_rank: int | None) -> None:
        assert self.index.drop(worker, dp_rank) == self.oracle.drop(worker, dp_rank)

    @rule(chain=chains)
    def look_up(self, chain: list[int]) -> None:
        self.asked = [*self.asked[-4:], packed(chain)]

    def queries(self) -> Collection[bytes]:
        held = {p for h in self.oracle.ranks.values() for p in [*h.named, *h.leased]}
        inner = {path[:-8] for path in held}
        return [*sorted(held - inner), *self.asked, b""]

    @invariant()
    def agrees_with_the_oracle(self) -> None:
        type(self).steps += 1
        self.index.check()
        self.oracle.check()
        assert self.index.digest() == self.oracle.digest()
        assert self.index.statistics().blocks == self.oracle.statistics().blocks
        for path in self.queries():
            query = Prompt.from_blocks(path, BLOCK_SIZE)
            expected, found = self.oracle.overlap(query), self.index.overlap(query)
            assert found.scores() == expected.scores(), query.blocks.hex()
            assert found.best([A, B]) == expected.best([A, B])
            assert found.of(A) == expected.of(A)


class LeaseMachine(CoverageMachine):
    """And leases of mixed length, slices of expiry, and a pool that takes leases over."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = CapacityModel(POOLED, 4)
        self.running: list[int] = []
        self.attempts = 0

    @rule(rank=ranks, chain=chains, ttl=ttls, age=ages)
    def guess(self, rank: Rank, chain: list[int], ttl: float, age: float) -> None:
        self.apply(guess(rank, chain, ttl, age))

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(limit=limits, scope=scopes)
    def expire(self, limit: int, scope: set[Rank] | None) -> None:
        expected = self.oracle.expire(self.now, 10_000, scope)
        ended, next_deadline = self.drain(limit, scope)
        assert ended == expected.blocks
        assert self.now < next_deadline <= expected.next_deadline

    def drain(self, limit: int, scope: set[Rank] | None) -> tuple[int, float]:
        ended = 0
        while True:
            done = self.index.expire(self.now, limit, scope)
            self.index.check()
            assert done.entries <= limit
            ended += done.blocks
            if done.next_deadline > self.now:
                return ended, done.next_deadline
            assert done.entries == limit

    @rule(limit=limits, rank=ranks, chains=st.lists(chains, min_size=1, max_size=3), ttl=ttls)
    def refresh_between_slices(
        self, limit: int, rank: Rank, chains: list[list[int]], ttl: float
    ) -> None:
        """Which due entries a slice took is free, so only what is left at the end must agree."""
        self.index.expire(self.now, limit)
        for chain in chains:
            mutation = guess(rank, chain, ttl)
            counts = [x.apply(mutation, self.now) for x in (self.index, self.oracle)]
            assert [sum(count) for count in counts] == [len(chain)] * 2
        self.oracle.expire(self.now, 10_000)
        self.drain(limit, None)

    @rule()
    def restart_from_a_dump(self) -> None:
        old: Any = self.index
        if hasattr(old, "dump"):
            restored: Any = type(self).make()
            restored.restore(old.dump(self.now), self.now)
            self.index = restored

    @invariant()
    def leases_agree(self) -> None:
        counts = self.index.statistics()
        expected = self.oracle.statistics().leased_blocks
        assert getattr(counts, "leased_blocks", expected) == expected

    # -- a rank whose engine publishes nothing ----------------------------------------------

    def pooled(self, mutations: list[Mutation]) -> None:
        self.pool.check()
        for mutation in mutations:
            if isinstance(mutation, Store) and mutation.lease is not None:
                mutation = mutation._replace(lease=Lease(3.0))
            self.apply(mutation)

    @rule(chain=chains, private=st.integers(0, 2))
    def acquire(self, chain: list[int], private: int) -> None:
        self.attempts += 1
        self.running.append(self.attempts)
        self.pooled(self.pool.acquire(self.attempts, prompt(*chain), private_blocks=private))

    @precondition(lambda self: self.running)
    @rule(pick=picks, tail=chains)
    def grow(self, pick: int, tail: list[int]) -> None:
        self.pooled(self.pool.grow(self.running[pick % len(self.running)], packed(tail)))

    @precondition(lambda self: self.running)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        self.pooled(self.pool.release(self.running.pop(pick % len(self.running))))

    @rule(capacity=st.sampled_from([None, 1, 4, 8]))
    def resize(self, capacity: int | None) -> None:
        self.pooled(self.pool.set_capacity(capacity))

    @invariant()
    def pool_and_coverage_agree(self) -> None:
        held = self.oracle.ranks.get(POOLED)
        counts = self.pool.statistics()
        confirmed = 0 if held is None else len(held.named)
        assert confirmed <= counts.resident
        assert (confirmed == 0) == (counts.resident == 0)


def machine_for(base: type[CoverageMachine], make: MakeMachineIndex) -> type[CoverageMachine]:
    """The machine for one backend, with a count of its own."""
    return type(base.__name__, (base,), {"make": staticmethod(make), "steps": 0})
