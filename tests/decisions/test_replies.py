"""Answers and errors, byte for byte in the words of each contract."""

import json
from typing import Any

import pytest

from kvlanes.engine import decisions
from kvlanes.engine.decisions import (
    CAPACITY,
    DEADLINE,
    IMPOSSIBLE_RESULT,
    REFUSED,
    Answer,
    ChoiceAnswer,
    Contract,
    Decision,
    DecisionError,
    DecisionLimits,
    Fault,
    PredicateAnswer,
    Refused,
    ScoreAnswer,
    Usage,
    error_reply,
    invalid_request,
    parse_decision,
    reply,
    too_many_branches,
    unsupported,
)
from tests.decisions import bodies

ANSWERS: tuple[Answer, ...] = (
    ChoiceAnswer(1, (0.25, 0.75), 0.5, 0.9),
    PredicateAnswer(0.125, 0.9),
    ScoreAnswer(1.5, (0.0, 0.5, 0.5), 0.25, 0.9),
)
USAGE = Usage(51, 15)


def read(contract: Contract) -> Decision:
    body = bodies.decisions() if contract is Contract.DECISIONS else bodies.systemone()
    return parse_decision(contract, json.dumps(body).encode(), DecisionLimits())


def answered(contract: Contract, answers: tuple[Answer, ...] = ANSWERS) -> Any:
    given = reply(read(contract), "mock-fast", answers, USAGE)
    assert given.status == 200
    return json.loads(given.body)


