"""Block identity against the published vectors, across processes, and at its edges."""

import copy
import json
import os
import pickle
import struct
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlanes.indexer import (
    BlockSizeInvalid,
    EngineHashInvalid,
    IndexerError,
    MultimodalInvalid,
    PackedLengthInvalid,
    Prompt,
    TokenOutOfRange,
    TokensInvalid,
    block_hashes,
    engine_hash,
    multimodal_key,
    sequence_hashes,
)
from tests.support.profiles import budget

DATA = json.loads((Path(__file__).parents[1] / "data" / "hash_vectors.json").read_text())
VECTORS = DATA["vectors"]
REFUSED = {
    "zero_block_size": BlockSizeInvalid,
    "negative_token": TokenOutOfRange,
    "token_too_big": TokenOutOfRange,
    # The wheel wants an object with offsets a key; a key of ours is a plain integer.
    "mm_missing_offsets_key": MultimodalInvalid,
}


def unpack(blocks: bytes) -> list[int]:
    return [value for (value,) in struct.iter_unpack(">Q", blocks)]


def keys_of(info: Any) -> Any:
    if info is None:
        return None
    return [item["mm_hash"] if "offsets" in item else item for item in info["mm_objects"]]


def prompt_of(vector: dict[str, Any]) -> Prompt:
    infos = vector["block_mm_infos"]
    return Prompt(
        vector["tokens"],
        vector["block_size"],
        adapter=vector["lora_name"],
        namespace=vector["cache_namespace"],
        multimodal=None if infos is None else [keys_of(info) for info in infos],
        overlapping=bool(vector["is_eagle"]),
    )


def test_all_published_vectors_are_here() -> None:
    assert len(VECTORS) == 47
    assert {v["name"] for v in VECTORS if "wheel_error" in v} == set(REFUSED)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vector(vector: dict[str, Any]) -> None:
    if vector["name"] in REFUSED:
        with pytest.raises(REFUSED[vector["name"]]):
            prompt_of(vector)
        return
    prompt = prompt_of(vector)
    assert unpack(prompt.blocks) == [int(text) for text in vector["local_block_hashes"]]
    assert list(prompt.sequence_hashes) == [int(text) for text in vector["sequence_hashes"]]
    assert len(prompt) == len(vector["local_block_hashes"])
    assert prompt.token_count == len(vector["tokens"])


@pytest.mark.parametrize("chain", DATA["chains"], ids=str)
def test_chain_vector(chain: dict[str, Any]) -> None:
    local = [int(text) for text in chain["local_block_hashes"]]
    chained = sequence_hashes(struct.pack(f">{len(local)}Q", *local))
    assert list(chained) == [int(text) for text in chain["sequence_hashes"]]


def test_multimodal_key_vectors() -> None:
    for row in DATA["mm_helpers"]["identifier_hash"]:
        expected = None if row["hash"] is None else int(row["hash"])
        assert multimodal_key(row["identifier"]) == expected


# P21: an independent statement of the formula, which would notice a changed constant.


def reference(tokens: list[int], size: int, adapter: str, namespace: str, seed: int) -> list[int]:
    if adapter:
        seed += xxhash.xxh3_64_intdigest(adapter.encode(), seed=0)
    if namespace:
        seed += xxhash.xxh3_64_intdigest(namespace.encode(), seed=1)
    out = []
    for start in range(0, len(tokens) - size + 1, size):
        window = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + size])
        out.append(xxhash.xxh3_64_intdigest(window, seed=seed % 2**64))
    return out


token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@settings(max_examples=budget(ci=200, deep=5_000))
@given(token_lists, st.integers(1, 9), st.sampled_from(["", "a", "é"]), st.sampled_from(["", "t"]))
def test_independent_formula_agrees(
    tokens: list[int], size: int, adapter: str, namespace: str
) -> None:
    blocks = block_hashes(tokens, size, adapter=adapter, namespace=namespace)
    assert unpack(blocks) == reference(tokens, size, adapter, namespace, 1337)
    if len(tokens) >= size:
        assert unpack(blocks) != reference(tokens, size, adapter, namespace, 1338)


FORMS: list[Callable[[list[int]], Any]] = [
    tuple,
    lambda tokens: array("I", tokens),
    lambda tokens: np.array(tokens, dtype=np.uint32),
    lambda tokens: np.array([t for t in tokens for _ in (0, 1)], dtype=np.uint32)[::2],
    lambda tokens: memoryview(array("I", tokens)),
]


