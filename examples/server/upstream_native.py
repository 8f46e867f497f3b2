"""Whole requests for an engine that answers the contract itself: what to send, what to accept."""

import math
from collections.abc import Mapping, Sequence

import attrs

from kvlanes.engine.decisions import (
    IMPOSSIBLE_RESULT,
    MALFORMED_RESULT,
    REFUSED,
    Choice,
    Contract,
    Decision,
    DecisionError,
    Json,
    Predicate,
    Question,
    Reply,
    Score,
    candidates,
    dump_json,
    parse_json,
)

# Engines may round to two digits: each share is then off by half a hundredth at most.
_ROUNDING = 0.005
_KINDS = {Predicate: ("predicate", "noul"), Choice: ("choice",), Score: ("score",)}


@attrs.frozen
class NativeAnswer:
    """An engine's own answer, checked.

    Attributes:
        reply: What the client gets, under our name of the model.
        cached_share: Measured share of the input that was cached; `None` where the contract has
            no place for it.
    """

    reply: Reply
    cached_share: float | None


def forwarded(fields: Mapping[str, Json], model: str, salt: str) -> bytes:
    """The client's request under the engine's name of the model. O(body).

    Args:
        fields: The body that the client sent, known to be sound.
        model: What the engine calls the model.
        salt: Keeps tenants' prefixes apart; left out when empty.
    """
    return dump_json({**fields, "model": model, **({"cache_salt": salt} if salt else {})})


def checked(decision: Decision, model: str, body: bytes) -> NativeAnswer:
    """Accept an engine's 200, or refuse it by name. O(body).

    Raises:
        DecisionError: `MALFORMED_RESULT` when it is not the contract's shape,
            `IMPOSSIBLE_RESULT` for shares or usage that cannot be, `REFUSED` for an answer that
            System One has no words for.
    """
    try:
        fields = parse_json(body)
    except DecisionError as error:
        raise DecisionError(MALFORMED_RESULT) from error
    if not isinstance(fields, dict):
        raise DecisionError(MALFORMED_RESULT)
    for question, given in zip(decision.questions, _answers(decision, fields.get("answers"))):
        _judge(question, given, decision.contract)
    share = _cached_share(decision.contract, fields.get("usage"))
    return NativeAnswer(Reply(200, dump_json(fields | {"model": model})), share)


def _answers(decision: Decision, given: Json) -> Sequence[Json]:
    """The answers in the order of the questions."""
    questions = decision.questions
    if decision.contract is Contract.DECISIONS:
        if not isinstance(given, list) or len(given) != len(questions):
            raise DecisionError(MALFORMED_RESULT)
        return given
    names = [question.name or "" for question in questions]
    if not isinstance(given, dict) or given.keys() != set(names):
        raise DecisionError(MALFORMED_RESULT)
    return [given[name] for name in names]


def _judge(question: Question, given: Json, contract: Contract) -> None:
    if not isinstance(given, dict):
        raise DecisionError(MALFORMED_RESULT)
    if given.get("type") == "refusal":
        if contract is Contract.SYSTEMONE:
            raise DecisionError(REFUSED)
        return
    if given.get("type") not in _KINDS[type(question)]:
        raise DecisionError(MALFORMED_RESULT)
    shares = _shares(question, given)
    sound = all(0.0 <= share <= 1.0 for share in shares)
    whole = isinstance(question, Predicate) or abs(math.fsum(shares) - 1.0) <= (
        _ROUNDING * len(shares)
    )
    if not (sound and whole and len(shares) in (1, candidates(question))):
        raise DecisionError(IMPOSSIBLE_RESULT)


def _shares(question: Question, given: dict[str, Json]) -> list[float]:
    if isinstance(question, Predicate):
        return [_number(given.get("probability", given.get("noul")))]
    found = given.get("probabilities")
    if isinstance(found, dict):
        return [_number(share) for share in found.values()]
    if not isinstance(found, list):
        raise DecisionError(MALFORMED_RESULT)
    return [_number(row.get("probability")) for row in found if isinstance(row, dict)]


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DecisionError(MALFORMED_RESULT)
    return float(value)


def _cached_share(contract: Contract, usage: Json) -> float | None:
    if not isinstance(usage, dict):
        raise DecisionError(MALFORMED_RESULT)
    read = usage.get("input_tokens")
    if contract is Contract.SYSTEMONE:
        return None
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if not isinstance(read, int) or not isinstance(cached, int) or not 0 <= cached <= read:
        raise DecisionError(IMPOSSIBLE_RESULT)
    return cached / read if read else 0.0
