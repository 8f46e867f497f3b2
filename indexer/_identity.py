"""Block identity: which tokens, under which adapter and tenant, make which block.

Two hashes, both 64 bits, both the same in every process:

- The *block hash* names content: XXH3 of a window of tokens (u32, little-endian) and of the
  multimodal keys that lie in it, seeded by adapter and namespace.
- The *sequence hash* names a block after its prefix: XXH3 of the sequence hash before it and its
  own block hash. Its seed never varies; adapter and namespace come in through the block hashes.

Block hashes travel packed, 8 big-endian bytes each, so that the index compares a run of blocks
with one `memcmp`.

Source: the published formulas, pinned by `tests/data/hash_vectors.json`.
"""

import collections.abc
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from kvlanes.indexer._errors import (
    BlockSizeInvalid,
    EngineHashInvalid,
    MultimodalInvalid,
    PackedLengthInvalid,
    TokenOutOfRange,
    TokensInvalid,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:  # Python 3.11 has no name for it
    Buffer = getattr(collections.abc, "Buffer", object)

Tokens: TypeAlias = Sequence[int] | Buffer
Multimodal: TypeAlias = Sequence[Iterable[int] | None]

HASH_SCHEME = "xxh3-64-seed-1337"
BLOCK_SEED = 1337
CHAIN_SEED = 1337
_MASK = (1 << 64) - 1
_U32_FORMATS = ("I", "@I", "=I", "<I" if sys.byteorder == "little" else ">I")


class Prompt:
    """A prompt as the index sees it: its block hashes, computed once. Immutable.

    Two prompts are equal when their block size and block hashes are, so adapter, namespace and
    multimodal keys are part of the identity and an incomplete last block is not.

    Args:
        tokens: Token ids: a sequence of integers, or any one-dimensional buffer of native unsigned
            32-bit items (`array("I")`, numpy `uint32`), which is several times faster.
        block_size: Tokens a block, at least 1. An incomplete last block is dropped.
        adapter: Name of the adapter (LoRA) that computes the blocks; empty means none.
        namespace: Keeps tenants apart; empty means none.
        multimodal: For each block the 64-bit keys of the items that lie in it, in any order;
            shorter than the prompt means none in the rest.
        overlapping: Each window takes one token more than the block (draft heads that look one
            token ahead, "Eagle"); the step from block to block stays `block_size`.

    Attributes:
        blocks: Packed block hashes of the full blocks, 8 bytes big-endian each.
        block_size: Tokens a block.
        token_count: All tokens, those of the incomplete last block included.

    Raises:
        BlockSizeInvalid: `block_size` is no integer >= 1.
        TokensInvalid: Raw bytes, text, another item type, or no sequence at all.
        TokenOutOfRange: A token below 0 or above 2**32 - 1.
        MultimodalInvalid: More entries than blocks, or a key that is no unsigned 64-bit integer.

    Cost: O(tokens). Never a checkpoint.
    """

    __slots__ = ("_sequence_hashes", "block_size", "blocks", "token_count")

    blocks: bytes
    block_size: int
    token_count: int
    _sequence_hashes: tuple[int, ...] | None

    def __init__(
        self,
        tokens: Tokens,
        block_size: int,
        *,
        adapter: str | None = None,
        namespace: str | None = None,
        multimodal: Multimodal | None = None,
        overlapping: bool = False,
    ) -> None:
        require_block_size(block_size)
        data = _packed(tokens)
        seed = identity_seed(adapter, namespace)
        blocks = _hashed(data, 4 * block_size, seed, multimodal, overlapping)
        self._become(blocks, block_size, len(data) // 4)

    def _become(self, blocks: bytes, block_size: int, token_count: int) -> None:
        assign = object.__setattr__
        assign(self, "blocks", blocks)
        assign(self, "block_size", block_size)
        assign(self, "token_count", token_count)
        assign(self, "_sequence_hashes", None)

    @classmethod
    def from_text(
        cls,
        text: str,
        block_size: int,
        *,
        adapter: str | None = None,
        namespace: str | None = None,
    ) -> "Prompt":
        """A prompt without a tokenizer: each code point counts as one token. O(characters).

        Good for leased coverage only, since no engine event ever names such blocks.
        """
        tokens = memoryview(text.encode(_UTF32, "surrogatepass")).cast("I")
        return cls(tokens, block_size, adapter=adapter, namespace=namespace)

    @classmethod
    def from_blocks(
        cls, blocks: bytes, block_size: int, token_count: int | None = None
    ) -> "Prompt":
        """A prompt whose block hashes are known already. O(1).

        Args:
            blocks: Packed block hashes.
            block_size: Tokens a block.
            token_count: All tokens; `None` means exactly the full blocks.

        Raises:
            BlockSizeInvalid: `block_size` is no integer >= 1.
            PackedLengthInvalid: `blocks` is no multiple of 8 bytes.
            TokensInvalid: So many tokens do not make so many blocks.
        """
        require_block_size(block_size)
        full = _count(blocks) * block_size
        if token_count is None:
            token_count = full
        # An overlapping window reaches one token past its block, hence <=.
        elif not full <= token_count <= full + block_size:
            raise TokensInvalid(
                f"{_count(blocks)} blocks of {block_size} do not come from {token_count} tokens"
            )
        prompt = cls.__new__(cls)
        prompt._become(bytes(blocks), block_size, token_count)
        return prompt

    def __len__(self) -> int:
        return len(self.blocks) >> 3

    @property
    def sequence_hashes(self) -> tuple[int, ...]:
        """One hash a block that names its whole prefix; O(blocks) the first time."""
        if self._sequence_hashes is None:
            object.__setattr__(self, "_sequence_hashes", sequence_hashes(self.blocks))
        assert self._sequence_hashes is not None
        return self._sequence_hashes

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Prompt is immutable; cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Prompt is immutable; cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prompt):
            return NotImplemented
        return self.blocks == other.blocks and self.block_size == other.block_size

    def __hash__(self) -> int:
        return hash((self.block_size, self.blocks))

    def __reduce__(self) -> tuple[object, ...]:
        return Prompt.from_blocks, (self.blocks, self.block_size, self.token_count)

    def __repr__(self) -> str:
        return f"<Prompt of {self.token_count} tokens, {len(self)} blocks of {self.block_size}>"


def block_hashes(
    tokens: Tokens,
    block_size: int,
    *,
    adapter: str | None = None,
    namespace: str | None = None,
    multimodal: Multimodal | None = None,
    overlapping: bool = False,
) -> bytes:
    """Packed block hashes of all full blocks; arguments, errors and cost are those of `Prompt`."""
    require_block_size(block_size)
    seed = identity_seed(adapter, namespace)
    return _hashed(_packed(tokens), 4 * block_size, seed, multimodal, overlapping)


def sequence_hashes(blocks: bytes) -> tuple[int, ...]:
    """Chain packed block hashes into one hash of the whole prefix a block. O(blocks).

    Raises:
        PackedLengthInvalid: The length is no multiple of 8 bytes.
    """
    _count(blocks)
    chained: list[int] = []
    previous = b""
    for (block,) in struct.iter_unpack("8s", blocks):
        # The first block is named by its content alone.
        digest = xxh3_64_digest(previous + block[::-1], CHAIN_SEED) if previous else block
        chained.append(int.from_bytes(digest, "big"))
        previous = digest[::-1]
    return tuple(chained)


def identity_seed(adapter: str | None, namespace: str | None) -> int:
    """The seed that keeps adapters and tenants apart; empty and absent mean the same."""
    seed = BLOCK_SEED
    if adapter:
        seed += xxh3_64_intdigest(adapter.encode(), 0)
    if namespace:
        seed += xxh3_64_intdigest(namespace.encode(), 1)
    return seed & _MASK


def multimodal_key(identifier: str) -> int | None:
    """The 64-bit key of a multimodal item from its name; `None` when the name is empty.

    A name of 64 hexadecimal digits is a digest already: its first 16 digits count.
    """
    if not identifier:
        return None
    if len(identifier) == 64:
        try:
            return int.from_bytes(bytes.fromhex(identifier)[:8], "big")
        except ValueError:
            pass  # 64 characters, but no digest: a name like any other.
    return xxh3_64_intdigest(identifier.encode(), 0)


def engine_hash(value: int | bytes) -> int:
    """Normalise an engine's own name of a block to an unsigned 64-bit integer.

    Args:
        value: An integer, signed or unsigned; or a digest of at least 8 bytes, of which the last
            8 count, big-endian: the integer form in which vLLM itself publishes such a digest.

    Raises:
        EngineHashInvalid: The integer does not fit in 64 bits, the digest is shorter than 8
            bytes, or it is neither.
    """
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return value & _MASK
    if isinstance(value, bytes) and len(value) >= 8:
        return int.from_bytes(value[-8:], "big")
    raise EngineHashInvalid(value)


_UTF32 = f"utf-32-{sys.byteorder[0]}e"


def require_block_size(block_size: int) -> None:
    """Refuse what is no block size."""
    if not isinstance(block_size, int) or isinstance(block_size, bool) or block_size < 1:
        raise BlockSizeInvalid(block_size)


def _count(blocks: bytes) -> int:
    if len(blocks) % 8:
        raise PackedLengthInvalid(len(blocks))
    return len(blocks) // 8


def _packed(tokens: Any) -> bytes:
    """Token ids as little-endian u32 bytes; refuses what `Tokens` does not allow."""
    if type(tokens) is array and tokens.typecode == "I" and sys.byteorder == "little":
        return tokens.tobytes()  # what feeds have; the way below takes twice as long
    if isinstance(tokens, (bytes, bytearray, str)):
        raise TokensInvalid(
            f"{type(tokens).__name__} could mean text or packed token ids: pass integers "
            "or a buffer of unsigned 32-bit items, or use Prompt.from_text"
        )
    if isinstance(tokens, (list, tuple)):
        data = _from_integers(tokens)
    else:
        try:
            view = memoryview(tokens)
        except TypeError:  # no buffer: ranges and other sequences
            data = _from_integers(tokens)
        else:
            data = _from_buffer(view)
    if sys.byteorder == "big":
        swapped = array("I", data)
        swapped.byteswap()
        data = swapped.tobytes()
    return data


def _from_buffer(view: memoryview) -> bytes:
    if view.format not in _U32_FORMATS or view.itemsize != 4 or view.ndim != 1:
        raise TokensInvalid(
            "a token buffer must have one dimension of native unsigned 32-bit items, got "
            f"{view.ndim} of {view.itemsize} bytes with format {view.format!r}"
        )
    return view.tobytes()


def _from_integers(tokens: Sequence[int]) -> bytes:
    try:
        return array("I", tokens).tobytes()
    except OverflowError:
        for position, token in enumerate(tokens):
            if not 0 <= token < 1 << 32:
                raise TokenOutOfRange(int(token), position) from None
        raise TokensInvalid(f"{type(tokens).__name__} can be read only once") from None
    except TypeError as error:
        raise TokensInvalid(f"cannot read {type(tokens).__name__} as tokens: {error}") from error


def _hashed(
    data: bytes, width: int, seed: int, multimodal: Multimodal | None, overlapping: bool
) -> bytes:
    """Packed hashes of the windows of packed tokens, `width` bytes from one to the next."""
    if multimodal is None and not overlapping:  # nearly always: no list of windows in between
        plain = struct.iter_unpack(f"{width}s", data[: len(data) // width * width])
        return b"".join([xxh3_64_digest(window, seed) for (window,) in plain])
    windows = _windows(data, width, overlapping)
    if multimodal is not None:
        _require_no_more(multimodal, -(-len(data) // width))
        windows = _with_keys(windows, multimodal)
    return b"".join([xxh3_64_digest(window, seed) for window in windows])


def _windows(data: bytes, width: int, overlapping: bool) -> list[bytes]:
    """The byte strings that are hashed, one a block; an incomplete last one is dropped."""
    if overlapping:
        return [data[at : at + width + 4] for at in range(0, len(data) - width - 3, width)]
    whole = len(data) // width * width
    return [window for (window,) in struct.iter_unpack(f"{width}s", data[:whole])]


def _require_no_more(multimodal: Multimodal, blocks: int) -> None:
    if len(multimodal) > blocks:
        raise MultimodalInvalid(f"multimodal has {len(multimodal)} entries for {blocks} blocks")


def _with_keys(windows: list[bytes], multimodal: Multimodal) -> list[bytes]:
    """Append each block's sorted multimodal keys to the bytes that are hashed."""
    keyed = list(windows)
    for index, keys in enumerate(multimodal[: len(windows)]):
        try:
            ordered = sorted(keys or ())
            keyed[index] += struct.pack(f"<{len(ordered)}Q", *ordered)
        except (struct.error, TypeError) as error:
            raise MultimodalInvalid(f"multimodal keys of block {index}: {error}") from error
    return keyed