@given(token_lists)
def test_every_form_of_tokens_is_the_same_prompt(tokens: list[int]) -> None:
    for form in FORMS:
        assert Prompt(form(tokens), 3) == Prompt(tokens, 3)
        assert Prompt(form(tokens), 3).token_count == len(tokens)


def test_any_sequence_of_integers_will_do() -> None:
    assert Prompt(range(20), 4) == Prompt(list(range(20)), 4)


@pytest.mark.parametrize("tokens", [b"\1\0\0\0", bytearray(4), "text"])
def test_raw_bytes_and_text_are_refused_by_name(tokens: Any) -> None:
    with pytest.raises(TokensInvalid, match=f"{type(tokens).__name__} could mean"):
        Prompt(tokens, 1)


@pytest.mark.parametrize(
    ("tokens", "numbers"),
    [
        (memoryview(b"\1\0\0\0"), "1 of 1 bytes with format 'B'"),
        (array("i", [1]), "1 of 4 bytes with format 'i'"),
        (array("Q", [1]), "1 of 8 bytes with format 'Q'"),
        (np.zeros((2, 2), dtype=np.uint32), "2 of 4 bytes"),
        (np.zeros(2, dtype=">u4"), "format '>I'"),
        ([1.5], "list as tokens"),
        ([None], "list as tokens"),
        (5, "int as tokens"),
        (object(), "object as tokens"),
    ],
)
def test_other_buffers_and_objects_are_refused_with_numbers(tokens: Any, numbers: str) -> None:
    with pytest.raises(TokensInvalid, match=numbers):
        Prompt(tokens, 1)


@pytest.mark.parametrize("token", [-1, 2**32, 2**70])
def test_token_out_of_range_names_value_and_position(token: int) -> None:
    with pytest.raises(TokenOutOfRange, match=f"token {token} at position 2") as caught:
        Prompt([1, 2, token], 4)
    assert (caught.value.token, caught.value.position) == (token, 2)
    with pytest.raises(TokensInvalid, match="only once"):
        Prompt((value for value in [1, token]), 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("block_size", [0, -16, True, 16.0, None, "16"])
def test_bad_block_size_is_refused(block_size: Any) -> None:
    with pytest.raises(BlockSizeInvalid, match=str(block_size)):
        Prompt([1], block_size)
    with pytest.raises(BlockSizeInvalid):
        Prompt.from_blocks(b"", block_size)


def test_errors_have_one_base() -> None:
    for error in (BlockSizeInvalid, TokensInvalid, TokenOutOfRange, MultimodalInvalid):
        assert issubclass(error, IndexerError)


def test_incomplete_last_block_is_dropped() -> None:
    # P22: 33 tokens in blocks of 16 are two blocks and a tail of one.
    prompt = Prompt(list(range(33)), 16)
    assert (len(prompt), prompt.token_count) == (2, 33)
    assert prompt == Prompt(list(range(32)), 16)


def test_block_size_one_with_repeated_tokens() -> None:
    # P79: four blocks of equal content are four places in the prompt.
    prompt = Prompt([5, 5, 5, 5], 1)
    assert len(set(unpack(prompt.blocks))) == 1
    assert len(set(prompt.sequence_hashes)) == 4


def test_multimodal_keys_have_no_order_but_do_count() -> None:
    tokens = list(range(8))
    assert Prompt(tokens, 4, multimodal=[{9, 5}]) == Prompt(tokens, 4, multimodal=[[5, 9], None])
    assert Prompt(tokens, 4, multimodal=[[5, 5]]) != Prompt(tokens, 4, multimodal=[[5]])
    assert Prompt(tokens, 4, multimodal=[]) == Prompt(tokens, 4)
    # The entry of the incomplete last block is allowed and drops with it.
    assert Prompt([*tokens, 8], 4, multimodal=[None, None, [1]]) == Prompt(tokens, 4)


@pytest.mark.parametrize(
    ("multimodal", "numbers"),
    [([None] * 3, "3 entries for 2"), ([[-1]], "block 0"), ([None, [2**64]], "block 1")],
)
def test_bad_multimodal_keys_are_refused(multimodal: Any, numbers: str) -> None:
    with pytest.raises(MultimodalInvalid, match=numbers):
        Prompt(list(range(8)), 4, multimodal=multimodal)


def test_adapters_and_tenants_never_share_a_block() -> None:
    # P19, the identity part: four disjoint coverages, in whatever order adapters were loaded.
    tokens = list(range(16))
    salted = [
        Prompt(tokens, 4),
        Prompt(tokens, 4, adapter="a"),
        Prompt(tokens, 4, adapter="b"),
        Prompt(tokens, 4, namespace="s"),
        Prompt(tokens, 4, adapter="a", namespace="s"),
        Prompt(tokens, 4, adapter="s", namespace="a"),
    ]
    hashes = [value for prompt in salted for value in unpack(prompt.blocks)]
    assert len(set(hashes)) == len(hashes)
    assert Prompt(tokens, 4, adapter="", namespace="") == salted[0]
    assert Prompt(tokens, 4, adapter="a") == salted[1]


def test_hashes_are_the_same_in_every_process() -> None:
    # P18: built-in hash() is salted anew in each interpreter; nothing of it may show here.
    program = (
        "from kvlanes.indexer import Prompt\n"
        "p = Prompt(list(range(64)), 16, adapter='a', namespace='t', multimodal=[{3, 1, 2}])\n"
        "print(p.blocks.hex(), p.sequence_hashes)"
    )

    def output(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    here = Prompt(list(range(64)), 16, adapter="a", namespace="t", multimodal=[{3, 1, 2}])
    expected = f"{here.blocks.hex()} {here.sequence_hashes}\n"
    assert {output("0"), output("1"), output("random")} == {expected}


def test_prompt_is_immutable() -> None:
    prompt = Prompt([1, 2, 3, 4], 2)
    for name in ("blocks", "block_size", "token_count", "other"):
        with pytest.raises(AttributeError, match=name):
            setattr(prompt, name, b"")
        with pytest.raises(AttributeError, match=name):
            delattr(prompt, name)
    assert not hasattr(prompt, "__dict__")
    assert prompt.sequence_hashes is prompt.sequence_hashes


def test_equality_is_block_size_and_blocks() -> None:
    assert Prompt([1, 2, 3], 2) == Prompt([1, 2, 4], 2)
    assert hash(Prompt([1, 2, 3], 2)) == hash(Prompt([1, 2, 4], 2))
    assert Prompt([1], 2) != Prompt([1], 3)  # both without a block
    assert Prompt([1, 2], 2) != "something else"
    assert "3 tokens, 1 blocks of 2" in repr(Prompt([1, 2, 3], 2))


def test_copies_are_equal() -> None:
    prompt = Prompt(list(range(9)), 4, adapter="a")
    for twin in (copy.copy(prompt), copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt))):
        assert twin == prompt
        assert twin.token_count == 9


