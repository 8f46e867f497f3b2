"""Simulated workers: they compute nothing, but they really cache and they really evict."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import attrs
import trio

from examples.server.behaviour import Behaviour


class WorkerBusy(Exception):
    """The worker has no capacity for this branch."""


@attrs.frozen
class Scored:
    """Log probabilities of the labels, in their order, and the prompt tokens found cached."""

    logprobs: tuple[float, ...]
    cached_tokens: int


@attrs.frozen
class Declined:
    """The model refuses this branch."""

    cached_tokens: int


class PrefixCache:
    """The KV cache of one worker: blocks known by all that stands before them, least used first.

    A block goes before its parent does, because using a prefix touches its end first; so what is
    cached of a prompt always is a prefix of it.
    """

    def __init__(self, capacity_blocks: int, block_size: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._block_size = block_size
        self._blocks: dict[bytes, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._blocks)

    def chain(self, tokens: Sequence[int], salt: str) -> list[bytes]:
        """Names of the full blocks of a prompt, each depending on all before it. O(tokens)."""
        name, names = blake2b(salt.encode(), digest_size=16).digest(), []
        ends = range(0, len(tokens) + 1, self._block_size)
        for start, end in pairwise(ends):
            block = b"".join(token.to_bytes(4, "big") for token in tokens[start:end])
            name = blake2b(name + block, digest_size=16).digest()
            names.append(name)
        return names

    def cached_tokens(self, chain: Sequence[bytes]) -> int:
        """How much of a prompt need not be computed."""
        found = next((i for i, name in enumerate(chain) if name not in self._blocks), len(chain))
        return found * self._block_size

    def keep(self, chain: Sequence[bytes]) -> None:
        """Hold a computed prompt, at the cost of what was used least recently."""
        for name in reversed(chain):
            self._blocks.pop(name, None)
            self._blocks[name] = None
        while len(self._blocks) > self._capacity_blocks:
            del self._blocks[next(iter(self._blocks))]


class SimulatedWorker:
    """Scores branches. Log probabilities depend on the model, the prompt and the label, only."""

    def __init__(self, model: str, behaviour: Behaviour, cache: PrefixCache) -> None:
        self._model = model
        self._behaviour = behaviour
        self._cache = cache

    async def score(
        self, ordinal: int, tokens: Sequence[int], labels: Sequence[int], salt: str
    ) -> Scored | Declined:
        """Prefill one branch and read its labels.

        Raises:
            WorkerBusy: This model's workers have no capacity.
            RuntimeError: They crash.

        Always a checkpoint.
        """
        if self._behaviour.busy:
            raise WorkerBusy
        if self._behaviour.crash:
            raise RuntimeError(f"{self._model} crashed")
        chain = self._cache.chain(tokens, salt)
        cached_tokens = self._cache.cached_tokens(chain)
        await self._compute()
        self._cache.keep(chain)
        if self._behaviour.refuse and ordinal % 2 == 0:
            return Declined(cached_tokens)
        if self._behaviour.bad and ordinal >= 1:
            return Scored((1.0,) * len(labels), cached_tokens)
        if self._behaviour.impossible:
            labels = labels[1:]
        return Scored(self._logprobs(tokens, labels), cached_tokens)

    async def _compute(self) -> None:
        try:
            await trio.sleep(self._behaviour.latency)
        except trio.Cancelled:
            with trio.CancelScope(shield=True, relative_deadline=self._behaviour.stubborn):
                await trio.sleep_forever()
            raise

    def _logprobs(self, tokens: Sequence[int], labels: Sequence[int]) -> tuple[float, ...]:
        prompt = b"".join(token.to_bytes(4, "big") for token in tokens)
        state = blake2b(prompt, digest_size=16, person=self._model.encode()[:16]).digest()
        logits = [0.0 if self._behaviour.tie else 4.0 * _draw(state, label) for label in labels]
        # All the other tokens of the vocabulary together: 1 to 5 percent of the labels' mass.
        labelled = math.fsum(math.exp(logit) for logit in logits)
        whole = math.log(labelled * (1.01 + 0.04 * _draw(state, 0)))
        return tuple(logit - whole for logit in logits)


def _draw(state: bytes, label: int) -> float:
    digest = blake2b(state + label.to_bytes(4, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
