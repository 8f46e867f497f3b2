"""The published encodings as msgspec reads them: nothing is interpreted here.

Whether an event is a map or an array depends on the engine's release, and each shape has a decoder
of its own, since msgspec refuses a union of the two. Unknown fields and further slots are ignored.
"""

from typing import Any

import msgspec


class ListBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class MapBatch(msgspec.Struct, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class MapStored(msgspec.Struct, tag_field="type", tag="BlockStored", gc=False):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    cache_salt: str | None = None
    mm_keys: Any = None


class MapRemoved(msgspec.Struct, tag_field="type", tag="BlockRemoved", gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class MapCleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", gc=False):
    pass


class ListStored(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None = None
    medium: Any = None
    # What stands in these slots changed between releases; `_tail` tells by type.
    seventh: Any = None
    eighth: Any = None
    ninth: Any = None
    tenth: Any = None
    eleventh: Any = None
    locality: Any = None


class ListRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class ListCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class Maps(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[MapStored | MapRemoved | MapCleared]
    data_parallel_rank: int | None = None


class Lists(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[ListStored | ListRemoved | ListCleared]
    data_parallel_rank: int | None = None


list_batch = msgspec.msgpack.Decoder(ListBatch)
map_batch = msgspec.msgpack.Decoder(MapBatch)
map_event = msgspec.msgpack.Decoder(MapStored | MapRemoved | MapCleared)
list_event = msgspec.msgpack.Decoder(ListStored | ListRemoved | ListCleared)
well_formed: tuple[Any, ...] = (msgspec.msgpack.Decoder(Maps), msgspec.msgpack.Decoder(Lists))
integers = msgspec.msgpack.Decoder(list[int])
pairs = msgspec.msgpack.Decoder(list[tuple[int, int]])
