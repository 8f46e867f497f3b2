"""What an engine is told once, checked before any state exists."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import attrs

from kvlanes.engine._errors import ConfigError
from kvlanes.engine.selection import TierWeights, Weights

T = TypeVar("T")


def _count(low: int, *, optional: bool = False) -> Any:
    def check(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value is None and optional:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ConfigError(f"{attribute.name} must be an integer >= {low}, got {value!r}")

    return check


def _number(low: float, *, finite: bool = True, above: bool = False) -> Any:
    def check(_: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= low
        if not fits or (finite and value == math.inf) or (above and value == low):
            wanted = f"{'>' if above else '>='} {low}{' and finite' if finite else ''}"
            raise ConfigError(f"{attribute.name} must be {wanted}, got {value!r}")

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
        ejection_seconds: First pause of an ejected worker; each further one is twice as long.
        ejection_max_seconds: The longest such pause.
        overload_at: Reported share in use from which a rank is left out; above 1 never.
        load_max_age_seconds: For how long a reported load is believed.
        feed_silence_seconds: A worker that was fed and is silent for longer shows in `health()`.
        seed: Seeds every random choice; the same seed gives the same decisions.
        weights: How candidates are scored (see `Weights`).

    Raises:
        ConfigError: A number out of range, or two settings that contradict each other.
    """

    block_size: int = attrs.field(validator=_count(1))
    permits: int = attrs.field(default=256, validator=_count(1))
    preflight_slots: int = attrs.field(default=16, validator=_count(1))
    admission_queue: int = attrs.field(default=0, validator=_count(0))
    admission_overtake: int = attrs.field(default=0, validator=_count(0))
    group_limit: int | None = attrs.field(default=None, validator=_count(1, optional=True))
    request_seconds: float = attrs.field(default=300.0, validator=_number(0, finite=False))
    grace_seconds: float = attrs.field(default=1.0, validator=_number(0))
    close_seconds: float = attrs.field(default=5.0, validator=_number(0))
    lanes: int = attrs.field(default=4, validator=_count(1))
    lane_queue: int = attrs.field(default=16_384, validator=_count(1))
    ttl_seconds: float = attrs.field(default=120.0, validator=_number(0, finite=False))
    predicted_ttl_seconds: float = attrs.field(default=5.0, validator=_number(0))
    index_budget_blocks: int | None = attrs.field(default=None, validator=_count(1, optional=True))
    connect_failures: int = attrs.field(default=3, validator=_count(1))
    ejection_seconds: float = attrs.field(default=1.0, validator=_number(0))
    ejection_max_seconds: float = attrs.field(default=60.0, validator=_number(0))
    overload_at: float = attrs.field(default=0.95, validator=_number(0))
    load_max_age_seconds: float = attrs.field(default=15.0, validator=_number(0, above=True))
    feed_silence_seconds: float = attrs.field(default=10.0, validator=_number(0))
    seed: int = attrs.field(default=0, validator=attrs.validators.instance_of(int))
    weights: Weights = attrs.field(factory=Weights, validator=attrs.validators.instance_of(Weights))

    def __attrs_post_init__(self) -> None:
        self._refuse_order(
            "predicted_ttl_seconds", "ttl_seconds", "a prediction is the weaker guess"
        )
        self._refuse_order("ejection_seconds", "ejection_max_seconds", "pauses only grow")
        if self.group_limit is not None:
            self._refuse_order("group_limit", "permits", "no group can hold more than there is")
        if self.admission_overtake and not self.admission_queue:
            raise ConfigError(
                f"admission_overtake is {self.admission_overtake}, but admission_queue is 0: "
                "nobody waits, so nobody can be overtaken"
            )

    def _refuse_order(self, smaller: str, larger: str, why: str) -> None:
        low, high = getattr(self, smaller), getattr(self, larger)
        if low > high:
            raise ConfigError(f"{smaller} ({low}) must not exceed {larger} ({high}): {why}")

    def refuse_settings(self, names: Iterable[str], why: str) -> None:
        """Refuse settings that would be ignored, where they differ from their defaults.

        Raises:
            ConfigError: One of them does.
        """
        fields = attrs.fields_dict(EngineConfig)
        ignored = [name for name in names if getattr(self, name) != fields[name].default]
        if ignored:
            raise ConfigError(f"{', '.join(ignored)} would be ignored: {why}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "EngineConfig":
        """Build a configuration from plain data, such as a parsed file.

        Raises:
            ConfigError: An unknown key, a missing one, or a value that is refused.
        """
        values = dict(mapping)
        if isinstance(values.get("weights"), Mapping):
            weights = dict(values["weights"])
            if isinstance(weights.get("tiers"), Mapping):
                weights["tiers"] = _from(TierWeights, weights["tiers"])
            values["weights"] = _from(Weights, weights)
        return _from(cls, values)


def _from(cls: type[T], values: Mapping[str, Any]) -> T:
    known = {field.name for field in attrs.fields(cast(type[Any], cls))}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"unknown keys {unknown} of {cls.__name__}; known are {sorted(known)}")
    try:
        return cls(**values)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{cls.__name__}: {error}") from error
