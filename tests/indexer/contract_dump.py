"""The contract of every index backend, continued: what a dump brings back, and what it refuses."""

import math
from collections.abc import Callable
from typing import TypeAlias

import pytest
from xxhash import xxh3_64_digest

from kvlanes.indexer import (
    Applied,
    BlockSizeMismatch,
    DumpRefused,
    DurableBackend,
    IndexerError,
    Mutation,
    RadixIndex,
    Store,
)
from kvlanes.indexer._dump import Content, RankRows, encode
from tests.indexer.chains import A, B, C, extend, guess, packed, remove, store
from tests.indexer.contract import FIVE, depths, feed

MakeDumpedIndex: TypeAlias = Callable[[], DurableBackend]

ENGINE = 77


def filled(make_dumped: MakeDumpedIndex, *mutations: Mutation, now: float = 0.0) -> DurableBackend:
    index = make_dumped()
    for mutation in mutations:
        assert not index.apply(mutation, now).missing_parent
    index.check()
    return index


def copy(make_dumped: MakeDumpedIndex, index: DurableBackend, now: float = 0.0) -> DurableBackend:
    restored = make_dumped()
    restored.restore(index.dump(now), now)
    restored.check()
    assert restored.digest() == index.digest()
    assert restored.statistics().blocks == index.statistics().blocks
    return restored


