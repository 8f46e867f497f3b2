"""Short words for prefixes and mutations: a chain is a list of block hashes from the root."""

import struct
from collections.abc import Iterable, Sequence

from kvlanes.indexer import Lease, Prompt, Rank, Remove, Store, sequence_hashes

BLOCK_SIZE = 16
A, B, C = Rank("a"), Rank("b"), Rank("c")


def packed(chain: Iterable[int]) -> bytes:
    return b"".join(struct.pack(">Q", block) for block in chain)


def prompt(*chain: int) -> Prompt:
    return Prompt.from_blocks(packed(chain), BLOCK_SIZE)


def names(chain: Iterable[int], engine: int = 0) -> tuple[int, ...]:
    """What an engine calls the blocks of a chain; other engines, other names."""
    return tuple(name ^ engine for name in sequence_hashes(packed(chain)))


def store(rank: Rank, chain: Sequence[int], engine: int = 0) -> Store:
    """Confirmed coverage from the root."""
    return Store(rank, None, packed(chain), names(chain, engine))


def extend(rank: Rank, prefix: Sequence[int], tail: Sequence[int], engine: int = 0) -> Store:
    """Confirmed coverage under the last block of `prefix`."""
    named = names([*prefix, *tail], engine)
    return Store(rank, named[len(prefix) - 1], packed(tail), named[len(prefix) :])


def remove(rank: Rank, chain: Sequence[int], *depths: int, engine: int = 0) -> Remove:
    """Remove the blocks of a chain at these depths (1 is the first); all when none is given."""
    named = names(chain, engine)
    return Remove(rank, [named[depth - 1] for depth in depths] if depths else named)


def guess(rank: Rank, chain: Sequence[int], ttl: float = 10.0, age: float = 0.0) -> Store:
    """Leased coverage; always from the root."""
    return Store(rank, None, packed(chain), lease=Lease(ttl, age))
