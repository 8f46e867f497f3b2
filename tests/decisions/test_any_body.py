"""Whatever stands where in a body: it is read and planned, or refused by a row of the table."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlanes.engine.decisions import (
    Contract,
    DecisionError,
    DecisionLimits,
    Question,
    Usage,
    answer,
    candidates,
    error_reply,
    parse_decision,
    plan,
    reply,
)
from tests.decisions import bodies
from tests.decisions.test_branches import words
from tests.support.profiles import budget

LIMITS = DecisionLimits()
BODIES = {Contract.DECISIONS: bodies.decisions, Contract.SYSTEMONE: bodies.systemone}
# Words that mean something somewhere, so that changes land in more than the first check.
WORDS = st.sampled_from(
    ["type", "message", "user", "assistant", "input_text", "text", "choice", "score", "noul",
     "predicate", "box", "instructions", "criteria", "choices", "levels", "value", "label", "name",
     "role", "content", "true", "function_call", "call_id", "state", "input", "assets", "mode"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 300) | st.floats(allow_nan=False) | WORDS
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a body with every key of it."""
    keys: list[Any] = (
        list(value)
        if isinstance(value, dict)
        else list(range(len(value)))
        if isinstance(value, list)
        else []
    )
    below = [place for key in keys for place in places(value[key])]
    return [(value, key) for key in keys] + below


@pytest.mark.parametrize("contract", Contract)
@given(data=st.data())
@settings(max_examples=budget(ci=150, deep=20_000))
def test_any_change_is_read_or_refused(contract: Contract, data: st.DataObject) -> None:
    body: Any = BODIES[contract]()
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(body)))
        if isinstance(container, dict) and data.draw(st.booleans()):
            key = data.draw(WORDS)
        container[key] = data.draw(VALUES)
    sent = json.dumps(body).replace("Infinity", "0").encode()
    refused = None
    try:
        decision = parse_decision(contract, sent, LIMITS)
        branches = plan(decision, words, LIMITS)
    except DecisionError as error:
        refused = error_reply(contract, error.fault)
    if refused is not None:
        assert refused.status in (400, 422)
        return
    answers = [answer(question, even(question)) for question in decision.questions]
    usage = Usage(sum(len(branch.tokens) for branch in branches), 0)
    assert json.loads(reply(decision, "m", answers, usage).body)["model"] == "m"


def even(question: Question) -> list[float]:
    """Log probabilities far enough below one for any number of labels."""
    return [-6.0] * candidates(question)
