"""From label log probabilities to answers, with every value checked on the way.

A worker scores one branch and returns, for each label, the log probability of that token among
its whole vocabulary. What the labels do not cover together is the mass of other tokens; it is
reported, and never spread over the answers.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import attrs

from kvlanes.engine.decisions._errors import (
    IMPOSSIBLE_RESULT,
    MALFORMED_RESULT,
    DecisionError,
)
from kvlanes.engine.decisions._model import Choice, Predicate, Question, Score, candidates

# A worker sums 32-bit floats; a little above one is rounding, more is a wrong distribution.
_MASS_SLACK = 1e-6
_SUM_SLACK = 1e-9


@attrs.frozen
class Refused:
    """The model declined this question."""


@attrs.frozen
class PredicateAnswer:
    """`probability` of yes; `mass` is what the labels had of the whole vocabulary."""

    probability: float
    mass: float


@attrs.frozen
class ChoiceAnswer:
    """`chosen` is the place of the first most probable option."""

    chosen: int
    probabilities: tuple[float, ...]
    confidence: float
    mass: float


@attrs.frozen
class ScoreAnswer:
    """`score` is the expected level, counted from zero."""

    score: float
    probabilities: tuple[float, ...]
    confidence: float
    mass: float


Answer: TypeAlias = PredicateAnswer | ChoiceAnswer | ScoreAnswer | Refused


def answer(question: Question, logprobs: Sequence[float]) -> Answer:
    """What one worker result says about one question. O(labels). Never a checkpoint.

    Args:
        question: What was asked.
        logprobs: Natural logarithms, normalised over the vocabulary, in label order.

    Raises:
        DecisionError: `MALFORMED_RESULT` when these are no log probabilities,
            `IMPOSSIBLE_RESULT` when they do not fit the question.
    """
    mass, probabilities = distribution(logprobs)
    return project(question, probabilities, mass)


def distribution(logprobs: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """The labels' mass and their probabilities among each other (temperature 1).

    Raises:
        DecisionError: `MALFORMED_RESULT`: no value, NaN, a positive one, all minus infinity, or
            together more than one.
    """
    if not logprobs or not all(value <= 0.0 for value in logprobs):  # also refuses NaN
        raise DecisionError(MALFORMED_RESULT)
    highest = max(logprobs)
    total = math.fsum(math.exp(value) for value in logprobs)
    if highest == -math.inf or total > 1.0 + _MASS_SLACK:
        raise DecisionError(MALFORMED_RESULT)
    # Relative to the highest, so that labels far below the rest of the vocabulary still compare.
    weights = [math.exp(value - highest) for value in logprobs]
    whole = math.fsum(weights)
    return min(1.0, total), tuple(weight / whole for weight in weights)


def project(question: Question, probabilities: Sequence[float], mass: float) -> Answer:
    """The answer that a distribution over the candidates gives.

    Raises:
        DecisionError: `IMPOSSIBLE_RESULT`: another number of values than candidates, a value
            outside 0 to 1, or a sum that is not one.
    """
    sound = all(0.0 <= p <= 1.0 for p in probabilities) and 0.0 <= mass <= 1.0
    if len(probabilities) != candidates(question) or not sound:
        raise DecisionError(IMPOSSIBLE_RESULT)
    if abs(math.fsum(probabilities) - 1.0) > _SUM_SLACK:
        raise DecisionError(IMPOSSIBLE_RESULT)
    shares = tuple(probabilities)
    match question:
        case Predicate():
            return PredicateAnswer(shares[0], mass)
        case Choice():
            return ChoiceAnswer(_mode(shares), shares, choice_confidence(shares), mass)
        case Score():
            expected = math.fsum(i * p for i, p in enumerate(shares))
            return ScoreAnswer(expected, shares, score_confidence(shares), mass)


def choice_confidence(probabilities: Sequence[float]) -> float:
    """How far the best option stands above an even guess: 0 when even, 1 when certain.

    Source: (n * pmax - 1) / (n - 1), clamped.
    """
    count = len(probabilities)
    if count == 1:
        return 1.0
    return min(1.0, max(0.0, (count * max(probabilities) - 1) / (count - 1)))


def score_confidence(probabilities: Sequence[float]) -> float:
    """How closely the levels gather around the most probable one, against an even spread.

    Source: 1 - D / U, not below 0, with D the mean distance from the mode and U the mean
    distance of evenly spread levels from their middle.
    """
    count = len(probabilities)
    if count == 1:
        return 1.0
    mode = _mode(probabilities)
    spread = math.fsum(p * abs(i - mode) for i, p in enumerate(probabilities))
    even = math.fsum(abs(i - (count - 1) / 2) for i in range(count)) / count
    return max(0.0, 1.0 - spread / even)


def _mode(probabilities: Sequence[float]) -> int:
    return probabilities.index(max(probabilities))
