"""Questions become branches of one shared prefix: context first, then one question each."""

from collections.abc import Callable, Sequence

import attrs

from kvlanes.engine.decisions._errors import invalid_request, unsupported
from kvlanes.engine.decisions._json import compact
from kvlanes.engine.decisions._model import (
    Choice,
    Decision,
    DecisionLimits,
    Option,
    Predicate,
    Question,
    Score,
)


@attrs.frozen
class Branch:
    """One question's prompt and the labels that compete to be its next token.

    Attributes:
        ordinal: The question's place in the request; it pairs the result with the question.
        tokens: The whole prompt.
        labels: One token each, in the order of the candidates.
    """

    ordinal: int
    tokens: Sequence[int]
    labels: tuple[int, ...]


def labels(question: Question) -> tuple[str, ...]:
    """What the model may answer: yes and no, letters (A to Z, then AA, AB …), or digits."""
    match question:
        case Predicate():
            return ("yes", "no")
        case Choice(options=options):
            return tuple(_letters(i) for i in range(len(options)))
        case Score(levels=levels):
            return tuple(str(i) for i in range(len(levels)))


def render(decision: Decision) -> tuple[str, ...]:
    """The prompt of every branch. All begin with the same text; names and ids never appear.

    The same words give the same prompts on both contracts. O(text). Never a checkpoint.
    """
    prefix = f"Input:\n{decision.context}\n\n"
    return tuple(prefix + _ask(question) for question in decision.questions)


def plan(
    decision: Decision, tokenize: Callable[[str], Sequence[int]], limits: DecisionLimits
) -> tuple[Branch, ...]:
    """Render and tokenise every branch, within the limits. Blocking: meant for a thread.

    Args:
        decision: What to ask.
        tokenize: The model's tokeniser; a label must be exactly one token of it.
        limits: Judged before the work that they bound.

    Raises:
        DecisionError: More text, tokens or tokenisation work than allowed
            (`invalid_request_error`), or labels that the tokeniser cannot tell apart
            (`unsupported_capability`).
    """
    prompts = render(decision)
    _within("prompt text in bytes", sum(len(p.encode()) for p in prompts), limits.text_bytes)
    branches: list[Branch] = []
    spent_tokens = spent_passes = 0
    for question, prompt in zip(decision.questions, prompts, strict=True):
        tokens, marks = tokenize(prompt), _label_tokens(question, tokenize)
        _within("tokens of one prompt", len(tokens), limits.context_tokens - 1)
        spent_tokens += len(tokens)
        spent_passes += len(tokens) * (len(marks) + 2)
        _within("input tokens", spent_tokens, limits.input_tokens)
        _within("tokenisation work", spent_passes, limits.token_passes)
        branches.append(Branch(len(branches), tokens, marks))
    return tuple(branches)


def _within(what: str, asked: int, limit: int) -> None:
    if asked > limit:
        raise invalid_request(f"{what}: request needs {asked}; the limit is {limit}")


def _label_tokens(question: Question, tokenize: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    split = [tokenize(label) for label in labels(question)]
    found = tuple(tokens[0] for tokens in split if len(tokens) == 1)
    if len(set(found)) != len(split):
        raise unsupported("the model has no distinct single tokens for the labels")
    return found


def _letters(index: int) -> str:
    first, second = divmod(index, 26)
    return (chr(64 + first) if first else "") + chr(65 + second)


def _ask(question: Question) -> str:
    lines = [f"Question: {question.instructions}"] if question.instructions else []
    return "\n".join([*lines, *_candidates(question), "Answer:"])


def _candidates(question: Question) -> list[str]:
    match question:
        case Predicate(yes=yes, no=no):
            described = [
                f"{word} means: {said}" for word, said in (("yes", yes), ("no", no)) if said
            ]
            return ["Answer yes or no.", *described]
        case Choice(options=options):
            marks = labels(question)
            return ["Choose one:", *(f"{m}. {_option(o)}" for m, o in zip(marks, options))]
        case Score(levels=levels):
            return ["Choose a level:", *(f"{i}. {level.text}" for i, level in enumerate(levels))]


def _option(option: Option) -> str:
    """The value as JSON, so that no name can pose as another line, and true is not "true"."""
    value = compact(option.value)
    return f"{value}: {option.description}" if option.description else value
