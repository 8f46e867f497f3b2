"""A dump restores an index exactly, and refuses what it cannot vouch for by name and number."""

import json
import random
import struct
from typing import Any

import attrs
import pytest
from xxhash import xxh3_64_digest

from kvlanes.indexer import (
    BlockSizeMismatch,
    DumpRefused,
    RadixIndex,
    Rank,
    sequence_hashes,
)
from kvlanes.indexer._dump import Content, RankRows, decode, encode
from tests.indexer.chains import A, B, C, extend, guess, packed, prompt, remove, store


def full() -> RadixIndex:
    """Holes, branches, names of two engines, leases with three deadlines, a rank without blocks."""
    index = RadixIndex(16, tick_seconds=0.5)
    index.apply(store(A, [1, 2, 3, 4]), 0.0)
    index.apply(remove(A, [1, 2, 3, 4], 2), 0.0)
    index.apply(extend(A, [1, 2, 3], [9, 9]), 0.0)
    index.apply(store(B, [1, 2, 3], engine=5), 0.0)
    index.apply(guess(B, [1, 2, 3, 4, 5], 8.0), 0.0)
    index.apply(guess(C, [1, 2, 3], 4.0), 0.0)
    index.apply(guess(C, [1], float("inf")), 0.0)
    index.apply(guess(Rank("d", 3), [7]), 0.0)
    index.apply(store(Rank("e"), [7]), 0.0)
    index.apply(remove(Rank("e"), [7]), 0.0)
    return index


def restored(dump: bytes, now: float) -> RadixIndex:
    index = RadixIndex(16, tick_seconds=0.5)
    index.restore(dump, now)
    index.check()
    return index


def test_restored_index_is_the_same() -> None:
    index = full()
    twin = restored(index.dump(1.0), 1.0)
    assert twin.digest() == index.digest()
    # A timer entry of a lease that was revoked does not travel.
    assert twin.statistics() == attrs.evolve(index.statistics(), timers=5)
    assert twin.dump(1.0) == index.dump(1.0)
    for chain in ([1, 2, 3, 4, 5], [1, 2, 3, 9, 9], [7]):
        assert twin.overlap(prompt(*chain)).scores() == index.overlap(prompt(*chain)).scores()


def test_hole_is_still_a_hole_that_can_be_filled() -> None:
    twin = restored(full().dump(0.0), 0.0)
    assert twin.overlap(prompt(1, 2, 3, 9, 9)).of(A) == 1
    assert twin.apply(extend(A, [1], [2]), 0.0).applied == 1
    assert twin.overlap(prompt(1, 2, 3, 9, 9)).of(A) == 5


def test_names_of_each_engine_still_remove_and_parent() -> None:
    twin = restored(full().dump(0.0), 0.0)
    assert twin.apply(extend(B, [1, 2, 3], [8], engine=5), 0.0).applied == 1
    assert twin.apply(remove(B, [1, 2, 3]), 0.0).unknown == 3
    assert twin.apply(remove(B, [1, 2, 3], engine=5), 0.0).applied == 3


def test_leases_travel_as_seconds_that_remain() -> None:
    # Dumped at 3 on one clock, restored at 1,000 on another: the lease of C had 1 second left.
    twin = restored(full().dump(3.0), 1_000.0)
    assert twin.expire(1_000.9).blocks == 0
    assert twin.expire(1_001.0).blocks == 2
    assert twin.expire(1_005.0).blocks == 2
    assert twin.overlap(prompt(1, 2, 3)).of(C) == 1, "a lease without an end stays"
    overdue = restored(full().dump(50.0), 0.0)
    assert overdue.expire(0.0).blocks == 5


def test_dump_does_not_depend_on_history() -> None:
    steps = [store(A, [1, 2, 3]), store(A, [1, 2, 8]), store(B, [1, 2]), guess(C, [1, 2, 8])]
    dumps = set()
    for seed in range(10):
        index = RadixIndex(16)
        for mutation in random.Random(seed).sample(steps, len(steps)):
            index.apply(mutation, 0.0)
        dumps.add(index.dump(0.0))
    assert len(dumps) == 1


def test_empty_index_restores_empty() -> None:
    assert restored(RadixIndex(16).dump(0.0), 0.0).statistics().segments == 0


def test_only_an_empty_index_can_be_restored() -> None:
    index = full()
    with pytest.raises(DumpRefused, match="knows 5 ranks"):
        index.restore(full().dump(0.0), 0.0)
    assert index.digest() == full().digest()


def test_budget_applies_to_what_is_restored() -> None:
    index = RadixIndex(16, budget_blocks=3)
    index.restore(full().dump(0.0), 0.0)
    index.check()
    assert index.statistics().entries == 3


# Refusals


def signed(body: bytes) -> bytes:
    return body + xxh3_64_digest(body)


