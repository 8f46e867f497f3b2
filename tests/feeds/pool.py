"""A publisher's side, without sockets: a block pool that tells the truth, and its batch buffer."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import attrs
import msgspec

from kvlanes.engine.feeds._frames import Frame
from kvlanes.indexer import Prompt, RadixIndex, Rank, Remove, Store

BLOCK_SIZE = 4
Encoding: TypeAlias = Literal["map", "positional", "bytes"]
Chain: TypeAlias = tuple[int, ...]


def tokens_of(chain: Chain) -> list[int]:
    """The tokens of a chain of blocks; a block is named by one small number."""
    return [block * 100 + at for block in chain for at in range(BLOCK_SIZE)]


def digest_of(chain: Chain, salt: str | None) -> bytes:
    """What the engine calls the last block of a chain."""
    return hashlib.sha256(repr((chain, salt)).encode()).digest()


def name_of(chain: Chain, salt: str | None) -> int:
    return int.from_bytes(digest_of(chain, salt)[-8:], "big")


@attrs.define
class Pool:
    """Blocks and how often each is held, as an engine's pool keeps them. Makes the events."""

    encoding: Encoding = "map"
    held: Counter[tuple[Chain, str | None]] = attrs.field(factory=Counter)

    def store(self, chain: Chain, salt: str | None = None, *, again: bool = False) -> list[Any]:
        """Compute a prompt: blocks that are missing enter; `again` computes the others twice."""
        events = []
        start = 0
        while start < len(chain):
            if not again and self.held[chain[: start + 1], salt]:
                start += 1
                continue
            end = start + 1
            while end < len(chain) and (again or not self.held[chain[: end + 1], salt]):
                end += 1
            events.append(self._store(chain[:end], start, salt))
            start = end
        return events

    def _store(self, chain: Chain, start: int, salt: str | None) -> Any:
        steps = [chain[: at + 1] for at in range(start, len(chain))]
        self.held.update((step, salt) for step in steps)
        keys = [[salt] if salt and at == 0 else None for at in range(start, len(chain))]
        return self._encode(
            "BlockStored",
            block_hashes=[self._name(step, salt) for step in steps],
            parent_block_hash=self._name(chain[:start], salt) if start else None,
            token_ids=tokens_of(chain)[start * BLOCK_SIZE :],
            block_size=BLOCK_SIZE,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=keys,
        )

    def evict(self, number: int, *, leaf_first: bool = True) -> list[Any]:
        """Give up one announcement of some block."""
        blocks = self.leaves() if leaf_first else sorted(self.held, key=repr)
        if not blocks:
            return []
        chain, salt = block = blocks[number % len(blocks)]
        self.held[block] -= 1
        if not self.held[block]:
            del self.held[block]
        return [self._encode("BlockRemoved", block_hashes=[self._name(chain, salt)], medium="GPU")]

    def leaves(self) -> list[tuple[Chain, str | None]]:
        parents = {(chain[:-1], salt) for chain, salt in self.held}
        return sorted((block for block in self.held if block not in parents), key=repr)

    def clear(self) -> list[Any]:
        self.held.clear()
        return [self._encode("AllBlocksCleared")]

    def _name(self, chain: Chain, salt: str | None) -> int | bytes:
        return digest_of(chain, salt) if self.encoding == "bytes" else name_of(chain, salt)

    def _encode(self, tag: str, **fields: Any) -> Any:
        if self.encoding == "positional":
            return [tag, *fields.values()]
        return {"type": tag, **fields}

    # -- the truth

    def depth(self, chain: Chain, salt: str | None) -> int:
        """How many blocks of a prompt are held, from the root."""
        for at in range(len(chain)):
            if not self.held.get((chain[: at + 1], salt)):
                return at
        return len(chain)

    def digest(self, rank: Rank) -> str:
        """What an index that knows exactly these blocks would answer."""
        index = RadixIndex(BLOCK_SIZE)
        paths: set[tuple[Chain, str | None]] = set()
        for chain, salt in sorted(self.held, key=repr):
            names = [name_of(chain[: at + 1], salt) for at in range(len(chain))]
            prompt = Prompt(tokens_of(chain), BLOCK_SIZE, namespace=salt)
            index.apply(Store(rank, None, prompt.blocks, names), 0.0)
            paths |= {(chain[: at + 1], salt) for at in range(len(chain))}
        holes = [name_of(*path) for path in paths if path not in self.held]
        if holes:
            index.apply(Remove(rank, holes), 0.0)
        return index.digest()


@attrs.define
class Publisher:
    """One engine process: a pool, a numbered stream of its batches, and the last of them."""

    pool: Pool
    buffer_steps: int = 10_000
    incarnation: bytes = b""
    born: float = 0.0
    dp_rank: int | None = 0
    sequence: int = 0
    buffer: list[Frame] = attrs.field(factory=list)

    def publish(self, events: Sequence[Any]) -> Frame:
        """Number a batch and keep it."""
        batch = [self.born + self.sequence / 1000, list(events)]
        if self.dp_rank is not None:
            batch.append(self.dp_rank)
        payload = msgspec.msgpack.encode(batch)
        frame = Frame(b"", self.sequence, self.incarnation, payload)
        self.sequence += 1
        self.buffer = [*self.buffer, frame][-self.buffer_steps :]
        return frame

    def since(self, start: int) -> Iterator[Frame]:
        return iter([frame for frame in self.buffer if frame.sequence >= start])


CHAINS: list[Chain] = [
    chain
    for first in range(1, 4)
    for second in range(1, 4)
    for chain in [(first, second), (first, second, 1), (first, second, 1, 2)]
]
SALTS: list[str | None] = [None, None, "tenant"]


def random_events(
    pool: Pool, random: random.Random, *, holes: bool = False, clears: bool = True
) -> list[Any]:
    """Something that an engine may do in one step."""
    events: list[Any] = []
    for _ in range(random.randint(1, 3)):
        choice = random.random()
        if choice < 0.6:
            again = random.random() < 0.3
            events += pool.store(random.choice(CHAINS), random.choice(SALTS), again=again)
        elif choice < 0.97 or not clears:
            leaf_first = not holes or random.random() < 0.7
            events += pool.evict(random.randrange(1000), leaf_first=leaf_first)
        else:
            events += pool.clear()
    return events


def overlaps(index: Any, pool: Pool, rank: Rank) -> Iterator[tuple[int, int]]:
    """For every prompt that was ever stored: the depth the index reports, and the true one."""
    for chain in CHAINS:
        for salt in (None, "tenant"):
            prompt = Prompt(tokens_of(chain), BLOCK_SIZE, namespace=salt)
            yield index.overlap(prompt).of(rank), pool.depth(chain, salt)
