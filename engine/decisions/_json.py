"""Strict JSON: what two readers could understand differently is refused."""

import json
from typing import NoReturn, TypeAlias

from kvlanes.engine.decisions._errors import INVALID_JSON, DecisionError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_DEPTH = 128


def parse_json(data: bytes) -> Json:
    """The value that `data` holds, when every reader would agree on it.

    Cost: O(bytes), about 20 ns a byte on the calling thread. Never a checkpoint.

    Args:
        data: UTF-8 text of one JSON value, without a byte order mark.

    Raises:
        DecisionError: `INVALID_JSON`: a syntax error, bad UTF-8, a key twice in one object at any
            depth, a number that is not finite (`NaN`, `1e999`), a lone surrogate, more than
            `MAX_DEPTH` levels of nesting.
    """
    try:
        text = data.decode()
        value: Json = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:  # how a lone surrogate gets past UTF-8
            dump_json(value)
    except (ValueError, RecursionError) as error:
        raise DecisionError(INVALID_JSON) from error
    # As deep as that it cannot be without as many brackets; most bodies have fewer.
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper_than(MAX_DEPTH, value):
        raise DecisionError(INVALID_JSON)
    return value


def dump_json(value: Json) -> bytes:
    """Compact UTF-8 text of `value`, keys in their order. Never a checkpoint.

    Raises:
        ValueError: A number that is not finite, or a lone surrogate.
    """
    return compact(value).encode()


def compact(value: Json) -> str:
    """The text of `dump_json`, for prompts."""
    return _ENCODER.encode(value)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is beyond the range of a double")
    return number


def _deeper_than(levels: int, value: Json) -> bool:
    """Level by level, so that no stack depth decides what is accepted."""
    level: list[Json] = [value]
    for _ in range(levels):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _children(value: Json) -> "list[Json]":
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


# `json.loads` and `json.dumps` would make these anew at each call.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