def test_decisions_answer_as_documented() -> None:
    assert answered(Contract.DECISIONS) == {
        "model": "mock-fast",
        "answers": [
            {
                "type": "choice",
                "name": "route",
                "choice": "technical",
                "confidence": 0.5,
                "probabilities": [
                    {"value": "billing", "probability": 0.25},
                    {"value": "technical", "probability": 0.75},
                ],
            },
            {"type": "predicate", "name": None, "probability": 0.125},
            {
                "type": "score",
                "name": "severity",
                "score": 1.5,
                "confidence": 0.25,
                "probabilities": [
                    {"value": 0, "label": "Low", "probability": 0.0},
                    {"value": 1, "label": "Moderate", "probability": 0.5},
                    {"value": 2, "label": "High", "probability": 0.5},
                ],
            },
        ],
        "usage": {
            "input_tokens": 51,
            "output_tokens": 0,
            "total_tokens": 51,
            "input_tokens_details": {"cached_tokens": 15, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_systemone_answers_as_documented() -> None:
    assert answered(Contract.SYSTEMONE) == {
        "model": "mock-fast",
        "answers": {
            "route": {
                "type": "choice",
                "choice": "technical",
                "probabilities": {"billing": 0.25, "technical": 0.75},
                "confidence": 0.5,
                "x_label_mass": 0.9,
            },
            "urgent": {"type": "noul", "noul": 0.125, "x_label_mass": 0.9},
            "severity": {
                "type": "score",
                "score": 1.5,
                "probabilities": {"0": 0.0, "1": 0.5, "2": 0.5},
                "legend": {"0": "Low", "1": "Moderate", "2": "High"},
                "confidence": 0.25,
                "x_label_mass": 0.9,
            },
        },
        "usage": {"input_tokens": 51, "output_tokens": 0},
    }


def test_a_refusal_stands_for_an_answer_on_decisions_only() -> None:
    answers = (Refused(), *ANSWERS[1:])
    assert answered(Contract.DECISIONS, answers)["answers"][0] == {
        "type": "refusal",
        "name": "route",
    }
    with pytest.raises(DecisionError) as caught:
        answered(Contract.SYSTEMONE, answers)
    assert caught.value.fault is REFUSED


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize(
    "usage",
    [
        Usage(-1, 0),
        Usage(5, 6),
        Usage(5, -1),
        Usage(2**31, 0),
        Usage(5, None),  # type: ignore[arg-type]
        Usage(5, True),
        Usage(5.0, 0),  # type: ignore[arg-type]
    ],
)
def test_an_impossible_usage_is_an_error(contract: Contract, usage: Usage) -> None:
    with pytest.raises(DecisionError) as caught:
        reply(read(contract), "m", ANSWERS, usage)
    assert caught.value.fault is IMPOSSIBLE_RESULT


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("answers", [(), ANSWERS[:2], ANSWERS[::-1], (*ANSWERS, ANSWERS[0])])
def test_answers_that_do_not_fit_are_an_error(
    contract: Contract, answers: tuple[Answer, ...]
) -> None:
    with pytest.raises(DecisionError) as caught:
        reply(read(contract), "m", answers, USAGE)
    assert caught.value.fault is IMPOSSIBLE_RESULT


# The error table: code, status on /v1/decisions, status on /v1/systemone, Retry-After.
TABLE = {
    "BODY_LATE": ("invalid_request_error", 408, 408, None),
    "BODY_TOO_LARGE": ("invalid_request_error", 413, 413, None),
    "BODY_BROKEN": ("invalid_request_error", 400, 422, None),
    "MEDIA_TYPE": ("invalid_request_error", 415, 415, None),
    "ENCODING": ("invalid_request_error", 415, 415, None),
    "INVALID_JSON": ("invalid_json", 400, 400, None),
    "NOT_READY": ("server_error", 503, 503, None),
    "STOPPING": ("server_error", 503, 503, None),
    "MODEL_UNKNOWN": ("model_not_found", 404, 404, None),
    "NO_SCORING": ("invalid_request_error", 400, 400, None),
    "CAPACITY": ("rate_limit_exceeded", 429, 429, "1"),
    "PREFLIGHT_BUSY": ("rate_limit_exceeded", 429, 429, "1"),
    "WORKER_BUSY": ("rate_limit_exceeded", 429, 429, "1"),
    "BODIES_BUSY": ("rate_limit_exceeded", 429, 429, "1"),
    "MALFORMED_RESULT": ("server_error", 500, 500, None),
    "IMPOSSIBLE_RESULT": ("invalid_executor_result", 502, 502, None),
    "REFUSED": ("decision_refused", 422, 422, None),
    "DEADLINE": ("server_error", 504, 504, None),
    "CANCELLED": ("request_cancelled", 499, 499, None),
    "CRASH": ("server_error", 500, 500, None),
    "UNAUTHORIZED": ("invalid_api_key", 401, 401, None),
    "NOT_FOUND": ("not_found", 404, 404, None),
    "METHOD": ("method_not_allowed", 405, 405, None),
}


def test_the_table_is_complete() -> None:
    faults = {name for name, value in vars(decisions).items() if isinstance(value, Fault)}
    assert faults == TABLE.keys()


@pytest.mark.parametrize(("name", "row"), TABLE.items())
def test_every_row_has_its_status_and_envelope(
    name: str, row: tuple[str, int, int, str | None]
) -> None:
    fault: Fault = getattr(decisions, name)
    code, status, systemone_status, retry_after = row
    theirs = error_reply(Contract.DECISIONS, fault)
    ours = error_reply(Contract.SYSTEMONE, fault)
    assert (theirs.status, ours.status) == (status, systemone_status)
    assert dict(theirs.headers).get("retry-after") == retry_after
    assert theirs.headers == ours.headers
    error = {"message": fault.message, "type": code, "param": None, "code": code}
    assert json.loads(theirs.body) == {"error": error}
    if code in {"invalid_request_error", "unsupported_capability"}:
        detail = [{"loc": ["body"], "msg": fault.message, "type": code}]
        assert json.loads(ours.body) == {"detail": detail}
    else:
        assert json.loads(ours.body) == {"detail": fault.message, "code": code}


def test_faults_made_for_a_request_differ_by_contract() -> None:
    assert invalid_request("no").fault == Fault("invalid_request_error", "no", 400, 422)
    assert unsupported("no").fault == Fault("unsupported_capability", "no", 400, 422)
    assert too_many_branches(9, 8).fault.message == (
        "request needs 9 branches; the branch limit is 8"
    )


def test_the_documented_bytes() -> None:
    assert error_reply(Contract.SYSTEMONE, too_many_branches(9, 8).fault).body == (
        b'{"detail":[{"loc":["body"],"msg":"request needs 9 branches; the branch limit is 8",'
        b'"type":"invalid_request_error"}]}'
    )
    assert error_reply(Contract.SYSTEMONE, CAPACITY).body == (
        b'{"detail":"decision request capacity is exhausted","code":"rate_limit_exceeded"}'
    )
    assert error_reply(Contract.SYSTEMONE, DEADLINE).body == (
        b'{"detail":"decision request deadline exceeded","code":"server_error"}'
    )


def test_nothing_asks_a_client_to_repeat_what_would_end_the_same() -> None:
    for fault in (DEADLINE, decisions.CRASH):
        assert ("x-should-retry", "false") in error_reply(Contract.DECISIONS, fault).headers
    assert error_reply(Contract.DECISIONS, decisions.NOT_READY).headers == ()
