"""Leases beside a backend that has none: timers, names, and what the backend gets to see."""

import math
from collections.abc import Callable, Sequence

import pytest

from kvlanes.indexer import (
    Applied,
    Clear,
    Expired,
    LeaseTable,
    Mutation,
    PositionalIndex,
    Remove,
    Store,
    sequence_hashes,
)
from tests.indexer.chains import A, B, extend, guess, names, packed, prompt, remove, store

FIVE = [1, 2, 3, 4, 5]


class Watched(PositionalIndex):
    """Records what reaches the wrapped backend."""

    def __init__(self) -> None:
        super().__init__(16)
        self.seen: list[Mutation] = []

    def apply(self, mutation: Mutation, now: float = 0.0) -> Applied:
        self.seen.append(mutation)
        return super().apply(mutation, now)


def timers(table: LeaseTable) -> int:
    table.check()
    return table.statistics().timers


@pytest.mark.parametrize("tick", [0.0, -1.0, 1e-300, math.inf, math.nan])
def test_tick_must_be_positive_and_finite(tick: float) -> None:
    with pytest.raises(ValueError, match="tick_seconds"):
        LeaseTable(PositionalIndex(16), tick_seconds=tick)


def test_backend_sees_published_names_only() -> None:
    inner = Watched()
    table = LeaseTable(inner)
    table.apply(Store(A, None, packed([1, 2]), [11, 12]), 0.0)
    table.apply(Store(A, 12, packed([3]), [13]), 0.0)
    table.apply(guess(A, [1, 2, 9]), 0.0)
    table.apply(Remove(A, [11, 99]), 0.0)
    table.expire(100.0)
    first, second, third = sequence_hashes(packed([1, 2, 3]))
    guessed = sequence_hashes(packed([1, 2, 9]))
    assert inner.seen == [
        Store(A, None, packed([1, 2]), (first, second)),
        Store(A, second, packed([3]), (third,)),
        Store(A, None, packed([1, 2, 9]), guessed),
        Remove(A, [first]),
        Remove(A, [guessed[2]]),
    ]


def test_engine_that_uses_the_published_chain_cannot_clash_with_guesses() -> None:
    table = LeaseTable(PositionalIndex(16))
    table.apply(guess(A, FIVE, ttl=10), 0.0)
    stolen = names(FIVE)[4]
    table.apply(Store(A, None, packed([8]), [stolen]), 0.0)  # the name of a guessed block
    assert table.apply(Remove(A, [stolen]), 0.0) == Applied(applied=1)
    assert table.overlap(prompt(*FIVE)).of(A) == 5
    assert table.overlap(prompt(8)).of(A) == 0


def test_refresh_does_not_reach_the_backend() -> None:
    inner = Watched()
    table = LeaseTable(inner)
    for now in range(50):
        table.apply(guess(A, FIVE, ttl=10), float(now))
    assert len(inner.seen) == 1


def test_timers_follow_live_blocks_not_refreshes() -> None:
    table = LeaseTable(PositionalIndex(16), tick_seconds=0.1)
    for step in range(5_000):
        table.apply(guess(A, FIVE, ttl=10 + step % 7), step / 50)
        table.apply(guess(B, FIVE[:3], ttl=3), step / 50)
        if step % 100 == 0:
            table.expire(step / 50)
            assert timers(table) == 8
    table.expire(1e6)
    assert timers(table) == table.statistics().blocks == 0


def test_revoked_leases_leave_no_timer_behind() -> None:
    table = LeaseTable(PositionalIndex(16))
    for step in range(1_000):
        table.apply(guess(A, FIVE, ttl=step), float(step))
        table.apply(store(A, FIVE), float(step))
        table.apply(remove(A, FIVE), float(step))
        table.apply(guess(B, FIVE, ttl=step), float(step))
        table.apply(Clear(B), float(step))
        assert timers(table) == 0
    assert table.expire(0.0).next_deadline == math.inf


