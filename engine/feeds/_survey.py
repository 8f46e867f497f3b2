"""What a stream is like: its encoding, its blocks, its rate, and what should be set otherwise.

Pure. Slower than following, since it looks at what a follower need not know.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs
import msgspec

from kvlanes.engine.feeds._decode import decode
from kvlanes.engine.feeds._events import Batch, Cleared, Removed, Stored, Unknown, Unreadable
from kvlanes.engine.feeds._frames import Frame

ENGINE_FLAGS = (
    'vLLM: --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\'',
    'SGLang: --kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\'',
)


@attrs.define
class Survey:
    """Facts about one publisher, gathered batch by batch.

    Attributes:
        batches: Batches looked at.
        events: Events by kind.
        shapes: `map` or `positional`, by events.
        names: What block names look like: `digest`, `integer` or `negative integer`.
        sizes: Stored blocks by (group, medium, block size).
        ranks: Data-parallel ranks that batches name.
        topics: Topics seen, at most 16.
        salted: Stores with a salt or an adapter.
        first: The first sequence number seen.
        replay: Batches in the replay; `None` when none was asked for or answered.
        whole: Whether the replay ended as it should.
        seconds: How long live batches were counted.
        live: Live batches in that time.
    """

    batches: int = 0
    events: Counter[str] = attrs.field(factory=Counter)
    shapes: Counter[str] = attrs.field(factory=Counter)
    names: Counter[str] = attrs.field(factory=Counter)
    sizes: Counter[tuple[int, str, int]] = attrs.field(factory=Counter)
    ranks: set[int | None] = attrs.field(factory=set)
    topics: set[str] = attrs.field(factory=set)
    salted: int = 0
    first: int | None = None
    replay: int | None = None
    whole: bool = False
    seconds: float = 0.0
    live: int = 0

    def take(self, frame: Frame) -> None:
        """Look at one batch. O(bytes)."""
        self.batches += 1
        self.first = frame.sequence if self.first is None else self.first
        if len(self.topics) < 16:
            self.topics.add(frame.topic.decode(errors="replace"))
        batch = decode(frame.payload)
        self.ranks.add(batch.dp_rank)
        self._count(batch)
        if batch.readable:
            self._shapes(frame.payload)

    def _count(self, batch: Batch) -> None:
        for event in batch.events:
            self.events[type(event).__name__] += 1
            if isinstance(event, Stored):
                self.sizes[event.group, event.medium, event.block_size] += len(event.hashes)
                self.salted += bool(event.salt or event.adapter)

    def _shapes(self, payload: bytes) -> None:
        envelope = msgspec.msgpack.decode(payload)
        events = envelope["events"] if isinstance(envelope, dict) else envelope[1]
        for event in events:
            self.shapes["map" if isinstance(event, dict) else "positional"] += 1
            hashes = event.get("block_hashes") if isinstance(event, dict) else event[1:2]
            self.names.update(_name_kind(name) for name in _flat(hashes))

    @property
    def block_size(self) -> int | None:
        """The size of most blocks on the device; `None` when none was stored."""
        on_device = {key: count for key, count in self.sizes.items() if key[1] == "GPU"}
        return max(on_device, key=lambda key: on_device[key])[2] if on_device else None

    def report(self, source: str) -> Iterator[str]:
        """Lines for a person."""
        yield f"source      {source}"
        yield f"topics      {', '.join(map(repr, sorted(self.topics))) or 'none seen'}"
        yield f"format      {_listed(self.shapes)} events, {_listed(self.names)} block names"
        yield f"events      {_listed(self.events)}"
        yield f"block size  {self.block_size or 'unknown: no store seen'}"
        for (group, medium, size), blocks in sorted(self.sizes.items()):
            yield f"            group {group}, {medium}: {blocks} blocks of {size} tokens"
        yield f"ranks       {', '.join(map(str, sorted(self.ranks, key=str))) or 'none seen'}"
        yield f"replay      {self._replay()}"
        if self.seconds:
            rate = self.live / self.seconds
            yield f"rate        {rate:.1f} batches/s ({self.live} in {self.seconds:.1f} s)"
        yield from (f"advice      {line}" for line in self.advice())

    def _replay(self) -> str:
        if self.replay is None:
            return "no"
        begin = "" if self.first in (0, None) else f", from batch {self.first} on"
        return f"yes, {self.replay} batches{begin}{'' if self.whole else ', without its end'}"

    def advice(self) -> Iterator[str]:
        """What should be set otherwise, if anything."""
        if not self.batches:
            yield "no batch seen: are the engine's events on, and did it serve a request?"
            yield from ENGINE_FLAGS
        elif self.replay is None:
            yield "no replay: every outage and every lost batch empties the coverage"
            yield from ENGINE_FLAGS
        if self.replay and not self.whole:
            yield "the replay stopped early: raise the engine's send high-water mark or buffer less"
        if self.replay and self.first:
            yield "older batches are gone: coverage stays partial until the cache is next emptied"
        if self.events[Unreadable.__name__] or self.events[Unknown.__name__]:
            yield "some events were not understood; a newer kvlanes may know them"
        if self.sizes and not self.events[Removed.__name__] + self.events[Cleared.__name__]:
            yield "no removal seen yet: normal for a cache that is not full"


def _name_kind(name: Any) -> str:
    if isinstance(name, bytes):
        return "digest"
    return "negative integer" if isinstance(name, int) and name < 0 else "integer"


def _flat(hashes: Any) -> list[Any]:
    if not isinstance(hashes, list):
        return []
    return hashes[0] if hashes and isinstance(hashes[0], list) else hashes


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common()) or "no"
