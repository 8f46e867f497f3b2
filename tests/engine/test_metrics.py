"""The Prometheus exporter: what it shows, that its series are bounded, and what it never shows."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import re
import sys

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from kvlanes.engine import (
    Engine,
    EngineCollector,
    MetricsExtraMissing,
    Worker,
    exposition,
)
from kvlanes.engine import _metrics as metrics
from kvlanes.engine.testing import WorkGate
from tests.engine.scenes import ABC, conversation, running, serve

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(engine: Engine, most_ranks: int = 512) -> Series:
    """Every sample, as a scraper reads it."""
    text = exposition(engine, most_ranks=most_ranks).decode()
    families = text_string_to_metric_families(text)
    samples = (sample for family in families for sample in family.samples)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}


async def test_figures_follow_the_statistics() -> None:
    async with running(*ABC, permits=8) as engine:
        await serve(engine, conversation(1))
        engine.drain("c")
        async with engine.request(weight=3) as request:
            request.route(conversation(1)).succeeded(cached_tokens=48)
            told = series(engine)
            assert told["kvlanes_permits", ()] == 8
            assert told["kvlanes_permits_held", ()] == 3
            assert told["kvlanes_requests_open", ()] == 1
            assert told["kvlanes_rank_requests", (("rank", "a"),)] == 1
            assert told["kvlanes_rank_decode_blocks", (("rank", "a"),)] == 4
            assert told["kvlanes_rank_available", (("rank", "a"),)] == 1
            assert told["kvlanes_rank_available", (("rank", "c"),)] == 0
            cached = "kvlanes_rank_cache_tokens_total"
            assert told[cached, (("kind", "predicted"), ("rank", "a"))] == 64
            assert told[cached, (("kind", "measured"), ("rank", "a"))] == 48
            lanes = [
                value for (name, labels), value in told.items() if name == "kvlanes_lane_depth"
            ]
            assert lanes == [0] * engine.config.lanes
            outcome = (("lane", "0"), ("outcome", "granted"))
            assert told["kvlanes_lease_blocks_total", outcome] == 4
            assert told["kvlanes_index_crashes_total", ()] == 0


async def test_a_registry_reads_the_engine_at_each_collection() -> None:
    async with running(*ABC) as engine:
        registry = CollectorRegistry()
        registry.register(EngineCollector(engine))
        assert registry.get_sample_value("kvlanes_requests_open") == 0
        with engine.request_nowait():
            assert registry.get_sample_value("kvlanes_requests_open") == 1
        assert registry.get_sample_value("kvlanes_requests_open") == 0


async def test_every_series_is_documented_and_no_other_exists() -> None:
    """The table at the head of the module is the whole set."""
    async with running(*ABC) as engine:
        names = {name for name, _ in series(engine)}
        labels = {label for _, pairs in series(engine) for label, _ in pairs}
    documented = set(re.findall(r"^\| `(kvlanes_\w+)`", metrics.__doc__ or "", re.MULTILINE))
    assert names == documented
    assert labels == {"rank", "lane", "outcome", "kind"}


async def test_the_number_of_series_does_not_grow_with_requests_or_tenants() -> None:
    async with running(*ABC, permits=64) as engine:
        before = set(series(engine))
        for number in range(50):
            async with engine.request(
                group=f"tenant-{number}", request_id=f"q-{number}"
            ) as request:
                place = request.route(conversation(number))
                place.succeeded(cached_tokens=0)
        assert set(series(engine)) == before
        text = exposition(engine).decode()
    assert "tenant" not in text
    assert "q-1" not in text


async def test_ranks_beyond_the_bound_are_summed_up() -> None:
    async with running(*ABC, Worker("d")) as engine, engine.request() as request:
        for worker in "abcd":
            request.route(conversation(1), allowed=[worker])
        told = series(engine, most_ranks=2)
        by_rank = {
            dict(labels)["rank"]: value
            for (name, labels), value in told.items()
            if name == "kvlanes_rank_requests"
        }
        assert by_rank == {"a": 1, "b": 1, "other": 2}


async def test_no_series_tells_of_overruns(autojump_clock: MockClock) -> None:
    """Design section 7: work that outlives its deadline is one warning, and no metric at all."""
    async with running(Worker("a"), grace_seconds=1) as engine:
        before = set(series(engine))
        gate = WorkGate[None](stubborn=True)
        async with engine.request(seconds=1) as request:
            await request.route(conversation(1)).dispatch(gate)
        assert engine.statistics().gate.requests[0].doing == ("overrun",)
        assert set(series(engine)) == before
        assert "overrun" not in exposition(engine).decode()
        gate.open(None)


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(*ABC) as engine:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
        for ask in (exposition, EngineCollector):
            with pytest.raises(MetricsExtraMissing, match=r"install kvlanes\[metrics\]"):
                ask(engine)
