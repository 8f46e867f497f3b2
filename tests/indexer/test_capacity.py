"""The modelled block pool: who is evicted when, and how it hands over to leases and back."""

import random
from collections.abc import Callable, Sequence

import pytest

from kvlanes.indexer import (
    AttemptInUse,
    CapacityModel,
    Clear,
    Lease,
    LeaseTable,
    Mutation,
    PackedLengthInvalid,
    PositionalIndex,
    Remove,
    Store,
)
from tests.indexer.chains import A, guess, names, packed, prompt, store
from tests.indexer.naive_pool import NaivePool


class Pool:
    """A model whose mutations go to an index, as a lane would apply them under its TTL."""

    def __init__(self, capacity: int | None, ttl: float = 10.0) -> None:
        self.model = CapacityModel(A, capacity)
        self.lease = Lease(ttl)
        self.index = LeaseTable(PositionalIndex(16))
        self.labels: dict[int, int] = {}
        self.now = 0.0

    def apply(self, mutations: list[Mutation]) -> list[int]:
        """Apply; answer the last block hashes of what was removed, in order."""
        self.model.check()
        kinds = [type(mutation) for mutation in mutations]
        assert kinds in ([], [Store], [Remove], [Store, Remove], [Clear]), kinds
        for mutation in mutations:
            if isinstance(mutation, Store) and mutation.lease == Lease():
                mutation = mutation._replace(lease=self.lease)
            done = self.index.apply(mutation, self.now)
            assert done.missing_parent == done.unknown == 0, (mutation, done)
        self.index.check()
        removed = [m for m in mutations if isinstance(m, Remove)]
        return [self.labels[name] for m in removed for name in m.sequence_hashes]

    def acquire(self, attempt: str, *chain: int, private: int = 0) -> list[int]:
        self.labels.update(zip(names(chain), chain))
        return self.apply(self.model.acquire(attempt, prompt(*chain), private_blocks=private))

    def grow(self, attempt: str, path: Sequence[int], *tail: int, private: int = 0) -> list[int]:
        self.labels.update(zip(names([*path, *tail]), [*path, *tail]))
        return self.apply(self.model.grow(attempt, packed(tail), private_blocks=private))

    def release(self, attempt: str) -> list[int]:
        return self.apply(self.model.release(attempt))

    def occupancy(self) -> int:
        counts = self.model.statistics()
        return counts.resident + counts.private

    def depth(self, *chain: int) -> int:
        return self.index.overlap(prompt(*chain)).of(A)


def test_life_of_an_engine_s_pool() -> None:
    """Ten blocks, three requests; the third shares one block and needs all the rest."""
    pool, occupancies, evicted = Pool(10), list[int](), list[int]()
    steps: list[Callable[[], list[int]]] = [
        lambda: pool.acquire("first", 10, 11, 12, private=1),
        lambda: pool.grow("first", [10, 11, 12], 13, private=1),
        lambda: pool.acquire("second", 10, 11, 20, private=1),
        lambda: pool.release("first"),
        lambda: pool.release("second"),
        lambda: pool.acquire("third", 10, *range(30, 38), private=1),
    ]
    for step in steps:
        evicted += step()
        occupancies.append(pool.occupancy())
    assert occupancies == [4, 5, 7, 6, 5, 10]
    assert evicted == [13, 12, 20, 11]
    assert pool.depth(10, 11, 12, 13) == 1
    assert pool.depth(10, *range(30, 38)) == 9


def test_within_one_release_the_suffix_goes_first() -> None:
    pool = Pool(4)
    pool.acquire("x", 1, 2, 3, 4)
    pool.release("x")
    assert pool.acquire("y", 9) == [4]
    assert pool.acquire("z", 8) == [3]
    assert pool.depth(1, 2, 3, 4) == 2


def test_streamed_output_joins_the_release_order() -> None:
    pool = Pool(4)
    pool.acquire("x", 1, 2)
    pool.grow("x", [1, 2], 3)
    pool.grow("x", [1, 2, 3], 4)
    pool.release("x")
    assert pool.acquire("y", 7, 8, 9) == [4, 3, 2]


