"""Log probabilities become answers, or are refused before anything is answered."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlanes.engine.decisions import (
    IMPOSSIBLE_RESULT,
    MALFORMED_RESULT,
    Choice,
    ChoiceAnswer,
    DecisionError,
    Level,
    Option,
    Predicate,
    PredicateAnswer,
    Question,
    Score,
    ScoreAnswer,
    answer,
    candidates,
    choice_confidence,
    distribution,
    project,
    score_confidence,
)
from tests.support.profiles import budget

INF = math.inf
PREDICATE = Predicate(None, "Is it so?")


def choice(count: int) -> Choice:
    return Choice(None, "", tuple(Option(str(i)) for i in range(count)))


def score(count: int) -> Score:
    return Score(None, "", tuple(Level(str(i), str(i)) for i in range(count)))


@pytest.mark.parametrize(
    "logprobs",
    [
        [],
        [math.nan, -1.0],
        [-1.0, math.nan],
        [0.1, -5.0],
        [INF, -1.0],
        [-INF, -INF],
        [math.log(0.6), math.log(0.5)],
        [math.log(0.5), math.log(0.5 + 3e-6)],
    ],
)
def test_what_is_no_distribution_is_malformed(logprobs: list[float]) -> None:
    with pytest.raises(DecisionError) as caught:
        answer(PREDICATE, logprobs)
    assert caught.value.fault is MALFORMED_RESULT


@pytest.mark.parametrize(
    ("probabilities", "mass"),
    [
        ([1.0], 1.0),
        ([0.5, 0.25, 0.25], 1.0),
        ([0.5, 0.4], 1.0),
        ([1.5, -0.5], 1.0),
        ([math.nan, 1.0], 1.0),
        ([0.5, 0.5 + 2e-9], 1.0),
        ([0.5, 0.5], 1.1),
        ([0.5, 0.5], math.nan),
    ],
)
def test_what_does_not_fit_the_question_is_impossible(
    probabilities: list[float], mass: float
) -> None:
    with pytest.raises(DecisionError) as caught:
        project(PREDICATE, probabilities, mass)
    assert caught.value.fault is IMPOSSIBLE_RESULT


def test_a_label_may_have_no_probability_at_all() -> None:
    assert answer(PREDICATE, [-INF, math.log(0.5)]) == PredicateAnswer(0.0, 0.5)


def test_float32_rounding_above_one_is_one() -> None:
    mass, _ = distribution([math.log(0.5), math.log(0.5 + 5e-7)])
    assert mass == 1.0


def test_labels_far_below_the_vocabulary_still_compare() -> None:
    given_answer = answer(PREDICATE, [-800.0, -800.0])
    assert given_answer == PredicateAnswer(0.5, 0.0)


def test_predicate_is_the_share_of_yes() -> None:
    given_answer = answer(PREDICATE, [math.log(0.2), math.log(0.6)])
    assert isinstance(given_answer, PredicateAnswer)
    assert given_answer.probability == pytest.approx(0.25)
    assert given_answer.mass == pytest.approx(0.8)


def test_a_tie_goes_to_the_first_option() -> None:
    given_answer = answer(choice(3), [math.log(0.2), math.log(0.4), math.log(0.4)])
    assert isinstance(given_answer, ChoiceAnswer)
    assert given_answer.chosen == 1


def test_score_is_the_expected_level_from_zero() -> None:
    given_answer = project(score(3), [0.1, 0.2, 0.7], 1.0)
    assert isinstance(given_answer, ScoreAnswer)
    assert given_answer.score == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("probabilities", "of_choice", "of_score"),
    [
        ([0.1, 0.2, 0.7], 0.55, 0.4),
        ([0.5, 0.5], 0.0, 0.0),
        ([0.5, 0.0, 0.5], 0.25, 0.0),
        ([1.0], 1.0, 1.0),
        ([0.0, 1.0], 1.0, 1.0),
    ],
)
def test_confidences_match_the_published_values(
    probabilities: list[float], of_choice: float, of_score: float
) -> None:
    assert choice_confidence(probabilities) == pytest.approx(of_choice)
    assert score_confidence(probabilities) == pytest.approx(of_score)


QUESTIONS = st.one_of(
    st.just(PREDICATE), st.integers(1, 255).map(choice), st.integers(1, 10).map(score)
)


@st.composite
def scored(draw: st.DrawFn) -> tuple[Question, list[float]]:
    question = draw(QUESTIONS)
    count = candidates(question)
    weights = draw(st.lists(st.floats(1e-6, 1.0), min_size=count, max_size=count))
    whole = math.fsum(weights) + draw(st.floats(0.0, 10.0))
    return question, [min(0.0, math.log(weight / whole)) for weight in weights]


@given(scored())
@settings(max_examples=budget(ci=150, deep=5000))
def test_every_sound_result_gives_a_sound_answer(case: tuple[Question, list[float]]) -> None:
    question, logprobs = case
    match answer(question, logprobs):
        case PredicateAnswer(probability=probability):
            assert 0.0 <= probability <= 1.0
        case ChoiceAnswer(probabilities=shares, chosen=chosen, confidence=confidence):
            assert shares[chosen] == max(shares)
            assert 0.0 <= confidence <= 1.0
        case ScoreAnswer(score=value, probabilities=shares, confidence=confidence):
            assert 0.0 <= value <= len(shares) - 1 + 1e-9
            assert 0.0 <= confidence <= 1.0


@given(scored())
@settings(max_examples=budget(ci=100, deep=2000))
def test_mass_outside_the_labels_never_moves_a_probability(
    case: tuple[Question, list[float]],
) -> None:
    logprobs = case[1]
    _, before = distribution(logprobs)
    mass, after = distribution([value - 3.0 for value in logprobs])
    assert after == pytest.approx(before)
    assert mass <= math.exp(-3.0) * 1.000001
