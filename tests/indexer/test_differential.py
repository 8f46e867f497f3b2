"""The reference's wheel and ours on the same streams.

Where every removal takes leaves first both must agree. Where removals leave holes ours must be
exact, which the wheel is not: what lies behind a hole is forgotten there, and valid stores under
it are refused. The counts of that are asserted to exist, so that a wheel that mends it is noticed.
"""

import json
import os
import random
from typing import Any

import pytest

from kvlanes.indexer import RadixIndex, Rank, Remove, Store, sequence_hashes
from tests.indexer.chains import packed, prompt
from tests.support.profiles import budget

os.environ.setdefault("DYN_LOG", "error")  # read when the wheel is imported
core = pytest.importorskip("dynamo._core", reason="ai-dynamo-runtime is not installed")

RANKS = 4
Chain = tuple[int, ...]


def name(chain: Chain) -> int:
    return sequence_hashes(packed(chain))[-1]


class Sides:
    """Feeds the wheel, ours and a model: for each rank the set of prefixes that it holds."""

    def __init__(self) -> None:
        self.wheel: Any = core.RadixTree()
        self.index = RadixIndex(16)
        self.held: list[set[Chain]] = [set() for _ in range(RANKS)]
        self.refused = 0

    def store(self, rank: int, chain: Chain, cut: int) -> None:
        """Store `chain[cut:]` under its parent, which this rank holds."""
        named = [name(chain[:depth]) for depth in range(1, len(chain) + 1)]
        parent = named[cut - 1] if cut else None
        rows = [
            {"block_hash": engine, "tokens_hash": block}
            for engine, block in zip(named[cut:], chain[cut:])
        ]
        self._tell(rank, {"stored": {"parent_hash": parent, "blocks": rows}})
        done = self.index.apply(
            Store(Rank(str(rank)), parent, packed(chain[cut:]), named[cut:]), 0.0
        )
        new = {chain[:depth] for depth in range(cut + 1, len(chain) + 1)}
        assert done.applied == len(new - self.held[rank])
        assert not done.missing_parent
        self.held[rank] |= new

    def remove(self, rank: int, chains: list[Chain]) -> None:
        named = [name(chain) for chain in chains]
        self._tell(rank, {"removed": {"block_hashes": named}})
        assert self.index.apply(Remove(Rank(str(rank)), named), 0.0).applied == len(chains)
        self.held[rank] -= set(chains)

    def _tell(self, rank: int, data: dict[str, Any]) -> None:
        event = json.dumps({"event_id": 0, "data": data}).encode()
        try:
            self.wheel.apply_event(rank, event)
        except Exception:
            self.refused += 1

    def scores(self, chain: Chain) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Of the wheel, of ours, and the truth."""
        theirs = self.wheel.find_matches([*chain]).scores
        ours = self.index.overlap(prompt(*chain)).scores()
        truth = {}
        for rank, held in enumerate(self.held):
            depth = 0
            while depth < len(chain) and chain[: depth + 1] in held:
                depth += 1
            if depth:
                truth[rank] = depth
        return (
            {rank: depth for (rank, _), depth in theirs.items()},
            {int(rank.worker_id): depth for rank, depth in ours.items()},
            truth,
        )


def drive(seed: int, *, leaf_first: bool) -> tuple[Sides, int, int]:
    """One random stream; questions asked, and how often the wheel was wrong."""
    draw, sides, asked, wrong = random.Random(seed), Sides(), 0, 0
    for _ in range(60):
        rank = draw.randrange(RANKS)
        held = sides.held[rank]
        if held and draw.random() < 0.4:
            chosen = draw.choice(sorted(held))
            if leaf_first:
                below = [chain for chain in held if chain[: len(chosen)] == chosen]
                sides.remove(rank, sorted(below, key=len, reverse=True))
            else:
                sides.remove(rank, [chosen])
        else:
            base = draw.choice([(), *sorted(held)])
            tail = tuple(draw.randrange(1, 4) for _ in range(draw.randint(1, 5)))
            sides.store(rank, base + tail, len(base))
        everything = sorted(set[Chain]().union(*sides.held))
        for _ in range(4):
            question = (*draw.choice([(1,), *everything]), draw.randrange(1, 4))
            theirs, ours, truth = sides.scores(question)
            assert ours == truth
            asked += 1
            wrong += theirs != truth
    sides.index.check()
    return sides, asked, wrong


def test_leaf_first_streams_give_equal_scores() -> None:
    runs = [drive(seed, leaf_first=True) for seed in range(budget(ci=40, deep=1_000))]
    assert sum(asked for _, asked, _ in runs) >= 40 * 240
    assert sum(wrong for _, _, wrong in runs) == 0
    assert sum(sides.refused for sides, _, _ in runs) == 0


def test_streams_with_holes_are_exact_here_and_only_here() -> None:
    runs = [drive(seed, leaf_first=False) for seed in range(budget(ci=40, deep=1_000))]
    wrong = sum(wrong for _, _, wrong in runs)
    refused = sum(sides.refused for sides, _, _ in runs)
    print(f"the wheel: {wrong} of {sum(asked for _, asked, _ in runs)} scores wrong, {refused=}")
    assert wrong > 0
