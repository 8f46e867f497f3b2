"""A dump: one index as plain bytes, never pickle, that restores it exactly.

    magic      8 bytes, `kvlanes` and the format's version
    header     u32 length, then JSON: block size, hash scheme, ranks, sizes
    paths      for each segment, parents first: u32 number of its parent (0 is the root, the first
               segment is 1) and u32 blocks
    edges      their packed block hashes, one after another
    coverage   for each rank in the order of the header: its confirmed segments, u32 number and
               packed names each; then its leased ones, u32 number and f64 seconds that remain
    checksum   u64, XXH3 of everything before it

Integers are big-endian. A path may run through segments that a rank does not hold: those are its
holes. No time of a clock is in it, so another process can restore it. Every size is compared with
the bytes that are there before anything is built from it.
"""

import json
import math
import struct
from typing import Any

import attrs
from xxhash import xxh3_64_digest

from kvlanes.indexer._errors import BlockSizeMismatch, DumpRefused
from kvlanes.indexer._identity import HASH_SCHEME
from kvlanes.indexer._mutations import Rank

MAGIC = b"kvlanes\x01"
_U32 = struct.Struct(">I")
_PATH = struct.Struct(">II")
_LEASE = struct.Struct(">Id")


@attrs.frozen
class RankRows:
    """What one rank holds: (segment number, packed names), (segment number, seconds left)."""

    worker_id: str
    dp_rank: int
    confirmed: list[tuple[int, bytes]]
    leased: list[tuple[int, float]]


@attrs.frozen
class Content:
    """A dump, unpacked: (number of the parent, packed blocks) of each segment, then the ranks."""

    segments: list[tuple[int, bytes]]
    ranks: list[RankRows]


def encode(content: Content, block_size: int) -> bytes:
    """Write a dump. O(its bytes)."""
    header = {
        "block_size": block_size,
        "hash_scheme": HASH_SCHEME,
        "segments": len(content.segments),
        "blocks": sum([len(edge) >> 3 for _, edge in content.segments]),
        "ranks": [[r.worker_id, r.dp_rank, len(r.confirmed), len(r.leased)] for r in content.ranks],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    parts = [MAGIC, _U32.pack(len(text)), text]
    parts += [_PATH.pack(parent, len(edge) >> 3) for parent, edge in content.segments]
    parts += [edge for _, edge in content.segments]
    for rank in content.ranks:
        for number, names in rank.confirmed:
            parts += [_U32.pack(number), names]
        parts += [_LEASE.pack(number, seconds) for number, seconds in rank.leased]
    body = b"".join(parts)
    return body + xxh3_64_digest(body)


def decode(dump: bytes, block_size: int) -> Content:
    """Read a dump.

    Raises:
        BlockSizeMismatch: It was made with another block size.
        DumpRefused: Another format or hash scheme, a wrong checksum, or sizes that do not fit.

    Cost: O(its bytes).
    """
    if dump[:8] != MAGIC:
        raise DumpRefused(f"not a dump of this format: starts with {dump[:8]!r}, not {MAGIC!r}")
    if xxh3_64_digest(dump[:-8]) != dump[-8:]:
        raise DumpRefused(f"the checksum of these {len(dump)} bytes is wrong")
    reader = _Reader(bytes(dump[:-8]), at=8)
    try:
        header: dict[str, Any] = json.loads(reader.take(*_U32.unpack(reader.take(4))))
        if header["hash_scheme"] != HASH_SCHEME:
            raise DumpRefused(f"hash scheme {header['hash_scheme']!r} is not {HASH_SCHEME!r}")
        if header["block_size"] != block_size:
            raise BlockSizeMismatch(header["block_size"], block_size, "dump")
        segments = reader.segments(header["segments"], header["blocks"])
        ranks = [reader.rank(segments, *row) for row in header["ranks"]]
    except (KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        if isinstance(error, DumpRefused | BlockSizeMismatch):
            raise
        raise DumpRefused(f"the header does not fit: {error}") from error
    if reader.rest():
        raise DumpRefused(f"{reader.rest()} bytes too many")
    return Content(segments, ranks)


@attrs.define(eq=False)
class _Reader:
    """Takes a dump apart from the left; refuses to read past its end."""

    data: bytes
    at: int

    def rest(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.rest():
            raise DumpRefused(f"{size} bytes announced, {self.rest()} left")
        self.at += size
        return self.data[self.at - size : self.at]

    def segments(self, count: int, blocks: int) -> list[tuple[int, bytes]]:
        paths = list(_PATH.iter_unpack(self.take(_PATH.size * count)))
        if sum([size for _, size in paths]) != blocks or blocks * 8 > self.rest():
            raise DumpRefused(f"{blocks} blocks announced, {self.rest()} bytes left")
        for number, (parent, size) in enumerate(paths, 1):
            if parent >= number or not size:
                raise DumpRefused(f"segment {number} of {size} blocks has parent {parent}")
        return [(parent, self.take(8 * size)) for parent, size in paths]

    def rank(
        self, segments: list[tuple[int, bytes]], worker: str, dp_rank: int, named: int, leased: int
    ) -> RankRows:
        Rank(worker, dp_rank)  # raises where these do not name one
        if 4 * named + _LEASE.size * leased > self.rest():
            raise DumpRefused(f"{named} + {leased} rows announced, {self.rest()} bytes left")
        confirmed: list[tuple[int, bytes]] = []
        for _ in range(named):
            (number,) = _U32.unpack(self.take(4))
            confirmed.append((number, self.take(len(_segment(segments, number)))))
        rows = list(_LEASE.iter_unpack(self.take(_LEASE.size * leased)))
        for number, seconds in rows:
            _segment(segments, number)
            if not seconds > -math.inf:  # also refuses NaN
                raise DumpRefused(f"the lease of segment {number} has no end: {seconds}")
        return RankRows(worker, dp_rank, confirmed, rows)


def _segment(segments: list[tuple[int, bytes]], number: int) -> bytes:
    if not 1 <= number <= len(segments):
        raise DumpRefused(f"there is no segment {number} of {len(segments)}")
    return segments[number - 1][1]