@pytest.mark.parametrize("tick", [0.1, 0.3, 1 / 3, 1e-3])
def test_lease_ends_never_early_and_at_most_a_tick_late(tick: float) -> None:
    for k in range(200):
        table = LeaseTable(PositionalIndex(16), tick_seconds=tick)
        start, ttl = k * 0.137, 0.01 * k
        table.apply(guess(A, FIVE, ttl=ttl), start)
        waiting = table.expire(math.nextafter(start + ttl, -math.inf))
        assert (waiting.blocks, table.statistics().blocks) == (0, 5)
        assert waiting.next_deadline <= start + ttl + tick + 1e-9
        assert table.expire(start + ttl + tick + 1e-9).blocks == 5


def test_entry_that_fires_early_by_rounding_moves_on() -> None:
    """A deadline may round to a tick just before it; looking again must not loop for ever."""
    table = LeaseTable(PositionalIndex(16), tick_seconds=0.1)
    for k in range(2_000):
        deadline = math.nextafter(k * 0.1, math.inf)
        table.apply(guess(A, [k], ttl=deadline), 0.0)
        done = table.expire(k * 0.1, limit=3)
        assert done.entries <= 1
        table.expire(k * 0.1 + 0.11)
        assert table.statistics().blocks == 0


def test_slice_over_many_ranks_is_bounded() -> None:
    table = LeaseTable(PositionalIndex(16))
    ranks = [A._replace(dp_rank=k) for k in range(40)]
    for rank in ranks:
        table.apply(guess(rank, FIVE, ttl=1), 0.0)
    done = table.expire(2.0, limit=64, ranks=ranks[:20])
    assert done == Expired(64, 64, done.next_deadline)
    assert done.next_deadline <= 2.0
    rest = table.expire(2.0, ranks=ranks[:20])
    assert (rest.entries, rest.next_deadline) == (36, math.inf)
    assert table.statistics().blocks == 100


def test_backend_that_raises_before_it_writes_leaves_the_table_as_it_was() -> None:
    class Full(PositionalIndex):
        def apply(self, mutation: Mutation, now: float = 0.0) -> Applied:
            raise MemoryError("no room for 5 blocks")

    table = LeaseTable(Full(16))
    for refused in (guess(A, FIVE), store(A, FIVE)):
        with pytest.raises(MemoryError, match="5 blocks"):
            table.apply(refused, 0.0)
    assert table.statistics().blocks == table.statistics().ranks == 0


def test_moved_name_takes_the_block_it_named_out_of_the_backend() -> None:
    table = LeaseTable(PositionalIndex(16))
    table.apply(Store(A, None, packed([1, 2]), [11, 12]), 0.0)
    table.apply(Store(A, None, packed([8]), [11]), 0.0)
    assert depths(table, [1, 2], [8]) == [0, 1]
    table.apply(Store(A, None, packed([1]), [10]), 0.0)
    assert depths(table, [1, 2], [8]) == [2, 1]


def test_name_that_moves_off_a_leased_block_s_child_keeps_the_lease() -> None:
    table = LeaseTable(PositionalIndex(16))
    table.apply(guess(A, [1, 2], ttl=10), 0.0)
    table.apply(Store(A, None, packed([1]), [11]), 0.0)
    table.apply(extend(A, [1], [3])._replace(parent=11, sequence_hashes=[13]), 0.0)
    table.apply(Store(A, None, packed([8]), [13]), 0.0)
    assert depths(table, [1, 2], [1, 3], [8]) == [2, 1, 1]


def depths(table: LeaseTable, *chains: Sequence[int]) -> list[int]:
    table.check()
    return [table.overlap(prompt(*chain)).of(A) for chain in chains]


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda table: table._paths.links.popitem(),
        lambda table: table._ranks[A].names.places.popitem(),
        lambda table: table._ranks[A].leases.armed.clear(),
    ],
)
def test_check_sees_parts_that_do_not_agree(corrupt: Callable[[LeaseTable], object]) -> None:
    table = LeaseTable(PositionalIndex(16))
    table.apply(store(A, [1, 2]), 0.0)
    table.apply(guess(A, [1, 2, 3]), 0.0)
    table.check()
    corrupt(table)
    with pytest.raises(AssertionError):
        table.check()
