"""Batches of every published encoding to canonical events. No I/O; needs msgspec.

A batch that is all well formed is read in one go. If that fails, in two steps: the envelope keeps
each event encoded, then each event is read alone, so an event that cannot be read costs neither
its siblings nor the stream.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from kvlanes.engine.feeds._errors import TokensUnreadable
from kvlanes.engine.feeds._events import (
    Batch,
    Cleared,
    Event,
    ExtraKeys,
    Removed,
    Stored,
    Unknown,
    Unreadable,
)
from kvlanes.engine.feeds._wire import (
    ListBatch,
    ListRemoved,
    ListStored,
    MapBatch,
    MapRemoved,
    MapStored,
    integers,
    list_batch,
    list_event,
    map_batch,
    map_event,
    pairs,
    well_formed,
)
from kvlanes.indexer import EngineHashInvalid, engine_hash

_MASK = (1 << 64) - 1
_NO_EXTRA: tuple[None, ExtraKeys] = (None, ())


def decode(payload: bytes, limit_hashes: int = 65_536) -> Batch:
    """Read one batch; never raises, whatever the bytes are.

    Args:
        payload: The last frame of a message.
        limit_hashes: Hashes that one event may name; a larger one is `Unreadable`.

    Returns:
        The batch. A payload that is no batch has a single `Unreadable` event.

    Cost: O(bytes), without the token ids. Never a checkpoint.
    """
    for decoder in well_formed:
        try:
            whole = decoder.decode(payload)
            if len(payload) > limit_hashes:  # else no event can name so many
                _require_few(whole.events, limit_hashes)
            events = [_canonical(event) for event in _joined(whole.events)]
        except (msgspec.MsgspecError, UnicodeError, EngineHashInvalid):
            continue
        return Batch(whole.ts, events, whole.data_parallel_rank)
    return _decode_each(payload, limit_hashes)


def _joined(given: list[Any]) -> list[Any]:
    """Make removals that follow each other one: engines announce them block by block."""
    if len(given) == 1:
        return given
    joined: list[Any] = []
    run: list[int | bytes] | None = None
    medium = group = locality = None
    for event in given:
        kind = type(event)
        if kind is not MapRemoved and kind is not ListRemoved:
            run = None
        elif (
            run is not None
            and event.medium == medium
            and event.group_idx == group
            and event.locality == locality
        ):
            run += event.block_hashes
            continue
        else:
            run, medium = event.block_hashes, event.medium
            group, locality = event.group_idx, event.locality
        joined.append(event)
    return joined


def _require_few(events: Sequence[Any], limit_hashes: int) -> None:
    """Refuse an event that names more hashes than one may."""
    for event in events:
        count = len(getattr(event, "block_hashes", ()))
        if count > limit_hashes:
            raise msgspec.ValidationError(f"{count} hashes, at most {limit_hashes}")


def _decode_each(payload: bytes, limit_hashes: int) -> Batch:
    """The second way: something in the batch is odd."""
    try:
        envelope = _envelope(payload)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return Batch(0.0, [Unreadable(f"no batch: {error}")])
    events = [_event(raw, limit_hashes) for raw in envelope.events]
    return Batch(envelope.ts, events, envelope.data_parallel_rank)


def named_rank(payload: bytes) -> int | None:
    """The rank that a batch names, without reading its events; `None` for none or no batch."""
    try:
        return _envelope(payload).data_parallel_rank
    except (msgspec.MsgspecError, UnicodeError):
        return None


def read_tokens(tokens: Any) -> tuple["array[int]", bool]:
    """Read the token ids of a store.

    Returns:
        The ids, and whether the blocks overlap: engines with a draft head that looks one token
        ahead publish pairs, which are windows of one token more than the block.

    Raises:
        TokensUnreadable: Neither integers nor pairs of them, or outside 32 unsigned bits.
    """
    try:
        try:
            return array("I", integers.decode(tokens)), False
        except msgspec.ValidationError:
            couples = pairs.decode(tokens)
            return array("I", [first for first, _ in couples] + [couples[-1][1]]), True
    except (msgspec.MsgspecError, OverflowError) as error:
        raise TokensUnreadable(f"token ids: {error}") from error


def _envelope(payload: bytes) -> ListBatch | MapBatch:
    return list_batch.decode(payload) if _is_array(payload) else map_batch.decode(payload)


def _is_array(data: Any) -> bool:
    first = memoryview(data)[:1].tobytes()
    return b"\x90" <= first <= b"\x9f" or first in (b"\xdc", b"\xdd")


def _event(raw: msgspec.Raw, limit_hashes: int) -> Event:
    try:
        event: Any = (list_event if _is_array(raw) else map_event).decode(raw)
        _require_few([event], limit_hashes)
        return _canonical(event)
    except (msgspec.MsgspecError, UnicodeError, EngineHashInvalid) as error:
        return _unread(raw, str(error))


def _canonical(event: Any) -> Event:
    kind = type(event)
    if kind is MapStored:
        return _map_stored(event, _hashes(event.block_hashes))
    if kind is MapRemoved or kind is ListRemoved:
        medium = _medium(event.medium, event.locality)
        return Removed(_hashes(event.block_hashes), medium, event.group_idx or 0)
    if kind is ListStored:
        return _list_stored(event, _hashes(event.block_hashes))
    return Cleared()


def _unread(raw: msgspec.Raw, reason: str) -> Event:
    """Tell an unknown kind of event, which is ignored, from a known one that is broken."""
    try:
        anything = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return Unreadable(reason)
    if isinstance(anything, dict):
        tag = anything.get("type")
    else:
        tag = anything[0] if isinstance(anything, list) and anything else None
    if not isinstance(tag, str):
        return Unreadable(f"no tagged event: {reason}")
    if tag in ("BlockStored", "BlockRemoved", "AllBlocksCleared"):
        return Unreadable(f"{tag}: {reason}", harmless=tag == "BlockStored")
    return Unknown(tag)


def _hashes(values: list[int | bytes]) -> list[int]:
    try:
        # Most engines send unsigned integers, which are what they are: nothing is made anew.
        if not values or min(values) >= 0:  # type: ignore[operator]
            return values  # type: ignore[return-value]
        return [value & _MASK for value in values]  # type: ignore[operator]
    except TypeError:  # digests
        return [engine_hash(value) for value in values]


def _medium(medium: str | None, locality: str | None) -> str:
    if locality is not None and locality.upper() == "REMOTE":
        return "REMOTE"
    return "GPU" if medium is None or medium == "GPU" else medium.upper()


def _map_stored(event: MapStored, hashes: list[int]) -> Event:
    if event.mm_keys:
        return Unreadable("mm_keys have no published meaning", harmless=True)
    salt, keys = _extra(event.extra_keys, event.lora_name) if event.extra_keys else _NO_EXTRA
    parent = event.parent_block_hash
    return Stored(
        hashes,
        None if parent is None else engine_hash(parent),
        event.token_ids,
        event.block_size,
        _medium(event.medium, event.locality),
        event.group_idx or 0,
        event.kv_cache_spec_kind,
        _adapter(event.lora_name, event.lora_id),
        event.cache_salt or salt,
        keys,
    )


def _list_stored(event: ListStored, hashes: list[int]) -> Event:
    tail = (event.seventh, event.eighth, event.ninth, event.tenth, event.eleventh)
    medium = event.medium if isinstance(event.medium, str) else None
    locality = event.locality if isinstance(event.locality, str) else None
    name, metadata, extra, group, kind = _tail(tail)
    salt, keys = _extra(extra, name) if extra else _NO_EXTRA
    parent = event.parent_block_hash
    return Stored(
        hashes,
        None if parent is None else engine_hash(parent),
        event.token_ids,
        event.block_size,
        _medium(medium, locality),
        group,
        kind,
        _adapter(name, event.lora_id),
        _salt(metadata) or salt,
        keys,
    )


def _tail(
    slots: Sequence[Any],
) -> tuple[str | None, dict[Any, Any], list[Any] | None, int, str | None]:
    """Adapter, metadata, extra keys, group and attention from slots whose order varied."""
    name: str | None = None
    metadata: dict[Any, Any] = {}
    extra: list[Any] | None = None
    for at, slot in enumerate(slots):
        if isinstance(slot, str):
            name = name or slot
        elif isinstance(slot, dict):
            metadata = slot
        elif isinstance(slot, list) and all(key is None or isinstance(key, list) for key in slot):
            extra = slot
        elif isinstance(slot, int):
            after = slots[at + 1] if at + 1 < len(slots) else None
            return name, metadata, extra, slot, after if isinstance(after, str) else None
    return name, metadata, extra, 0, None


def _salt(metadata: dict[Any, Any]) -> str | None:
    value = metadata.get("cache_salt", metadata.get("salt"))
    return value if isinstance(value, str) else None


def _adapter(name: str | None, number: int | None) -> str | None:
    """Old releases number adapters without naming them; such blocks are not the base model's."""
    return name or (None if number is None else f"lora_id:{number}")


def _extra(extra: list[list[Any] | None], adapter: str | None) -> tuple[str | None, ExtraKeys]:
    """Split what vLLM mixes in one list: adapter, salt, multimodal items, digests."""
    if not any(extra):
        return _NO_EXTRA
    salts: list[str] = []
    keys = [_block_keys(entries or (), adapter, salts) for entries in extra]
    return salts[0] if salts else None, tuple(keys) if any(keys) else ()


def _block_keys(entries: Sequence[Any], adapter: str | None, salts: list[str]) -> tuple[Any, ...]:
    keys: list[Any] = []
    for entry in entries:
        if isinstance(entry, (list, tuple)) and entry and isinstance(entry[0], (str, bytes)):
            keys.append(entry[0])  # [item, offset]: the tokens tell where in the block it lies
        elif isinstance(entry, bytes):
            keys.append(entry)
        elif not isinstance(entry, str):
            # Part of an identity that nobody can compute: better no block than a wrong one.
            raise msgspec.ValidationError(f"extra key of type {type(entry).__name__}")
        elif entry != adapter:
            salts.append(entry)
    return tuple(keys)
