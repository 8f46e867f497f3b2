"""The recorded frames, and batches made by hand."""

import base64
import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvlanes.engine.feeds._decode import read_tokens
from kvlanes.engine.feeds._events import Stored
from kvlanes.engine.feeds._frames import Frame

DATA = Path(__file__).parents[1] / "data" / "feeds"
RECORDED = sorted(path.stem for path in DATA.glob("*.jsonl"))


def recorded(name: str, kind: str = "live") -> list[list[bytes]]:
    """The raw messages of one recording."""
    rows = (json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines())
    return [
        [base64.b64decode(frame) for frame in row["frames"]] for row in rows if row["kind"] == kind
    ]


def packed(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def payload(*events: Any, ts: float = 1.0, rank: int | None = 0) -> bytes:
    """A batch with positional envelope; events in whatever shape they are given."""
    return msgspec.msgpack.encode([ts, list(events), rank])


def frame(sequence: int, *events: Any, ts: float | None = None, incarnation: bytes = b"") -> Frame:
    """A batch as it comes; its time stamp is its number unless told otherwise."""
    stamp = float(sequence) if ts is None else ts
    return Frame(b"", sequence, incarnation, payload(*events, ts=stamp))


def store(
    hashes: Iterable[int | bytes],
    tokens: Iterable[int],
    parent: int | bytes | None = None,
    block_size: int = 4,
    **fields: Any,
) -> dict[str, Any]:
    """A store in the map form."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        **fields,
    }


def remove(*hashes: int | bytes, **fields: Any) -> dict[str, Any]:
    """A removal in the map form."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **fields}


CLEARED = {"type": "AllBlocksCleared"}


def plain(events: Iterable[Any]) -> Iterator[Any]:
    """Canonical events with their tokens read, so that they compare."""
    for event in events:
        if isinstance(event, Stored):
            tokens: array[int] = read_tokens(event.tokens)[0]
            yield msgspec.structs.replace(event, tokens=list(tokens))
        else:
            yield event