def test_text_counts_code_points() -> None:
    text = "naïve 😀 \ud800"
    assert Prompt.from_text(text, 2) == Prompt([ord(letter) for letter in text], 2)
    assert Prompt.from_text(text, 2).token_count == len(text)
    assert Prompt.from_text(text, 2, namespace="t") != Prompt.from_text(text, 2)


def test_prompt_from_known_blocks() -> None:
    prompt = Prompt(list(range(11)), 4)
    assert Prompt.from_blocks(prompt.blocks, 4) == prompt
    assert Prompt.from_blocks(prompt.blocks, 4).token_count == 8
    assert Prompt.from_blocks(prompt.blocks, 4, 11).token_count == 11
    with pytest.raises(TokensInvalid, match="2 blocks of 4 do not come from 13"):
        Prompt.from_blocks(prompt.blocks, 4, 13)
    with pytest.raises(PackedLengthInvalid, match="got 7 bytes"):
        Prompt.from_blocks(b"1234567", 4)
    with pytest.raises(PackedLengthInvalid, match="got 9 bytes"):
        sequence_hashes(b"123456789")


def test_engine_hash_is_unsigned_whatever_the_engine_says() -> None:
    assert engine_hash(5) == 5
    assert engine_hash(-1) == 2**64 - 1
    assert engine_hash(2**64 - 1) == 2**64 - 1
    assert engine_hash((7).to_bytes(8, "big")) == 7
    # A sha256 digest: its last 8 bytes, as vLLM does when it publishes integers.
    assert engine_hash(bytes(31) + b"\x09") == 9


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, b"1234567", 1.0, None, "7"])
def test_other_engine_hashes_are_refused(value: Any) -> None:
    with pytest.raises(EngineHashInvalid, match="64-bit"):
        engine_hash(value)
