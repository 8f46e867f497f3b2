"""What `/v1/decisions` takes and refuses, field by field."""

import json
from typing import Any

import pytest

from kvlanes.engine.decisions import (
    Contract,
    Decision,
    DecisionError,
    DecisionLimits,
    Predicate,
    parse_decision,
)
from tests.decisions import bodies
from tests.decisions.bodies import DELETE, changed

LIMITS = DecisionLimits(questions=4)
INVALID, UNSUPPORTED = "invalid_request_error", "unsupported_capability"


def parse(body: object) -> Decision:
    return parse_decision(Contract.DECISIONS, json.dumps(body).encode(), LIMITS)


def fault(body: object) -> tuple[str, int]:
    with pytest.raises(DecisionError) as caught:
        parse(body)
    return caught.value.fault.code, caught.value.fault.status


def image(**more: object) -> dict[str, object]:
    return {"type": "input_image", "image_url": "https://example.test/a.png", **more}


PREDICATE = {"type": "predicate", "instructions": "Is it so?"}
USER = {"role": "user", "content": "Hello."}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "found"}

REFUSED: dict[str, tuple[str, Any]] = {
    "unknown field": ("temperature", 1),
    "nvext object": ("nvext", {}),
    "nvext null": ("nvext", None),
    "stream": ("stream", False),
    "no model": ("model", DELETE),
    "blank model": ("model", " \t"),
    "null model": ("model", None),
    "model of another type": ("model", 5),
    "no input": ("input", DELETE),
    "null input": ("input", None),
    "empty input array": ("input", []),
    "object input": ("input", {}),
    "text items": ("input", ["a"]),
    "no questions": ("questions", DELETE),
    "empty questions": ("questions", []),
    "one question too many": ("questions", [PREDICATE] * 5),
    "question object": ("questions", {"a": PREDICATE}),
    "question null": ("questions.1", None),
    "unknown question type": ("questions.1.type", "noul"),
    "question type of another type": ("questions.1.type", ["predicate"]),
    "no question type": ("questions.1.type", DELETE),
    "unknown question field": ("questions.1.criteria", None),
    "no instructions": ("questions.1.instructions", DELETE),
    "null instructions": ("questions.1.instructions", None),
    "empty instruction parts": ("questions.1.instructions", []),
    "null name": ("questions.1.name", None),
    "name of another type": ("questions.1.name", 1),
    "no choices": ("questions.0.choices", DELETE),
    "one choice": ("questions.0.choices", [{"value": "a"}]),
    "256 choices": ("questions.0.choices", [{"value": str(i)} for i in range(256)]),
    "number as value": ("questions.0.choices.0.value", 1),
    "null as value": ("questions.0.choices.0.value", None),
    "null description": ("questions.0.choices.0.description", None),
    "unknown choice field": ("questions.0.choices.0.label", "a"),
    "the same string twice": ("questions.0.choices.0.value", "technical"),
    "the same boolean twice": ("questions.0.choices", [{"value": True}, {"value": True}]),
    "one level": ("questions.2.levels", [{"label": "a"}]),
    "11 levels": ("questions.2.levels", [{"label": "a"}] * 11),
    "level without label": ("questions.2.levels.0.label", DELETE),
    "number as label": ("questions.2.levels.0.label", 0),
    "identifier too long": ("safety_identifier", "x" * 129),
    "identifier of another type": ("safety_identifier", 1),
    "cache key of another type": ("prompt_cache_key", 1),
    "unknown cache mode": ("prompt_cache_options", {"mode": "none"}),
    "cache mode of another type": ("prompt_cache_options", {"mode": {}}),
    "unknown cache ttl": ("prompt_cache_options", {"ttl": "60m"}),
    "null cache ttl": ("prompt_cache_options", {"ttl": None}),
    "unknown role": ("input", [{"role": "tool", "content": "a"}]),
    "no role": ("input", [{"content": "a"}]),
    "no content": ("input", [{"role": "user"}]),
    "empty content": ("input", [{"role": "user", "content": []}]),
    "unknown item type": ("input", [{"type": "reasoning"}]),
    "phase on a user": ("input", [{**USER, "phase": "commentary"}]),
    "unknown phase": ("input", [{"role": "assistant", "content": "a", "phase": "x"}]),
    "output text from a user": (
        "input", [{"role": "user", "content": [{"type": "output_text", "text": "a"}]}]
    ),
    "JSON from the system": (
        "input", [{"role": "system", "content": [{"type": "input_json", "data": {}}]}]
    ),
    "JSON text": ("input", [{"role": "user", "content": [{"type": "input_json", "data": "a"}]}]),
    "JSON of numbers": (
        "input", [{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]
    ),
    "unknown breakpoint": (
        "input",
        [{"role": "user", "content": [
            {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "implicit"}}
        ]}],
    ),
    "output before its call": ("input", [RESULT, CALL]),
    "output of the other kind of call": (
        "input", [CALL, {**RESULT, "type": "custom_tool_call_output"}]
    ),
    "unknown status": ("input", [{**CALL, "status": "done"}]),
    "broken image": ("input", [{"role": "user", "content": [{"type": "input_image"}]}]),
}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), REFUSED.values(), ids=REFUSED.keys())
def test_a_broken_body_is_refused(path: str, value: object) -> None:
    assert fault(changed(bodies.decisions(), path, value)) == (INVALID, 400)


