"""Strict JSON: two readers never understand a body differently."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlanes.engine.decisions import INVALID_JSON, MAX_DEPTH, DecisionError, dump_json, parse_json
from tests.support.profiles import budget

REFUSED = {
    "empty": b"",
    "cut short": b'{"a":',
    "two values": b"{} {}",
    "byte order mark": b"\xef\xbb\xbf{}",
    "bad UTF-8": b'{"a":"\xff"}',
    "surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "single quotes": b"{'a':1}",
    "trailing comma": b"[1,]",
    "duplicate key": b'{"a":1,"a":1}',
    "duplicate key below": b'[{"b":[{"a":1,"a":2}]}]',
    "duplicate key by escape": rb'{"a":1,"\u0061":2}',
    "NaN": b"[NaN]",
    "Infinity": b"[Infinity]",
    "minus Infinity": b"[-Infinity]",
    "beyond a double": b"[1e999]",
    "minus beyond a double": b"[-1e999]",
    "lone high surrogate": rb'["\ud800"]',
    "lone low surrogate": rb'["\uDC00x"]',
    "lone surrogate as key": rb'{"\uDBFF":1}',
    "number of 5,000 digits": b"[" + b"9" * 5000 + b"]",
    "deep array": b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "deeper than any stack": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_ambiguous_json_is_refused(data: bytes) -> None:
    with pytest.raises(DecisionError) as caught:
        parse_json(data)
    assert caught.value.fault is INVALID_JSON


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\\ud800"', r"\ud800"),
        (b"[1e308]", [1e308]),
        (b"[-0.0, 1e-999]", [-0.0, 0.0]),
        (b' {"a":{"a":1},"b":{"a":1}} ', {"a": {"a": 1}, "b": {"a": 1}}),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, None),
    ],
)
def test_unusual_but_sound_json_is_read(data: bytes, value: object) -> None:
    parsed = parse_json(data)
    assert value is None or parsed == value


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(VALUES)
@settings(max_examples=budget(ci=150, deep=5000))
def test_what_is_written_reads_back(value: object) -> None:
    assert parse_json(dump_json(value)) == value  # type: ignore[arg-type]
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary())
@settings(max_examples=budget(ci=200, deep=10_000))
def test_any_bytes_are_read_or_refused_by_name(data: bytes) -> None:
    with suppress(DecisionError):
        parse_json(data)
