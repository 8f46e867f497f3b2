"""A number that is equal where confirmed coverage is, whatever the history that led there.

It is the sum of a hash of each (rank, place, name), modulo 2**64. A sum has no order, so neither
the order of events nor the shape of an index shows. Leases are left out: they are one router's
guesses.
"""

from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

from kvlanes.indexer._mutations import Rank


def rank_key(rank: Rank, tier: str = "") -> bytes:
    """What all rows of a rank have in common."""
    # A worker's name is any string, half a surrogate pair included.
    return f"{rank.worker_id}\0{rank.dp_rank}\0{tier}".encode(errors="surrogatepass")


def rows_digest(key: bytes, rows: Iterable[tuple[int, int]]) -> int:
    """The share of some rows, each a place and the name of the block there. O(rows)."""
    pack = int.to_bytes
    packed = [pack(place, 8, "big") + pack(name, 8, "big") for place, name in rows]
    return sum([xxh3_64_intdigest(key + row) for row in packed])


def shown(total: int) -> str:
    """A sum of such shares in 16 hex digits."""
    return f"{total % 2**64:016x}"
