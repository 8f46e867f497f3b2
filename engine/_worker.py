"""A worker as the embedding program describes it."""

from collections.abc import Iterable
from typing import Any

import attrs
from attrs.validators import instance_of, optional

from kvlanes.engine.feeds import EventSource
from kvlanes.engine.selection import TierWeights
from kvlanes.indexer import Rank


def _positive(_: object, attribute: "attrs.Attribute[int]", value: int | None) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{attribute.name} must be an integer >= 1, got {value!r}")


def _words(words: Iterable[str]) -> frozenset[str]:
    if isinstance(words, str):  # its letters would become capabilities
        raise TypeError(f"capabilities must be a set of words, got the string {words!r}")
    words = frozenset(words)
    if strangers := [word for word in words if not isinstance(word, str)]:
        raise TypeError(f"capabilities must be words, got {strangers[0]!r}")
    return words


def _source(_: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not callable(getattr(value, "run", None)):
        raise TypeError(f"{attribute.name} must have a method `run(sink)`, got {value!r}")


@attrs.frozen
class Worker:
    """One worker: what may serve a request, and what is known of it.

    Attributes:
        worker_id: Its name, unique in an engine.
        dp_size: Data-parallel ranks, each with a KV cache of its own.
        block_size: Tokens a block as the worker says; `None` trusts the engine's configuration.
        capacity_blocks: KV-cache blocks a rank can hold, when known.
        capabilities: Free words that a request may require.
        tier_weights: What its blocks outside the device are worth; `None` takes the engine's.
        feed: Whether engine events are expected, so that `health()` says when none come.
        events: Where its events come from, if the engine shall follow them itself.
    """

    worker_id: str
    dp_size: int = attrs.field(default=1, kw_only=True, validator=_positive)
    block_size: int | None = attrs.field(default=None, kw_only=True, validator=_positive)
    capacity_blocks: int | None = attrs.field(default=None, kw_only=True, validator=_positive)
    capabilities: frozenset[str] = attrs.field(default=frozenset(), kw_only=True, converter=_words)
    tier_weights: TierWeights | None = attrs.field(
        default=None, kw_only=True, validator=optional(instance_of(TierWeights))
    )
    feed: bool = attrs.field(default=False, kw_only=True, validator=instance_of(bool))
    events: EventSource | None = attrs.field(
        default=None, kw_only=True, validator=optional(_source)
    )

    def __attrs_post_init__(self) -> None:
        Rank(self.worker_id)  # refuses what is no name

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return tuple(Rank(self.worker_id, dp_rank) for dp_rank in range(self.dp_size))
