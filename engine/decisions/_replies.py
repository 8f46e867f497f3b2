"""Answers and errors in the words of the contract that was asked."""

from collections.abc import Sequence

import attrs

from kvlanes.engine.decisions._errors import (
    DEADLINE,
    IMPOSSIBLE_RESULT,
    REFUSED,
    Contract,
    DecisionError,
    Fault,
)
from kvlanes.engine.decisions._json import Json, dump_json
from kvlanes.engine.decisions._model import Choice, Decision, Predicate, Question, Score
from kvlanes.engine.decisions._projection import (
    Answer,
    ChoiceAnswer,
    PredicateAnswer,
    Refused,
    ScoreAnswer,
)

_INT32 = 2**31 - 1
# System One words these two as a list of details, whatever the status.
_DETAILED = ("invalid_request_error", "unsupported_capability")


@attrs.frozen
class Usage:
    """Tokens that all branches together read, and how many of them a cache already held.

    Both must be measured: a worker that cannot tell is an error, not a zero.
    """

    input_tokens: int
    cached_tokens: int


@attrs.frozen
class Reply:
    """One response: status, body, and headers of its own (names in lower case)."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def reply(decision: Decision, model: str, answers: Sequence[Answer], usage: Usage) -> Reply:
    """The 200 that carries every answer, in the order of the questions.

    Args:
        decision: What was asked.
        model: The model that answered, its own name and not an alias.
        answers: One for each question, in order.
        usage: Of all branches together.

    Raises:
        DecisionError: `IMPOSSIBLE_RESULT` for a wrong number of answers or an impossible usage;
            `REFUSED` where System One cannot express a refusal.
    """
    if len(answers) != len(decision.questions) or not _sound(usage):
        raise DecisionError(IMPOSSIBLE_RESULT)
    pairs = list(zip(decision.questions, answers, strict=True))
    if decision.contract is Contract.DECISIONS:
        body = _decisions_body(model, pairs, usage)
    else:
        body = _systemone_body(model, pairs, usage)
    return Reply(200, dump_json(body))


def error_reply(contract: Contract, fault: Fault) -> Reply:
    """The error body of one row of the table, in the shape of the route that was asked."""
    headers: tuple[tuple[str, str], ...] = ()
    if fault.retry_after_seconds is not None:
        headers = (("retry-after", str(fault.retry_after_seconds)),)
    if fault.status in (500, DEADLINE.status):
        headers = (("x-should-retry", "false"),)  # the same work would end the same way
    if contract is Contract.DECISIONS:
        said: dict[str, Json] = {"message": fault.message, "type": fault.code}
        body: Json = {"error": {**said, "param": None, "code": fault.code}}
        return Reply(fault.status, dump_json(body), headers)
    if fault.code in _DETAILED:
        body = {"detail": [{"loc": ["body"], "msg": fault.message, "type": fault.code}]}
    else:
        body = {"detail": fault.message, "code": fault.code}
    return Reply(fault.systemone_status, dump_json(body), headers)


def _sound(usage: Usage) -> bool:
    read, cached = usage.input_tokens, usage.cached_tokens
    if type(read) is not int or type(cached) is not int:
        return False
    return 0 <= cached <= read <= _INT32


def _decisions_body(model: str, pairs: "Sequence[tuple[Question, Answer]]", usage: Usage) -> Json:
    return {
        "model": model,
        "answers": [_decisions_answer(question, given) for question, given in pairs],
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": 0,
            "total_tokens": usage.input_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _decisions_answer(question: Question, given: Answer) -> Json:
    match question, given:
        case _, Refused():
            return {"type": "refusal", "name": question.name}
        case Predicate(), PredicateAnswer(probability=probability):
            return {"type": "predicate", "name": question.name, "probability": probability}
        case Choice(options=options), ChoiceAnswer(probabilities=shares):
            return {
                "type": "choice",
                "name": question.name,
                "choice": options[given.chosen].value,
                "confidence": given.confidence,
                "probabilities": [
                    {"value": option.value, "probability": share}
                    for option, share in zip(options, shares, strict=True)
                ],
            }
        case Score(levels=levels), ScoreAnswer(probabilities=shares):
            return {
                "type": "score",
                "name": question.name,
                "score": given.score,
                "confidence": given.confidence,
                "probabilities": [
                    {"value": i, "label": level.legend, "probability": share}
                    for i, (level, share) in enumerate(zip(levels, shares, strict=True))
                ],
            }
        case _:
            raise DecisionError(IMPOSSIBLE_RESULT)


def _systemone_body(model: str, pairs: "Sequence[tuple[Question, Answer]]", usage: Usage) -> Json:
    return {
        "model": model,
        "answers": {
            question.name or "": _systemone_answer(question, given) for question, given in pairs
        },
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": 0},
    }


def _systemone_answer(question: Question, given: Answer) -> Json:
    match question, given:
        case _, Refused():
            raise DecisionError(REFUSED)
        case Predicate(), PredicateAnswer(probability=probability, mass=mass):
            return {"type": "noul", "noul": probability, "x_label_mass": mass}
        case Choice(options=options), ChoiceAnswer(probabilities=shares):
            return {
                "type": "choice",
                "choice": str(options[given.chosen].value),
                "probabilities": {
                    str(option.value): share for option, share in zip(options, shares, strict=True)
                },
                "confidence": given.confidence,
                "x_label_mass": given.mass,
            }
        case Score(levels=levels), ScoreAnswer(probabilities=shares):
            return {
                "type": "score",
                "score": given.score,
                "probabilities": {str(i): share for i, share in enumerate(shares)},
                "legend": {str(i): level.legend for i, level in enumerate(levels)},
                "confidence": given.confidence,
                "x_label_mass": given.mass,
            }
        case _:
            raise DecisionError(IMPOSSIBLE_RESULT)
