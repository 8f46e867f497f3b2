"""The neutral form of a decision request: both contracts parse to it, everything else reads it."""

from typing import TypeAlias

import attrs

from kvlanes.engine.decisions._errors import Contract
from kvlanes.engine.decisions._json import Json


@attrs.frozen
class Predicate:
    """Is it so? `yes` and `no` describe the outcomes, empty when the request does not."""

    name: str | None
    instructions: str
    yes: str = ""
    no: str = ""


@attrs.frozen
class Option:
    """One alternative of a choice. The boolean `True` and the string `"true"` are two values."""

    value: str | bool
    description: str = ""


@attrs.frozen
class Choice:
    """Which one?"""

    name: str | None
    instructions: str
    options: tuple[Option, ...]


@attrs.frozen
class Level:
    """One step of a score: what the model reads, and what the answer's legend echoes."""

    text: str
    legend: Json


@attrs.frozen
class Score:
    """How much? Levels count from zero."""

    name: str | None
    instructions: str
    levels: tuple[Level, ...]


Question: TypeAlias = Predicate | Choice | Score


@attrs.frozen
class Decision:
    """Questions about one shared context.

    Attributes:
        contract: Which wire form it came in, and which its answer takes.
        model: The name as asked for, alias or not.
        context: What all questions are about, as the text that begins every branch.
        questions: In the order of the answers.
        cache_key: The caller's partition of the prompt cache.
        reuse: False when the caller asked for no prompt caching at all.
    """

    contract: Contract
    model: str
    context: str
    questions: tuple[Question, ...]
    cache_key: str | None = None
    reuse: bool = True


def candidates(question: Question) -> int:
    """How many labels compete for this question."""
    match question:
        case Predicate():
            return 2
        case Choice(options=options):
            return len(options)
        case Score(levels=levels):
            return len(levels)


@attrs.frozen
class DecisionLimits:
    """What a request may ask for at most; each excess is an error that names the limit.

    Attributes:
        questions: Questions in one request.
        input_tokens: Tokens of all branches together, the shared context counted in each.
        context_tokens: Tokens of one branch: the model's context length.
        token_passes: Sum over branches of tokens x (labels + 2), what tokenising may cost.
        text_bytes: UTF-8 bytes of all branches together.
    """

    questions: int = 128
    input_tokens: int = 65_536
    context_tokens: int = 65_536
    token_passes: int = 1_048_576
    text_bytes: int = 16 * 1024 * 1024
