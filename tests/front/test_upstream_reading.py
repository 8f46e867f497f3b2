"""What engines say is read to the letter: an answer that does not fit its protocol has a name."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.server.upstream_address import name_of, worker_url
from examples.server.upstream_native import checked, forwarded
from examples.server.upstream_scoring import (
    SglangGenerate,
    UpstreamMalformed,
    UsageHidden,
    VllmCompletions,
)
from examples.server.upstream_tokens import file_tokenizer
from kvlanes.engine import ConfigError
from kvlanes.engine.decisions import Contract, DecisionError, DecisionLimits, parse_decision

DECISIONS: dict[str, Any] = {
    "model": "m",
    "input": "x",
    "questions": [
        {"type": "predicate", "instructions": "?"},
        {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "b"}]},
    ],
}
ANSWERS: dict[str, Any] = {
    "model": "theirs",
    "answers": [
        {"type": "predicate", "name": None, "probability": 0.25},
        {
            "type": "choice",
            "name": None,
            "choice": "a",
            "confidence": 0.5,
            "probabilities": [
                {"value": "a", "probability": 0.75},
                {"value": "b", "probability": 0.25},
            ],
        },
    ],
    "usage": {"input_tokens": 40, "input_tokens_details": {"cached_tokens": 10}},
}


def verdict(change: Any) -> str:
    """The code that an answer gets after a change to it."""
    given = json.loads(json.dumps(ANSWERS))
    changed = change(given)
    given = changed if changed == [1] else given
    decision = parse_decision(Contract.DECISIONS, json.dumps(DECISIONS).encode(), DecisionLimits())
    try:
        checked(decision, "ours", json.dumps(given).encode())
    except DecisionError as error:
        return error.fault.message
    return "sound"


def test_a_sound_answer_passes_under_our_name_with_its_measured_share() -> None:
    decision = parse_decision(Contract.DECISIONS, json.dumps(DECISIONS).encode(), DecisionLimits())
    found = checked(decision, "ours", json.dumps(ANSWERS).encode())
    assert json.loads(found.reply.body) == ANSWERS | {"model": "ours"}
    assert found.cached_share == 0.25


MALFORMED = "worker result is malformed"
IMPOSSIBLE = "worker result is impossible"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a["answers"].pop(), MALFORMED),
        (lambda a: a.update(answers={}), MALFORMED),
        (lambda a: a["answers"][0].update(type="score"), MALFORMED),
        (lambda a: a["answers"][0].update(probability="0.2"), MALFORMED),
        (lambda a: a["answers"][0].update(probability=True), MALFORMED),
        (lambda a: a["answers"][0].update(probability=1.5), IMPOSSIBLE),
        (lambda a: a["answers"][1]["probabilities"].pop(), IMPOSSIBLE),
        (lambda a: a["answers"][1]["probabilities"][0].update(probability=0.9), IMPOSSIBLE),
        (lambda a: a["answers"][1].update(probabilities=None), MALFORMED),
        (lambda a: a.update(usage=None), MALFORMED),
        (lambda a: a["usage"].update(input_tokens=5), IMPOSSIBLE),
        (lambda a: a["usage"].update(input_tokens_details=None), IMPOSSIBLE),
        (lambda a: a["answers"].__setitem__(0, {"type": "refusal", "name": None}), "sound"),
        (lambda a: a["answers"][1]["probabilities"][0].update(probability=0.755), "sound"),
        (lambda a: [1], MALFORMED),
    ],
)
def test_an_unsound_answer_is_refused_by_name(change: Any, message: str) -> None:
    assert verdict(change) == message


def test_a_forwarded_request_keeps_every_field_but_the_model() -> None:
    fields = {"model": "alias", "input": "x", "safety_identifier": "s"}
    sent = json.loads(forwarded(fields, "theirs", "salt"))
    assert sent == fields | {"model": "theirs", "cache_salt": "salt"}
    assert "cache_salt" not in json.loads(forwarded(fields, "theirs", ""))


def usage(cached: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}


def chunk(top: Any) -> dict[str, Any]:
    return {"choices": [{"logprobs": {"top_logprobs": [top]}}]}


def test_vllm_labels_are_read_by_token_id_from_the_first_chunk() -> None:
    events: Any = [chunk({"token_id:7": -0.5, "token_id:9": -1.5}), chunk({}), usage(32)]
    scored = VllmCompletions().read(events, [9, 7])
    assert scored.logprobs == (-1.5, -0.5)
    assert scored.cached_tokens == 32


@pytest.mark.parametrize(
    "events",
    [
        [],
        [chunk({"yes": -0.5}), usage(0)],
        [chunk({"token_id:7": "low"}), usage(0)],
        [chunk(None), usage(0)],
        [{"error": {"message": "no"}}],
        ["text"],
    ],
)
def test_a_vllm_stream_without_its_labels_is_malformed(events: Any) -> None:
    with pytest.raises(UpstreamMalformed):
        VllmCompletions().read(events, [7])


@pytest.mark.parametrize("cached", [None, True, "0"])
def test_an_engine_that_hides_its_usage_is_told_what_to_do(cached: Any) -> None:
    events: Any = [chunk({"token_id:7": -0.5}), usage(cached)]
    with pytest.raises(UsageHidden, match="enable-prompt-tokens-details"):
        VllmCompletions().read(events, [7])


def test_sglang_labels_are_read_from_the_last_event() -> None:
    rows = [[-0.5, 7, None], [-1.5, 9, None]]
    early: Any = {"meta_info": {"cached_tokens": 0}}
    last: Any = {"meta_info": {"cached_tokens": 3, "output_token_ids_logprobs": [rows]}}
    scored = SglangGenerate().read([early, last], [9, 7])
    assert (scored.logprobs, scored.cached_tokens) == ((-1.5, -0.5), 3)
    for events in ([], [early], [last, early]):
        with pytest.raises(UpstreamMalformed):
            SglangGenerate().read(events, [7])
    with pytest.raises(UpstreamMalformed):
        SglangGenerate().read([last], [8])


@pytest.mark.parametrize("text", ["http://h:1", "http://h:1/", "http://h:1/v1", "https://[::1]:80"])
def test_an_address_is_a_scheme_and_a_host(text: str) -> None:
    assert worker_url(text).startswith(("http://h:1", "https://[::1]:80"))
    assert name_of(worker_url(text)) in ("h:1", "[::1]:80")


@pytest.mark.parametrize(
    "text",
    ["h:1", "ftp://h", "http://", "http://u:p@h", "http://h/x", "http://h?a=1", "http://h#a"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="http"):
        worker_url(text)


def test_a_tokenizer_file_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        file_tokenizer(Path("t.json"))


def test_a_file_tokenizes_prompts_with_special_tokens_and_labels_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(text: str, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(ids=[1, 2] if add_special_tokens else [2])

    def from_file(path: str) -> SimpleNamespace:
        if path == "broken.json":
            raise Exception("no tokenizer")
        return SimpleNamespace(encode=encode)

    library = SimpleNamespace(Tokenizer=SimpleNamespace(from_file=from_file))
    monkeypatch.setitem(sys.modules, "tokenizers", library)
    tokenize = file_tokenizer(Path("t.json"))
    assert (tokenize("Input:\n"), tokenize("yes")) == ([1, 2], [2])
    with pytest.raises(ConfigError, match=r"broken\.json"):
        file_tokenizer(Path("broken.json"))
