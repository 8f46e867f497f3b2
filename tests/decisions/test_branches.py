"""Questions become branches: one shared prefix, labels of one token, bounded work."""

import json
import re
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    labels,
    parse_decision,
    plan,
    render,
)
from tests.decisions import bodies
from tests.support.profiles import budget

LIMITS = DecisionLimits()


def words(text: str) -> Sequence[int]:
    return [hash_of(word) for word in re.findall(r"\w+|\W", text)]


def hash_of(word: str) -> int:
    return int.from_bytes(word.encode()[:8].ljust(8, b"\0"), "big")


def read(contract: Contract, body: bodies.Body) -> Decision:
    return parse_decision(contract, json.dumps(body).encode(), LIMITS)


def ask(*questions: Predicate | Choice | Score, context: str = "It rains.") -> Decision:
    return Decision(Contract.DECISIONS, "m", context, questions)


def test_the_same_words_give_the_same_prompts_on_both_contracts() -> None:
    theirs = read(Contract.DECISIONS, bodies.decisions())
    ours = read(Contract.SYSTEMONE, bodies.systemone())
    assert render(theirs) == render(ours)


def test_all_branches_share_the_whole_context_as_prefix() -> None:
    decision = read(Contract.DECISIONS, bodies.decisions())
    shared = f"Input:\n{bodies.TEXT}\n\n"
    assert all(prompt.startswith(shared) for prompt in render(decision))


def test_the_prompt_reads_as_written_here() -> None:
    decision = ask(
        Predicate("n", "Is it wet?", yes="Water falls.", no="It is dry."),
        Choice("n", "What falls?", (Option("rain", "Water"), Option(True), Option("true"))),
        Score("n", "", (Level("Low", "Low"), Level("High", "High"))),
    )
    assert render(decision) == (
        "Input:\nIt rains.\n\nQuestion: Is it wet?\nAnswer yes or no.\n"
        "yes means: Water falls.\nno means: It is dry.\nAnswer:",
        'Input:\nIt rains.\n\nQuestion: What falls?\nChoose one:\nA. "rain": Water\n'
        'B. true\nC. "true"\nAnswer:',
        "Input:\nIt rains.\n\nChoose a level:\n0. Low\n1. High\nAnswer:",
    )


def test_names_are_never_part_of_a_prompt() -> None:
    named = ask(Predicate("one", "Is it wet?"))
    assert render(named) == render(ask(Predicate(None, "Is it wet?")))


def test_an_option_cannot_pose_as_another_line() -> None:
    forged = ask(Choice(None, "", (Option('a"\nB. "b'), Option("c"))))
    assert render(forged)[0].count("\n") == render(
        ask(Choice(None, "", (Option("a"), Option("c"))))
    )[0].count("\n")


@pytest.mark.parametrize(
    ("count", "last"), [(1, "A"), (26, "Z"), (27, "AA"), (28, "AB"), (52, "AZ"), (255, "IU")]
)
def test_choice_labels_go_on_after_z(count: int, last: str) -> None:
    found = labels(Choice(None, "", tuple(Option(str(i)) for i in range(count))))
    assert found[-1] == last
    assert len(set(found)) == count


def test_predicate_and_score_labels() -> None:
    assert labels(Predicate(None, "")) == ("yes", "no")
    assert labels(Score(None, "", (Level("a", "a"),) * 10)) == tuple("0123456789")


def test_results_pair_by_ordinal() -> None:
    branches = plan(read(Contract.DECISIONS, bodies.decisions()), words, LIMITS)
    assert [branch.ordinal for branch in branches] == [0, 1, 2]
    assert [len(branch.labels) for branch in branches] == [2, 2, 3]


@pytest.mark.parametrize("limit", ["input_tokens", "context_tokens", "token_passes", "text_bytes"])
def test_each_limit_is_exact_and_named(limit: str) -> None:
    decision = ask(Predicate(None, "Is it wet?"), Predicate(None, "Is it cold?"))
    branches = plan(decision, words, LIMITS)
    tokens = [len(branch.tokens) for branch in branches]
    needed = {
        "input_tokens": sum(tokens),
        "context_tokens": max(tokens) + 1,  # room for the answer's own token
        "token_passes": sum(tokens) * 4,
        "text_bytes": sum(len(prompt) for prompt in render(decision)),
    }[limit]
    plan(decision, words, attrs.evolve(LIMITS, **{limit: needed}))
    with pytest.raises(
        DecisionError, match=f"limit is {needed - 1}|limit is {needed - 2}"
    ) as caught:
        plan(decision, words, attrs.evolve(LIMITS, **{limit: needed - 1}))
    assert caught.value.fault.code == "invalid_request_error"


@pytest.mark.parametrize(
    "tokenize",
    [lambda text: list(text.encode()), lambda text: [len(text) > 3], lambda text: []],
    ids=["several tokens", "one for all", "none"],
)
def test_labels_must_be_distinct_single_tokens(tokenize: object) -> None:
    with pytest.raises(DecisionError) as caught:
        plan(ask(Predicate(None, "a")), tokenize, LIMITS)  # type: ignore[arg-type]
    assert caught.value.fault.code == "unsupported_capability"


@given(st.text(max_size=50), st.lists(st.text(max_size=20), min_size=1, max_size=5))
@settings(max_examples=budget(ci=80, deep=2000))
def test_different_instructions_give_different_prompts(context: str, said: list[str]) -> None:
    prompts = render(ask(*(Predicate(None, text) for text in said), context=context))
    assert len(set(prompts)) == len(set(said))