@pytest.mark.parametrize("body", [[], "text", None, 5, True])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert fault(body) == (INVALID, 400)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("input", [{"role": "user", "content": [image()]}]),
        ("input", [{"role": "user", "content": [image(detail="low")]}]),
        ("input", [CALL, {**RESULT, "output": [image()]}]),
        ("questions.1.instructions", [image()]),
    ],
)
def test_images_are_unsupported(path: str, value: object) -> None:
    assert fault(changed(bodies.decisions(), path, value)) == (UNSUPPORTED, 400)


def test_a_schema_fault_comes_before_a_missing_capability() -> None:
    body = changed(bodies.decisions(), "input", [{"role": "user", "content": [image()]}])
    assert fault(changed(body, "questions.2.levels", [])) == (INVALID, 400)


MESSAGES = [
    {"type": "message", "role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "input_text", "text": "Judge."}]},
    {"role": "user", "content": [
        {"type": "input_text", "text": "One", "prompt_cache_breakpoint": None},
        {"type": "input_json", "data": {"b": 1, "a": None}},
    ]},
    {"role": "assistant", "phase": "final_answer", "content": [
        {"type": "output_text", "text": "Two"}, {"type": "refusal", "refusal": "No."},
    ]},
    CALL,
    RESULT,
]  # fmt: skip
MARK = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}

ACCEPTED: dict[str, tuple[str, Any]] = {
    "empty input": ("input", ""),
    "every text form": ("input", MESSAGES),
    "a marked prefix": ("input", [{"role": "user", "content": [MARK]}]),
    "empty name": ("questions.1.name", ""),
    "name used twice": ("questions.1.name", "route"),
    "empty instructions": ("questions.1.instructions", ""),
    "instruction parts": (
        "questions.1.instructions",
        [{"type": "input_text", "text": "So?"}, {"type": "input_json", "data": [{"a": 1}]}],
    ),
    "a boolean beside its name": (
        "questions.0.choices", [{"value": True}, {"value": "true"}, {"value": "True"}]
    ),
    "255 choices": ("questions.0.choices", [{"value": str(i)} for i in range(255)]),
    "duplicate labels": ("questions.2.levels", [{"label": "a"}, {"label": "a"}]),
    "10 levels": ("questions.2.levels", [{"label": "a", "description": "b"}] * 10),
    "null identifier": ("safety_identifier", None),
    "longest identifier": ("safety_identifier", "x" * 128),
    "null cache key": ("prompt_cache_key", None),
    "cache options": ("prompt_cache_options", {"mode": None, "ttl": "30m"}),
    "null cache options": ("prompt_cache_options", None),
    "tool calls": ("input", [
        USER,
        {**CALL, "id": "i", "namespace": None, "status": "completed"},
        {**RESULT, "output": [{"type": "input_text", "text": "found"}]},
        {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "y", "status": None},
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_an_unusual_but_sound_body_is_read(path: str, value: object) -> None:
    assert parse(changed(bodies.decisions(), path, value)).model == "mock-fast"


def test_every_text_form_of_input_is_read() -> None:
    assert parse(changed(bodies.decisions(), "input", MESSAGES)).context == (
        "system: Be brief.\n\ndeveloper: Judge.\n\n"
        'user: One\n{"b":1,"a":null}\n\nassistant: Two\nNo.\n\n'
        "call look: {}\n\nresult look: found"
    )


def test_one_user_message_reads_as_its_text() -> None:
    assert parse(changed(bodies.decisions(), "input", [USER])).context == "Hello."


def test_call_ids_stay_out_of_the_context() -> None:
    def context(call_id: str) -> str:
        items = [{**CALL, "call_id": call_id}, {**RESULT, "call_id": call_id}]
        return parse(changed(bodies.decisions(), "input", items)).context

    assert context("c1") == context("another")


def test_explicit_caching_reuses_only_marked_prefixes() -> None:
    body = {**bodies.decisions(), "prompt_cache_options": {"mode": "explicit"}}
    assert not parse(body).reuse
    assert parse({**body, "input": [{"role": "user", "content": [MARK]}]}).reuse
    assert parse(bodies.decisions()).reuse


def test_questions_keep_order_and_names() -> None:
    names = [question.name for question in parse(bodies.decisions()).questions]
    assert names == ["route", None, "severity"]
    assert parse(bodies.decisions()).questions[1] == Predicate(None, "Action is needed today.")


def test_messages_never_echo_the_request() -> None:
    for path, value in REFUSED.values():
        body = changed(bodies.decisions(), path, value)
        with pytest.raises(DecisionError) as caught:
            parse({**body, "secret-key": "secret-value"} if path != "temperature" else body)
        assert "secret" not in caught.value.fault.message
        assert "temperature" not in caught.value.fault.message
