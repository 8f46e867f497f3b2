"""What an engine is told once, checked before any state exists."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import attrs

from kvlanes.engine._errors import ConfigError
from kvlanes.engine.selection import Weights

T = TypeVar("T")


def _at_least(low: float, *, finite: bool = True) -> Any:
    def check(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
        if value is None:
            return
        if not value >= low or (finite and math.isinf(value)):
            raise ConfigError(f"{attribute.name} must be >= {low} and finite, got {value}")

    return check


@attrs.frozen(kw_only=True)
class EngineConfig:
    """The settings of one engine; times in seconds, sizes in blocks or tokens.

    Attributes:
        block_size: Tokens a KV-cache block; the same for every worker of this engine.
        permits: Admission capacity, in units of weight.
        preflight_slots: Blocking preflights that may run in threads at once.
        admission_queue: Requests that may wait for permits; 0 refuses at once when full.
        admission_overtake: How many smaller requests may pass a waiting one.
        group_limit: Most weight that one group (tenant) may hold; `None` for no limit.
        request_seconds: Deadline of a request that names none.
        grace_seconds: How long a cancelled dispatch is waited for.
        close_seconds: How long closing waits for running requests before it cancels them.
        lanes: Ordered mutation streams that the ranks are spread over.
        lane_queue: Mutations that may wait in one lane.
        ttl_seconds: Life of a placement that nothing confirms, for workers without a feed.
        predicted_ttl_seconds: The same for workers with a feed, whose event should follow soon.
        index_budget_blocks: Hard limit of index entries over all ranks; `None` for no limit.
        connect_failures: Consecutive connect failures that eject a worker.
        ejection_seconds: First pause of an ejected worker; doubles up to `ejection_max_seconds`.
        overload_at: Reported share in use from which a rank is left out; above 1 never.
        load_max_age_seconds: For how long a reported load is believed.
        feed_silence_seconds: A worker that was fed and is silent for longer shows in `health()`.
        seed: Seeds every random choice; the same seed gives the same decisions.
        weights: How candidates are scored (see `Weights`).

    Raises:
        ConfigError: A number out of range, or two settings that contradict each other.
    """

    block_size: int = attrs.field(validator=_at_least(1))
    permits: int = attrs.field(default=256, validator=_at_least(1))
    preflight_slots: int = attrs.field(default=16, validator=_at_least(1))
    admission_queue: int = attrs.field(default=0, validator=_at_least(0))
    admission_overtake: int = attrs.field(default=0, validator=_at_least(0))
    group_limit: int | None = attrs.field(default=None, validator=_at_least(1))
    request_seconds: float = attrs.field(default=300.0, validator=_at_least(0, finite=False))
    grace_seconds: float = attrs.field(default=1.0, validator=_at_least(0))
    close_seconds: float = attrs.field(default=5.0, validator=_at_least(0))
    lanes: int = attrs.field(default=4, validator=_at_least(1))
    lane_queue: int = attrs.field(default=16_384, validator=_at_least(1))
    ttl_seconds: float = attrs.field(default=120.0, validator=_at_least(0, finite=False))
    predicted_ttl_seconds: float = attrs.field(default=5.0, validator=_at_least(0))
    index_budget_blocks: int | None = attrs.field(default=None, validator=_at_least(1))
    connect_failures: int = attrs.field(default=3, validator=_at_least(1))
    ejection_seconds: float = attrs.field(default=1.0, validator=_at_least(0))
    ejection_max_seconds: float = attrs.field(default=60.0, validator=_at_least(0))
    overload_at: float = attrs.field(default=0.95, validator=_at_least(0))
    load_max_age_seconds: float = attrs.field(default=15.0, validator=_at_least(0))
    feed_silence_seconds: float = attrs.field(default=10.0, validator=_at_least(0))
    seed: int = 0
    weights: Weights = attrs.field(factory=Weights, validator=attrs.validators.instance_of(Weights))

    def __attrs_post_init__(self) -> None:
        if self.predicted_ttl_seconds > self.ttl_seconds:
            raise ConfigError(
                f"predicted_ttl_seconds ({self.predicted_ttl_seconds}) must not be longer than "
                f"ttl_seconds ({self.ttl_seconds}): a prediction is the weaker guess"
            )
        if self.ejection_max_seconds < self.ejection_seconds:
            raise ConfigError(
                f"ejection_max_seconds ({self.ejection_max_seconds}) must not be shorter than "
                f"ejection_seconds ({self.ejection_seconds})"
            )
        if self.admission_overtake and not self.admission_queue:
            raise ConfigError(
                f"admission_overtake is {self.admission_overtake}, but admission_queue is 0: "
                "nobody waits, so nobody can be overtaken"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "EngineConfig":
        """Build a configuration from plain data, such as a parsed file.

        Raises:
            ConfigError: An unknown key, a missing one, or a value that is refused.
        """
        values = dict(mapping)
        if isinstance(values.get("weights"), Mapping):
            values["weights"] = _from(Weights, values["weights"])
        return _from(cls, values)


def _from(cls: type[T], values: Mapping[str, Any]) -> T:
    known = {field.name for field in attrs.fields(cast(type[Any], cls))}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"unknown keys {unknown} of {cls.__name__}; known are {sorted(known)}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__}: {error}") from error
