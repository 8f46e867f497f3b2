"""An engine's figures for Prometheus: a bounded set of series, read from `Engine.statistics`.

| series | labels | what |
|---|---|---|
| `kvlanes_permits` | | weight that may be held at once |
| `kvlanes_permits_held` | | what is held of it |
| `kvlanes_requests_open` | | requests that have arrived and not been left |
| `kvlanes_requests_waiting` | | those of them that wait at the gate |
| `kvlanes_dispatches` | | dispatched work that runs |
| `kvlanes_preflights` | | blocking calls that run in threads |
| `kvlanes_preflights_waiting` | | blocking calls that wait for a thread |
| `kvlanes_rank_available` | rank | 1 while the rank may serve |
| `kvlanes_rank_requests` | rank | requests that run there |
| `kvlanes_rank_prefill_tokens` | rank | prompt tokens before a first output |
| `kvlanes_rank_decode_blocks` | rank | blocks of running requests |
| `kvlanes_rank_cache_tokens_total` | rank, kind | cached tokens, `predicted` and `measured` |
| `kvlanes_lane_depth` | lane | mutations that wait |
| `kvlanes_lane_expiry_lag_seconds` | lane | how late leases end |
| `kvlanes_lane_mutations_total` | lane, outcome | `applied`, `rejected`, `dropped` |
| `kvlanes_lease_blocks_total` | lane, outcome | `granted`, `refreshed`, `expired` |
| `kvlanes_index_crashes_total` | | indexes that broke and were replaced |

No label is something that a caller chooses. Ranks beyond a bound are summed up as `other`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from kvlanes.engine._engine import Engine
from kvlanes.engine._errors import EngineError
from kvlanes.engine._status import EngineStatistics, RankStatistics
from kvlanes.nursery import LaneStatistics

if TYPE_CHECKING:
    from prometheus_client import Metric

OTHER = "other"

Samples: TypeAlias = list[tuple[tuple[str, ...], float]]
Figure: TypeAlias = tuple[str, str, Callable[[RankStatistics], float]]


class MetricsExtraMissing(EngineError, ImportError):
    """The extra `metrics` is not installed."""

    def __init__(self) -> None:
        super().__init__("metrics need prometheus-client: install kvlanes[metrics]")


def exposition(engine: Engine, *, most_ranks: int = 512) -> bytes:
    """The engine's figures in Prometheus' text format. O(ranks + lanes); never a checkpoint.

    To be called in the engine's Trio thread, as all that reads its books.

    Args:
        engine: Whose figures.
        most_ranks: Ranks with series of their own; the others are summed up.

    Raises:
        MetricsExtraMissing: The extra `metrics` is not installed.
    """
    collector = EngineCollector(engine, most_ranks=most_ranks)
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


class EngineCollector:
    """An engine's figures for a `prometheus_client` registry, read whenever it is collected.

    The registry must be collected in the engine's Trio thread.

    Args:
        engine: Whose figures.
        most_ranks: Ranks with series of their own; the others are summed up.

    Raises:
        MetricsExtraMissing: The extra `metrics` is not installed.
    """

    __slots__ = ("_counter_family", "_engine", "_gauge_family", "_most_ranks")

    def __init__(self, engine: Engine, *, most_ranks: int = 512) -> None:
        # Imported here and not above: an engine works without the extra.
        try:
            from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        except ImportError as error:
            raise MetricsExtraMissing from error
        self._engine = engine
        self._most_ranks = most_ranks
        self._gauge_family = GaugeMetricFamily
        self._counter_family = CounterMetricFamily

    def collect(self) -> Iterator[Any]:
        """Every metric family, with what is true now."""
        now = self._engine.statistics()
        yield from self._gate(now)
        yield from self._ranks(now.ranks)
        yield from self._lanes(now.lanes.lanes)
        text = "Indexes that broke and were replaced"
        yield self._counter("index_crashes", text, (), [((), now.lanes.crashes)])

    def _gauge(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> "Metric":
        family = self._gauge_family(f"kvlanes_{name}", text, labels=labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family

    def _counter(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> "Metric":
        family = self._counter_family(f"kvlanes_{name}", text, labels=labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family

    def _gate(self, now: EngineStatistics) -> Iterator["Metric"]:
        gate = now.gate
        for name, text, value in (
            ("permits", "Weight that may be held at once", gate.total),
            ("permits_held", "Weight that is held", gate.held),
            ("requests_open", "Requests that have arrived and not been left", now.open_requests),
            ("requests_waiting", "Requests that wait at the gate", gate.waiting),
            ("dispatches", "Dispatched work that runs", now.dispatched),
            ("preflights", "Blocking calls that run in threads", gate.threads),
            ("preflights_waiting", "Blocking calls without a thread yet", gate.waiting_for_thread),
        ):
            yield self._gauge(name, text, (), [((), value)])

    def _ranks(self, rows: Sequence[RankStatistics]) -> Iterator["Metric"]:
        for name, text, value in RANK_FIGURES:
            yield self._gauge(name, text, ("rank",), self._by_rank(rows, value))
        expected = self._by_rank(rows, lambda row: row.predicted_tokens, "predicted")
        found = self._by_rank(rows, lambda row: row.measured_tokens, "measured")
        text = "Prompt tokens in its cache, of requests that said how many"
        yield self._counter("rank_cache_tokens", text, ("rank", "kind"), expected + found)

    def _by_rank(
        self, rows: Sequence[RankStatistics], value: Callable[[RankStatistics], float], *kind: str
    ) -> Samples:
        own, others = rows[: self._most_ranks], rows[self._most_ranks :]
        samples: Samples = [((row.rank, *kind), float(value(row))) for row in own]
        if others:
            samples.append(((OTHER, *kind), float(sum(value(row) for row in others))))
        return samples

    def _lanes(self, rows: Sequence[LaneStatistics]) -> Iterator["Metric"]:
        lanes = [(str(number), row) for number, row in enumerate(rows)]
        depths: Samples = [((lane,), row.depth) for lane, row in lanes]
        yield self._gauge("lane_depth", "Mutations that wait", ("lane",), depths)
        late: Samples = [((lane,), row.expiry_lag_seconds) for lane, row in lanes]
        yield self._gauge("lane_expiry_lag_seconds", "How late leases end", ("lane",), late)
        for name, text, outcomes in LANE_OUTCOMES:
            yield self._counter(
                name,
                text,
                ("lane", "outcome"),
                [
                    ((lane, outcome), getattr(row, figure))
                    for lane, row in lanes
                    for outcome, figure in outcomes
                ],
            )


RANK_FIGURES: tuple[Figure, ...] = (
    ("rank_available", "Whether the rank may serve", lambda row: row.left_out is None),
    ("rank_requests", "Requests that run there", lambda row: row.requests),
    ("rank_prefill_tokens", "Tokens before a first output", lambda row: row.prefill_tokens),
    ("rank_decode_blocks", "Blocks of running requests", lambda row: row.decode_blocks),
)

LANE_OUTCOMES = (
    (
        "lane_mutations",
        "Mutations, by what became of them",
        (("applied", "applied"), ("rejected", "rejected"), ("dropped", "posts_dropped")),
    ),
    (
        "lease_blocks",
        "Leased blocks, by what happened to them",
        (
            ("granted", "leases_granted"),
            ("refreshed", "leases_refreshed"),
            ("expired", "leases_expired"),
        ),
    ),
)