def with_header(change: dict[str, Any]) -> bytes:
    """A dump whose header says something else, with a checksum that fits."""
    dump = full().dump(0.0)
    (size,) = struct.unpack(">I", dump[8:12])
    header = json.loads(dump[12 : 12 + size]) | change
    text = json.dumps(header).encode()
    return signed(dump[:8] + struct.pack(">I", len(text)) + text + dump[12 + size : -8])


def refused(dump: bytes, words: str, error: type[Exception] = DumpRefused) -> None:
    index = RadixIndex(16)
    with pytest.raises(error, match=words):
        index.restore(dump, 0.0)
    index.check()
    assert index.statistics().ranks == 0


def test_another_block_size_is_refused_with_both_numbers() -> None:
    refused(RadixIndex(64).dump(0.0), "dump has blocks of 64 tokens.* 16", BlockSizeMismatch)


def test_another_format_or_hash_scheme_is_refused_by_name() -> None:
    refused(b"", "not a dump")
    refused(b"kvlanes\x02" + full().dump(0.0)[8:], "not a dump of this format")
    refused(with_header({"hash_scheme": "sha256"}), "hash scheme 'sha256'")


def test_damage_is_noticed() -> None:
    dump = full().dump(0.0)
    for at in range(8, len(dump), 7):
        refused(dump[:at] + bytes([dump[at] ^ 1]) + dump[at + 1 :], "checksum")
    for size in range(8, len(dump)):
        refused(dump[:size], "checksum")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"segments": 2**31}, "bytes announced"),
        ({"segments": -1}, "bytes announced"),
        ({"blocks": 2**40}, f"{2**40} blocks announced"),
        ({"blocks": 1}, "1 blocks announced"),
        ({"ranks": [["a", 0, 2**31, 0]]}, "rows announced"),
        ({"ranks": [["a", 0, 0, 2**31]]}, "rows announced"),
        ({"ranks": []}, "bytes too many"),
        ({"ranks": [["a", 0]]}, "does not fit"),
        ({"ranks": 5}, "does not fit"),
        ({"segments": "x"}, "does not fit"),
        ({"ranks": [["", 0, 0, 0]]}, "worker_id must not be empty"),
        ({"ranks": [["a", -1, 0, 0]]}, "dp_rank must not be negative"),
    ],
    ids=str,
)
def test_sizes_are_checked_before_anything_is_built(change: dict[str, Any], words: str) -> None:
    refused(with_header(change), words)


def test_header_that_is_no_header_is_refused() -> None:
    for text in (b"{", b"[]", b"\xff", b"{}"):
        refused(signed(b"kvlanes\x01" + struct.pack(">I", len(text)) + text), "does not fit")
    refused(signed(b"kvlanes\x01" + struct.pack(">I", 10**9)), "1000000000 bytes announced")
    refused(signed(b"kvlanes\x01"), "4 bytes announced")


def rows(*confirmed: tuple[int, bytes], leased: list[tuple[int, float]] | None = None) -> RankRows:
    return RankRows("a", 0, list(confirmed), leased or [])


ONE, TWO = packed([1]), packed([2])
FORGED: list[tuple[Content, str]] = [
    (Content([(0, ONE), (0, ONE + TWO)], []), "two segments under 0 start"),
    (Content([(2, ONE), (0, TWO)], []), "segment 1 of 1 blocks has parent 2"),
    (Content([(0, b"")], []), "segment 1 of 0 blocks"),
    (Content([(0, ONE)], [rows((1, ONE)), rows((1, ONE))]), "rank a comes twice"),
    (Content([(0, ONE)], [rows((1, ONE), leased=[(1, 1.0)])]), "holds a segment twice"),
    (Content([(0, ONE + TWO)], [rows((1, ONE + ONE))]), "one name for two blocks"),
    (Content([(0, ONE), (0, TWO)], [rows((1, ONE), (2, ONE))]), "one name for two blocks"),
    (Content([(0, ONE)], [rows(leased=[(2, 1.0)])]), "no segment 2 of 1"),
    (Content([(0, ONE)], [rows(leased=[(0, 1.0)])]), "no segment 0 of 1"),
    (Content([(0, ONE)], [rows(leased=[(1, float("nan"))])]), "has no end"),
]


@pytest.mark.parametrize(("content", "words"), FORGED, ids=lambda value: str(value)[:20])
def test_contradictions_are_refused_and_leave_nothing(content: Content, words: str) -> None:
    refused(encode(content, 16), words)


def test_foreign_dump_is_brought_into_shape() -> None:
    # Cut finer than need be, with a segment that nobody holds.
    first, second = sequence_hashes(ONE + TWO)
    named = [first.to_bytes(8, "big"), second.to_bytes(8, "big")]
    content = Content([(0, ONE), (1, TWO), (2, packed([3]))], [rows((1, named[0]), (2, named[1]))])
    index = restored(encode(content, 16), 0.0)
    assert (index.statistics().segments, index.statistics().entries) == (1, 2)


def test_decoding_is_the_inverse_of_encoding() -> None:
    dump = full().dump(2.0)
    assert encode(decode(dump, 16), 16) == dump
