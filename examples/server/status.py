"""What the page shows: figures of the gate, the models and the last decisions, as plain data.

No prompt text, token, key or namespace is in reach of this module.
"""

from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Protocol, cast

import attrs
import trio

from kvlanes.engine import (
    AdmissionGate,
    Engine,
    EngineStatistics,
    RadixIndex,
    Rank,
    RankStatistics,
    Route,
)
from kvlanes.engine.decisions import Json, dump_json

_KEPT = 12  # decisions
_ROWS = 16  # candidates of one decision


class IndexWatch:
    """Makes a model's index, and knows the one that lives: after a crash there is a new one."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._index = RadixIndex(block_size)

    def __call__(self) -> RadixIndex:
        """A new index, for `open_engine`."""
        self._index = RadixIndex(self._block_size)
        return self._index

    def held(self, worker: str) -> int:
        """Blocks that a worker holds."""
        return self._index.held(Rank(worker))

    def totals(self) -> Json:
        return cast(Json, attrs.asdict(self._index.statistics()))


class Shown(Protocol):
    """A model as the page sees it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def index(self) -> IndexWatch: ...


@attrs.frozen
class Decided:
    """One routing decision."""

    serial: int
    request_id: str
    model: str
    route: Route


class Recent:
    """The last decisions, oldest first. The server's executions are the only writers."""

    def __init__(self) -> None:
        self._kept: deque[Decided] = deque(maxlen=_KEPT)
        self._serial = count(1)

    def note(self, request_id: str, model: str, route: Route) -> None:
        self._kept.append(Decided(next(self._serial), request_id, model, route))

    def told(self) -> list[Json]:
        """Each with its candidates. O(candidates)."""
        return [_decision(decided) for decided in self._kept]


@attrs.frozen
class Status:
    """Looks at everything once, when asked. Changes nothing."""

    gate: AdmissionGate
    models: Mapping[str, Shown]
    recent: Recent

    def told(self) -> bytes:
        """All of it as JSON. O(permits + ranks + lanes + decisions). Never a checkpoint."""
        models: list[Json] = [_model(name, model) for name, model in self.models.items()]
        return dump_json(
            {"permits": _permits(self.gate), "models": models, "decisions": self.recent.told()}
        )

    def engines(self) -> dict[str, Engine]:
        return {name: model.engine for name, model in self.models.items()}

    def readiness(self) -> tuple[bool, Json]:
        """Whether every model can be served, and what is wrong with each."""
        states = {name: model.engine.health() for name, model in self.models.items()}
        ready = bool(states) and all(state.ready for state in states.values())
        models: dict[str, Json] = {
            name: {"ready": state.ready, "problems": list(state.problems)}
            for name, state in states.items()
        }
        return ready, {"ready": ready, "models": models}


def _permits(gate: AdmissionGate) -> Json:
    now, statistics = trio.current_time(), gate.statistics()
    holders: list[Json] = [
        {
            "id": presence.request_id or "",
            "weight": presence.weight,
            "seconds": round(now - presence.since, 1),
            "doing": list(presence.doing),
        }
        for presence in statistics.requests
    ]
    return {
        "total": statistics.total,
        "held": statistics.held,
        "free": statistics.free,
        "waiting": statistics.waiting,
        "threads": statistics.threads,
        "requests": holders,
    }


def _model(name: str, model: Shown) -> Json:
    statistics, health = model.engine.statistics(), model.engine.health()
    workers: list[Json] = [_worker(rank, model.index) for rank in statistics.ranks]
    return {
        "name": name,
        "ready": health.ready,
        "problems": list(health.problems),
        "open_requests": statistics.open_requests,
        "dispatched": statistics.dispatched,
        "index": model.index.totals(),
        "workers": workers,
        "lanes": _lanes(statistics),
    }


def _worker(rank: RankStatistics, index: IndexWatch) -> Json:
    return {**attrs.asdict(rank), "coverage_blocks": index.held(rank.rank)}


def _lanes(statistics: EngineStatistics) -> list[Json]:
    return [{"lane": i, **attrs.asdict(lane)} for i, lane in enumerate(statistics.lanes.lanes)]


def _decision(decided: Decided) -> Json:
    explanation = decided.route.explanation
    rows: list[Json] = [
        {
            "rank": str(row.rank),
            "held_blocks": row.held.blocks,
            "prefill": row.prefill,
            "saved": row.saved,
            "decode": row.decode,
            "requests": row.requests,
            "cost": row.cost,
            "chosen": row.chosen,
        }
        for row in explanation.rows[:_ROWS]
    ]
    excluded: list[Json] = [[rank, why] for rank, why in explanation.excluded.items()]
    return {
        "serial": decided.serial,
        "request_id": decided.request_id,
        "model": decided.model,
        "worker": decided.route.worker,
        "overlap": decided.route.overlap,
        "blocks": decided.route.blocks,
        "source": decided.route.source,
        "regret": explanation.regret,
        "rows": rows,
        "excluded": excluded,
    }
