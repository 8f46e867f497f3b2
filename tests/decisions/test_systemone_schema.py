"""What `/v1/systemone` takes and refuses, field by field."""

import json
from typing import Any

import pytest

from kvlanes.engine.decisions import (
    Choice,
    Contract,
    Decision,
    DecisionError,
    DecisionLimits,
    Level,
    Option,
    Predicate,
    Score,
    parse_decision,
)
from tests.decisions import bodies
from tests.decisions.bodies import DELETE, changed

LIMITS = DecisionLimits(questions=4)
INVALID, UNSUPPORTED = "invalid_request_error", "unsupported_capability"
NOUL = {"type": "noul", "instructions": "Is it so?"}


def parse(body: object) -> Decision:
    return parse_decision(Contract.SYSTEMONE, json.dumps(body).encode(), LIMITS)


def fault(body: object) -> tuple[str, int]:
    with pytest.raises(DecisionError) as caught:
        parse(body)
    return caught.value.fault.code, caught.value.fault.systemone_status


REFUSED: dict[str, tuple[str, Any]] = {
    "unknown field": ("temperature", 1),
    "nvext": ("nvext", None),
    "stream": ("stream", True),
    "no model": ("model", DELETE),
    "blank model": ("model", ""),
    "no state": ("state", DELETE),
    "null state": ("state", None),
    "number state": ("state", 1),
    "boolean state": ("state", True),
    "no questions": ("questions", {}),
    "question array": ("questions", [NOUL]),
    "one question too many": ("questions", {str(i): NOUL for i in range(5)}),
    "unknown type": ("questions.urgent.type", "predicate"),
    "unknown field of a noul": ("questions.urgent.name", "a"),
    "noul says nothing": ("questions.urgent.instructions", DELETE),
    "noul says null": ("questions.urgent.instructions", None),
    "noul says space": ("questions.urgent.instructions", " \n"),
    "noul says an empty object": ("questions.urgent.instructions", {}),
    "noul says an empty array": ("questions.urgent.instructions", []),
    "noul instructions number": ("questions.urgent.instructions", 3),
    "noul criteria array": ("questions.urgent.criteria", ["a"]),
    "noul criteria unknown outcome": ("questions.urgent.criteria", {"maybe": "a"}),
    "noul criterion number": ("questions.urgent.criteria", {"true": 1}),
    "no choice criteria": ("questions.route.criteria", DELETE),
    "null choice criteria": ("questions.route.criteria", None),
    "empty choice criteria": ("questions.route.criteria", {}),
    "256 choices": ("questions.route.criteria", {str(i): None for i in range(256)}),
    "number as description": ("questions.route.criteria.billing", 1),
    "empty levels": ("questions.severity.criteria", []),
    "11 levels": ("questions.severity.criteria", ["a"] * 11),
    "null level": ("questions.severity.criteria.0", None),
    "number level": ("questions.severity.criteria.0", 0),
    "template of another type": ("chat_template_kwargs", []),
    "null template": ("chat_template_kwargs", None),
    "unknown template field": ("chat_template_kwargs", {"temperature": 0}),
    "thinking of another type": ("chat_template_kwargs", {"thinking": 0}),
}


@pytest.mark.parametrize(("path", "value"), REFUSED.values(), ids=REFUSED.keys())
def test_a_broken_body_is_refused(path: str, value: object) -> None:
    assert fault(changed(bodies.systemone(), path, value)) == (INVALID, 422)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("assets", {}),
        ("images", []),
        ("questions.urgent", {"type": "box", "instructions": "The dog"}),
        ("chat_template_kwargs", {"thinking": True}),
        ("chat_template_kwargs", {"enable_thinking": True, "thinking": False}),
    ],
)
def test_what_decisions_cannot_do_is_unsupported(path: str, value: object) -> None:
    assert fault(changed(bodies.systemone(), path, value)) == (UNSUPPORTED, 422)


def test_a_schema_fault_comes_before_a_missing_capability() -> None:
    body = changed(bodies.systemone(), "assets", {})
    assert fault(changed(body, "questions.route.criteria", {})) == (INVALID, 422)


ACCEPTED: dict[str, tuple[str, Any]] = {
    "empty state": ("state", ""),
    "object state": ("state", {"b": [1, None], "a": 2.5}),
    "array state": ("state", []),
    "thinking off": ("chat_template_kwargs", {"thinking": False, "enable_thinking": False}),
    "empty template": ("chat_template_kwargs", {}),
    "noul by a criterion alone": (
        "questions.urgent", {"type": "noul", "criteria": {"false": ["a"], "true": None}}
    ),
    "odd choice names": ("questions.route.criteria", {"": None, "A": None, "a": {}, "\n": []}),
    "one choice": ("questions.route.criteria", {"only": None}),
    "choice without instructions": ("questions.route.instructions", DELETE),
    "blank levels": ("questions.severity.criteria", ["", " "]),
    "one level": ("questions.severity.criteria", [{"a": 1}]),
}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_an_unusual_but_sound_body_is_read(path: str, value: object) -> None:
    assert parse(changed(bodies.systemone(), path, value)).model == "jev-latest"


def test_the_neutral_form_is_the_same_from_both_contracts() -> None:
    ours = parse(bodies.systemone())
    theirs = parse_decision(Contract.DECISIONS, json.dumps(bodies.decisions()).encode(), LIMITS)
    assert ours.context == theirs.context
    assert ours.questions == (
        Choice(
            "route",
            "Choose the responsible team.",
            (Option("billing", "Payments"), Option("technical", "Software")),
        ),
        Predicate("urgent", "Action is needed today."),
        Score(
            "severity", "Rate the impact.", tuple(Level(t, t) for t in ("Low", "Moderate", "High"))
        ),
    )
    assert theirs.questions[0] == ours.questions[0]
    assert theirs.questions[2] == ours.questions[2]


def test_structured_levels_keep_their_form_for_the_legend() -> None:
    body = changed(bodies.systemone(), "questions.severity.criteria", [{"b": 1, "a": []}])
    assert parse(body).questions[2] == Score(
        "severity", "Rate the impact.", (Level('{"b":1,"a":[]}', {"b": 1, "a": []}),)
    )


def test_question_names_never_appear_in_messages() -> None:
    body = changed(bodies.systemone(), "questions", {"secret": {"type": "noul"}})
    with pytest.raises(DecisionError, match=r"questions\[0\] needs"):
        parse(body)