def test_shared_copy_goes_by_its_last_release() -> None:
    pool = Pool(3)
    pool.acquire("x", 1, 2)
    pool.acquire("y", 1)
    pool.release("x")
    pool.acquire("z", 5)
    pool.release("z")
    pool.release("y")
    assert pool.acquire("w", 7, 8) == [2, 5]
    assert pool.depth(1) == 1


def test_resident_prefix_is_referenced_not_copied() -> None:
    pool = Pool(10)
    pool.acquire("x", 1, 2, 3)
    pool.release("x")
    pool.acquire("y", 1, 2, 9)
    counts = pool.model.statistics()
    assert (counts.resident, counts.active, counts.inactive) == (4, 3, 1)


def test_a_used_prefix_moves_to_the_back() -> None:
    """Capacity 4: a, b, c, d in turn, then a again; e evicts b. Looking moves nothing."""
    pool = Pool(4)
    for name, block in zip("abcda", (1, 2, 3, 4, 1)):
        pool.acquire(name, block)
        pool.release(name)
    for block in (1, 2, 3, 4, 2, 2, 2):
        assert pool.depth(block) == 1
    assert pool.acquire("e", 5) == [2]
    assert [pool.depth(block) for block in (1, 2, 3, 4, 5)] == [1, 0, 1, 1, 1]


def test_duplicate_copy_is_removed_with_the_last_only() -> None:
    pool = Pool(6)
    pool.acquire("x", 1)
    pool.grow("x", [1], 2)
    pool.acquire("y", 1)
    pool.grow("y", [1], 2)  # output is always computed: a second copy of block 2
    assert pool.model.statistics().resident == 3
    pool.release("x")
    pool.release("y")
    assert pool.acquire("z", 5, 6, 7, 8) == []  # one copy of block 2 went, coverage stays
    assert pool.depth(1, 2) == 2
    assert pool.acquire("w", 9) == [2]
    assert pool.depth(1, 2) == 1


def test_more_than_the_pool_is_reported_and_settled_at_release() -> None:
    pool = Pool(3)
    pool.acquire("x", 1, 2)
    pool.acquire("y", 3, 4, private=2)
    assert pool.model.statistics().over == 3
    assert pool.depth(1, 2) == 2
    assert pool.release("x") == [2, 1]
    assert pool.model.statistics().over == 1
    assert pool.release("y") == []
    assert pool.occupancy() == 2


def test_private_blocks_take_room_and_give_it_back() -> None:
    pool = Pool(4)
    pool.acquire("x", 1, 2)
    pool.release("x")
    pool.acquire("y", private=2)
    assert pool.grow("y", [], private=3) == [2]
    assert pool.grow("y", [], private=1) == []
    assert pool.model.statistics().private == 1
    pool.release("y")
    assert pool.occupancy() == 1


def test_output_of_a_prompt_without_a_full_block_starts_at_the_root() -> None:
    pool = Pool(4)
    pool.acquire("x", private=1)
    pool.grow("x", [], 1, 2, private=1)
    assert pool.depth(1, 2) == 2


def test_smaller_pool_evicts_at_once() -> None:
    pool = Pool(4)
    pool.acquire("x", 1, 2, 3, 4)
    pool.release("x")
    assert pool.apply(pool.model.set_capacity(2)) == [4, 3]
    assert pool.apply(pool.model.set_capacity(9)) == []
    assert pool.model.statistics().capacity == 9


def test_release_of_strangers_is_nothing() -> None:
    pool = Pool(2)
    pool.acquire("x", 1)
    assert pool.release("nobody") == pool.grow("nobody", [], 5) == []
    assert pool.release("x") == pool.release("x") == []
    assert pool.model.statistics().attempts == 0


