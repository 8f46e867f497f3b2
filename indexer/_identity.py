"""Block identity: which tokens, under which adapter and tenant, make which block."""

import struct
import sys
from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_digest, xxh3_64_intdigest

BLOCK_SEED = 1337
CHAIN_SEED = 1337
_MASK = (1 << 64) - 1


def identity_seed(adapter: str | None, namespace: str | None) -> int:
    """The seed that keeps adapters and tenants apart; empty and absent mean the same.

    Source: the published formula, `tests/data/hash_vectors.json`.
    """
    seed = BLOCK_SEED
    if adapter:
        seed += xxh3_64_intdigest(adapter.encode(), 0)
    if namespace:
        seed += xxh3_64_intdigest(namespace.encode(), 1)
    return seed & _MASK


def sequence_hashes(blocks: bytes) -> tuple[int, ...]:
    """Chain packed block hashes into one hash of the whole prefix a block. O(blocks)."""
    out: list[int] = []
    previous = b""
    for offset in range(0, len(blocks), 8):
        block = blocks[offset : offset + 8][::-1]
        if previous:
            out.append(xxh3_64_intdigest(previous + block, CHAIN_SEED))
        else:
            out.append(int.from_bytes(block, "little"))
        previous = out[-1].to_bytes(8, "little")
    return tuple(out)


def _packed(tokens: Sequence[int]) -> bytes:
    data = array("I", tokens)
    if sys.byteorder == "big":
        data.byteswap()
    return data.tobytes()


class Prompt:
    """First cut: a prompt's blocks from a list of token ids."""

    __slots__ = ("_sequence", "block_size", "blocks", "token_count")

    def __init__(
        self,
        tokens: Sequence[int],
        block_size: int,
        *,
        adapter: str | None = None,
        namespace: str | None = None,
    ) -> None:
        seed = identity_seed(adapter, namespace)
        data = _packed(tokens)
        width = 4 * block_size
        whole = len(data) // width * width
        windows = struct.iter_unpack(f"{width}s", data[:whole])
        self.blocks = b"".join([xxh3_64_digest(window, seed) for (window,) in windows])
        self.block_size = block_size
        self.token_count = len(tokens)
        self._sequence: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.blocks) // 8

    @property
    def sequence_hashes(self) -> tuple[int, ...]:
        if self._sequence is None:
            self._sequence = sequence_hashes(self.blocks)
        return self._sequence