class DumpContract:
    """Dumps: exact, self-contained, refused when anything about them is wrong."""

    def test_empty_index(self, make_dumped: MakeDumpedIndex) -> None:
        assert copy(make_dumped, make_dumped()).statistics().blocks == 0

    def test_coverage_of_several_ranks(self, make_dumped: MakeDumpedIndex) -> None:
        index = filled(make_dumped, store(A, FIVE), store(B, [1, 2, 9]), store(C, [1, 2]))
        restored = copy(make_dumped, index)
        assert depths(restored, FIVE) == {"a": 5, "b": 2, "c": 2}
        assert depths(restored, [1, 2, 9]) == {"a": 2, "b": 3, "c": 2}

    def test_names_of_every_engine(self, make_dumped: MakeDumpedIndex) -> None:
        index = filled(make_dumped, store(A, FIVE), store(B, FIVE, ENGINE))
        restored = copy(make_dumped, index)
        assert restored.apply(extend(A, FIVE, [6]), 0.0) == Applied(applied=1)
        assert restored.apply(extend(B, FIVE, [6]), 0.0) == Applied(missing_parent=1)
        assert restored.apply(remove(B, FIVE, 5, engine=ENGINE), 0.0) == Applied(applied=1)
        assert depths(restored, [*FIVE, 6]) == {"a": 6, "b": 4}

    def test_holes_stay_holes_until_they_are_filled(self, make_dumped: MakeDumpedIndex) -> None:
        index = filled(make_dumped, store(A, FIVE), store(A, [1, 2, 8]), store(B, FIVE))
        feed(index, remove(A, FIVE, 1, 3), remove(B, FIVE, 2))
        restored = copy(make_dumped, index)
        assert depths(restored, FIVE) == {"b": 1}
        restored.apply(store(A, [1]), 0.0)
        assert depths(restored, FIVE) == {"a": 2, "b": 1}
        assert depths(restored, [1, 2, 8]) == {"a": 3, "b": 1}
        restored.apply(extend(A, [1, 2], [3]), 0.0)
        restored.check()
        assert depths(restored, FIVE) == {"a": 5, "b": 1}

    def test_leases_keep_the_seconds_that_remain(self, make_dumped: MakeDumpedIndex) -> None:
        """Another process has another clock."""
        index = filled(make_dumped, guess(A, FIVE, ttl=10), guess(A, [1, 2], ttl=40), now=100.0)
        restored = make_dumped()
        restored.restore(index.dump(104.0), 9000.0)
        restored.check()
        assert restored.expire(9005.0).blocks == 0
        assert restored.expire(9007.0).blocks == 3
        assert depths(restored, FIVE) == {"a": 2}
        assert restored.expire(9037.0).blocks == 2

    def test_lease_that_is_due_or_infinite(self, make_dumped: MakeDumpedIndex) -> None:
        index = filled(make_dumped, guess(A, FIVE, ttl=10), guess(B, FIVE, ttl=math.inf))
        restored = copy(make_dumped, index, now=50.0)
        assert restored.expire(51.0)[1:] == (5, math.inf)
        assert depths(restored, FIVE) == {"b": 5}

    def test_shorter_lease_in_front_of_a_longer_one(self, make_dumped: MakeDumpedIndex) -> None:
        index = filled(make_dumped, guess(A, FIVE, ttl=100), store(A, [1, 2]), remove(A, [1, 2]))
        assert index.apply(guess(A, [1], ttl=10), 0.0) == Applied(applied=1)
        restored = copy(make_dumped, index)
        assert restored.expire(20.0).blocks == 1
        assert restored.apply(store(A, [1, 2]), 20.0) == Applied(applied=2)
        assert depths(restored, FIVE) == {"a": 5}
        assert restored.expire(200.0).blocks == 3

    def test_another_backend_restores_it(self, make_dumped: MakeDumpedIndex) -> None:
        mutations: list[Mutation] = [store(A, FIVE), store(B, FIVE, ENGINE), store(B, [1, 2, 7])]
        mutations += [remove(A, FIVE, 2), guess(C, [*FIVE, 6, 7], 30), guess(C, [1, 2, 3], 60)]
        ours, radix = filled(make_dumped, *mutations), filled(lambda: RadixIndex(16), *mutations)
        for target, source in ((make_dumped(), radix), (RadixIndex(16), ours)):
            target.restore(source.dump(0.0), 0.0)
            target.check()
            assert target.digest() == source.digest()
            assert depths(target, [*FIVE, 6]) == depths(source, [*FIVE, 6])
            assert target.expire(40.0).blocks == 4

    def test_restoring_needs_an_empty_index(self, make_dumped: MakeDumpedIndex) -> None:
        index = filled(make_dumped, store(A, FIVE))
        with pytest.raises(DumpRefused, match="1 ranks"):
            index.restore(make_dumped().dump(0.0), 0.0)
        assert depths(index, FIVE) == {"a": 5}

    def test_another_block_size_is_refused(self, make_dumped: MakeDumpedIndex) -> None:
        with pytest.raises(BlockSizeMismatch, match=r"32.*16"):
            make_dumped().restore(RadixIndex(32).dump(0.0), 0.0)

    def test_any_damage_is_refused_before_anything_is_written(
        self, make_dumped: MakeDumpedIndex
    ) -> None:
        named = Store(B, None, packed([1, 2]), [5, 6])
        dump = filled(make_dumped, store(A, [1, 2, 3]), named, guess(C, [1])).dump(0.0)
        target = make_dumped()
        damaged = [dump[:end] for end in range(len(dump))]
        damaged += [dump[:k] + bytes([dump[k] ^ 1]) + dump[k + 1 :] for k in range(len(dump))]
        for bad in [*damaged, dump + b"x"]:
            with pytest.raises(DumpRefused):
                target.restore(bad, 0.0)
        assert target.statistics().blocks == 0
        target.restore(dump, 0.0)
        assert target.statistics().blocks == 6

    @pytest.mark.parametrize("seconds", [math.nan, -math.inf])
    def test_forged_lease_without_an_end_is_refused_and_leaves_nothing(
        self, make_dumped: MakeDumpedIndex, seconds: float
    ) -> None:
        forged = Content([(0, packed([1]))], [RankRows("a", 0, [], [(1, seconds)])])
        target = make_dumped()
        with pytest.raises(DumpRefused, match=str(seconds)):
            target.restore(encode(forged, 16), 0.0)
        target.check()
        assert target.dump(0.0) == make_dumped().dump(0.0)

    @pytest.mark.parametrize("seconds", [-1e308, 1e308, math.inf])
    def test_lease_of_any_length_is_restored(
        self, make_dumped: MakeDumpedIndex, seconds: float
    ) -> None:
        content = Content([(0, packed([1]))], [RankRows("a", 0, [], [(1, seconds)])])
        target = make_dumped()
        target.restore(encode(content, 16), 100.0)
        target.check()
        assert target.expire(101.0)[1:] == (int(seconds < 0), math.inf)

    def test_dump_is_not_restored_at_a_time_that_is_none(
        self, make_dumped: MakeDumpedIndex
    ) -> None:
        dump = filled(make_dumped, store(B, [9]), guess(A, FIVE)).dump(0.0)
        target = make_dumped()
        with pytest.raises(IndexerError, match="nan"):
            target.restore(dump, math.nan)
        target.check()
        assert target.dump(0.0) == make_dumped().dump(0.0)

    def test_header_nested_without_end_is_refused(self, make_dumped: MakeDumpedIndex) -> None:
        text = b"[" * 200_000
        body = b"kvlanes\x01" + len(text).to_bytes(4, "big") + text
        with pytest.raises(DumpRefused, match="does not fit"):
            make_dumped().restore(body + xxh3_64_digest(body), 0.0)

    def test_dump_may_come_in_any_buffer(self, make_dumped: MakeDumpedIndex) -> None:
        index = filled(make_dumped, store(A, FIVE), guess(B, FIVE))
        for buffer in (bytearray, memoryview):
            target = make_dumped()
            target.restore(buffer(index.dump(0.0)), 0.0)  # type: ignore[arg-type]
            target.check()
            assert target.dump(0.0) == index.dump(0.0)