def test_attempt_in_use_is_refused() -> None:
    pool = Pool(8)
    pool.acquire("x", 1, 2)
    with pytest.raises(AttemptInUse, match="'x' already holds 2 blocks"):
        pool.acquire("x", 3)
    pool.release("x")
    pool.acquire("x", 3)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="got 0"):
        CapacityModel(A, 0)
    model = CapacityModel(A, 1)
    with pytest.raises(ValueError, match="got -3"):
        model.set_capacity(-3)
    with pytest.raises(ValueError, match="got -1"):
        model.acquire("x", prompt(1), private_blocks=-1)
    model.acquire("x", prompt(1))
    with pytest.raises(ValueError, match="got -2"):
        model.grow("x", private_blocks=-2)
    with pytest.raises(PackedLengthInvalid, match="7"):
        model.grow("x", b"1234567")
    assert model.statistics().private == 0


# -- hand-over ---------------------------------------------------------------


def test_unknown_capacity_leases() -> None:
    pool = Pool(None)
    pool.acquire("x", 1, 2)
    assert pool.release("x") == pool.grow("x", [1, 2], 3) == []
    assert pool.depth(1, 2) == 2
    pool.now = 8.0
    pool.acquire("y", 1)
    assert pool.index.expire(11.0).blocks == 1
    assert pool.index.expire(19.0).blocks == 1


def test_capacity_that_becomes_known_takes_leases_over() -> None:
    pool = Pool(None)
    pool.acquire("x", 1, 2, 3)
    assert pool.apply(pool.model.set_capacity(2)) == []
    pool.acquire("y", 1, 2)
    assert pool.release("x") == []  # it began under leases; the model does not know it
    assert pool.index.expire(11.0).blocks == 1  # block 3 alone was still a guess
    assert pool.depth(1, 2, 3) == 2
    pool.release("y")
    assert pool.acquire("z", 9) == [2]
    assert pool.index.expire(1e9).blocks == 0


def test_capacity_that_becomes_unknown_hands_over_to_leases() -> None:
    pool = Pool(4)
    pool.acquire("x", 1, 2)
    pool.apply(pool.model.set_capacity(None))
    assert pool.depth(1, 2) == 0
    assert pool.release("x") == []
    pool.acquire("x", 1, 2)
    assert pool.index.expire(11.0).blocks == 2
    assert pool.model.statistics().fallbacks == 1


def test_queued_expiry_cannot_end_what_the_pool_holds() -> None:
    pool = Pool(4)
    pool.apply([guess(A, [1, 2, 3], ttl=5.0)])
    pool.now = 6.0  # due, not yet applied
    pool.acquire("x", 1, 2)
    pool.index.expire(pool.now)
    assert pool.depth(1, 2, 3) == 2


def test_confirmed_stores_of_others_are_duplicates() -> None:
    pool = Pool(4)
    pool.index.apply(store(A, [1, 2]), 0.0)
    pool.acquire("x", 1, 2, 3)
    assert pool.depth(1, 2, 3) == 3


@pytest.mark.parametrize("seed", range(40))
def test_pool_equals_a_naive_pool(seed: int) -> None:
    """Random requests; the index agrees with what the naive pool holds after every step."""
    rng = random.Random(seed)
    capacity = rng.randint(1, 12)
    pool, naive = Pool(capacity), NaivePool(capacity)
    for step in range(60):
        attempt, private = rng.choice("pqrs"), rng.randint(0, 2)
        if attempt not in naive.held:
            chain = rng.choices([1, 2], k=rng.randint(0, 5))
            pool.acquire(attempt, *chain, private=private)
            naive.acquire(attempt, chain, private)
        elif rng.random() < 0.5:
            pool.grow(attempt, naive.path(attempt), 1, private=1)
            naive.grow(attempt, 1)
        else:
            pool.release(attempt)
            naive.release(attempt, step)
        assert pool.occupancy() == naive.occupancy()
        covered = {copy.path for copy in naive.copies}
        assert pool.index.statistics().blocks == len(covered)
        assert all(pool.depth(*path) == len(path) for path in covered)
