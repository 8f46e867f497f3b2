"""How two engines are asked for the log probabilities of given labels. No I/O.

Both are asked for one token, as a stream: closing a stream stops the engine, closing a request
that does not stream may not.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs

from examples.server.workers import Scored
from kvlanes.engine.decisions import Json


class UpstreamMalformed(Exception):
    """An engine answered, and the answer is not what its protocol promises."""


class UsageHidden(UpstreamMalformed):
    """An engine does not say how much of a prompt it found in its cache."""

    def __init__(self) -> None:
        super().__init__(
            "the engine does not report cached tokens (vLLM: --enable-prompt-tokens-details)"
        )


class Scoring(Protocol):
    """One engine's way of reading labels.

    Attributes:
        path: Where to post.
        most_labels: Labels it reads at once; `None` when there is no such bound.
    """

    @property
    def path(self) -> str: ...

    @property
    def most_labels(self) -> int | None: ...

    def body(
        self, model: str, tokens: Sequence[int], labels: Sequence[int], salt: str
    ) -> dict[str, Json]:
        """The request for one streamed token after `tokens`."""
        ...

    def read(self, events: Sequence[Json], labels: Sequence[int]) -> Scored:
        """What the whole stream said.

        Raises:
            UpstreamMalformed: A label is missing, or something is no number.
        """
        ...


@attrs.frozen
class VllmCompletions:
    """vLLM's `/v1/completions` with `logprob_token_ids`.

    Top log probabilities would not do: a label outside the top has none.
    """

    path: str = "/v1/completions"
    most_labels: int | None = 128

    def body(
        self, model: str, tokens: Sequence[int], labels: Sequence[int], salt: str
    ) -> dict[str, Json]:
        return {
            "model": model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 1,
            "logprob_token_ids": list(labels),
            "return_tokens_as_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
        }

    def read(self, events: Sequence[Json], labels: Sequence[int]) -> Scored:
        found: dict[str, Json] = {}
        usage: Json = None
        for event in events:
            choices = _field(event, "choices")
            if isinstance(choices, list) and choices and not found:
                top = _field(_field(choices[0], "logprobs"), "top_logprobs")
                found = top[0] if isinstance(top, list) and isinstance(top[0], dict) else {}
            usage = _field(event, "usage") or usage
        cached = _field(_field(usage, "prompt_tokens_details"), "cached_tokens")
        logprobs = tuple(_number(found.get(f"token_id:{label}")) for label in labels)
        return Scored(logprobs, _cached(cached))


@attrs.frozen
class SglangGenerate:
    """SGLang's `/generate` with `token_ids_logprob`; its salt is called `extra_key`."""

    path: str = "/generate"
    most_labels: int | None = None

    def body(
        self, model: str, tokens: Sequence[int], labels: Sequence[int], salt: str
    ) -> dict[str, Json]:
        return {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": -1,
            "token_ids_logprob": list(labels),
            "stream": True,
            "extra_key": salt,
        }

    def read(self, events: Sequence[Json], labels: Sequence[int]) -> Scored:
        # Each event repeats everything so far, so the last one is the whole answer.
        meta = _field(events[-1] if events else None, "meta_info")
        steps = _field(meta, "output_token_ids_logprobs")
        rows = steps[0] if isinstance(steps, list) and steps else None
        if not isinstance(rows, list) or not all(isinstance(r, list) and len(r) > 1 for r in rows):
            raise UpstreamMalformed("the engine sent no label log probabilities")
        found = {row[1]: row[0] for row in rows if isinstance(row, list)}
        logprobs = tuple(_number(found.get(label)) for label in labels)
        return Scored(logprobs, _cached(_field(meta, "cached_tokens")))


SCORINGS: tuple[Scoring, ...] = (VllmCompletions(), SglangGenerate())


def _field(value: Json, name: str) -> Json:
    return value.get(name) if isinstance(value, dict) else None


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UpstreamMalformed("the engine sent no log probability for a label")
    return float(value)


def _cached(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageHidden
    return value
