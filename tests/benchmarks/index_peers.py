"""What the index is measured beside: the reference's wheel, and the trie that anybody writes."""

import json
import os
from collections.abc import Sequence
from typing import Any

# The wheel reads its log level when it is imported.
os.environ.setdefault("DYN_LOG", "error")

try:
    import dynamo._core as core
except ImportError:
    MAKE: Any = None
else:
    MAKE = core.RadixTree


def event(chain: Sequence[int]) -> bytes:
    """A root store as the wheel takes it; a block hash doubles as the engine's name."""
    blocks = [{"block_hash": block, "tokens_hash": block} for block in chain]
    stored = {"stored": {"parent_hash": None, "blocks": blocks}}
    return json.dumps({"event_id": 0, "data": stored}).encode()


def wheel() -> Any:
    """A fresh `RadixTree`."""
    if MAKE is None:
        raise SystemExit("ai-dynamo-runtime is not installed: pip install 'kvlanes[peers]'")
    return MAKE()


class Trie:
    """A node a block, a dictionary of children and a set of workers in each. No leases."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: dict[int, Any] = {}

    def store(self, worker: int, chain: Sequence[int]) -> None:
        children = self.root
        for block in chain:
            node = children.get(block)
            if node is None:
                node = children[block] = ({}, set[int]())
            node[1].add(worker)
            children = node[0]

    def find(self, chain: Sequence[int]) -> dict[int, int]:
        scores: dict[int, int] = {}
        children = self.root
        active: set[int] | None = None
        for depth, block in enumerate(chain):
            node = children.get(block)
            if node is None:
                break
            still = node[1] if active is None else active & node[1]
            if active is not None and len(still) < len(active):
                scores.update(dict.fromkeys(active - still, depth))
            active = still
            if not active:
                return scores
            children = node[0]
        else:
            depth = len(chain)
        return scores | dict.fromkeys(active or (), depth)
