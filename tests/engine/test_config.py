"""Configuration: checked before any state exists, and nothing in it is quietly ignored."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import math
from pathlib import Path
from typing import Any

import attrs
import pytest

import kvlanes.engine as engine_package
from kvlanes.engine import (
    AdmissionGate,
    ConfigError,
    EngineConfig,
    EngineError,
    TierWeights,
    Weights,
    Worker,
    open_engine,
)
from tests.engine.scenes import conversation, serve
from tests.indexer.oracle import Oracle

COUNTS = ("block_size", "permits", "preflight_slots", "lanes", "lane_queue", "connect_failures")
SECONDS = (
    "grace_seconds",
    "close_seconds",
    "predicted_ttl_seconds",
    "ejection_seconds",
    "ejection_max_seconds",
    "load_max_age_seconds",
    "feed_silence_seconds",
    "request_seconds",
    "ttl_seconds",
    "overload_at",
)


def config(**settings: Any) -> EngineConfig:
    return EngineConfig(**{"block_size": 16, **settings})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "4", None])
def test_a_count_is_a_positive_integer(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be an integer >= 1, got"):
        config(**{name: value})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [-0.1, math.nan, "5", None, True])
def test_a_time_is_a_number(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be >"):
        config(**{name: value})


def test_only_deadlines_and_leases_may_be_endless() -> None:
    assert config(request_seconds=math.inf, ttl_seconds=math.inf).ttl_seconds == math.inf
    for name in ("grace_seconds", "close_seconds", "ejection_max_seconds"):
        with pytest.raises(ConfigError, match=f"{name} must be >= 0 and finite, got inf"):
            config(**{name: math.inf})


@pytest.mark.parametrize("name", ["group_limit", "index_budget_blocks"])
def test_limits_that_may_be_left_out_are_counts_otherwise(name: str) -> None:
    assert getattr(config(**{name: None}), name) is None
    assert getattr(config(**{name: 3}), name) == 3
    with pytest.raises(ConfigError, match=f"{name} must be an integer >= 1, got 0"):
        config(**{name: 0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"predicted_ttl_seconds": 200.0},
            r"predicted_ttl_seconds \(200.0\) must not exceed ttl_seconds \(120.0\)",
        ),
        (
            {"ejection_seconds": 90},
            r"ejection_seconds \(90\) must not exceed ejection_max_seconds \(60.0\)",
        ),
        ({"group_limit": 300}, r"group_limit \(300\) must not exceed permits \(256\)"),
        ({"admission_overtake": 2}, "admission_overtake is 2, but admission_queue is 0"),
        ({"load_max_age_seconds": 0}, "load_max_age_seconds must be > 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    """P65: decided together at the start, not found out by an empty index."""
    with pytest.raises(ConfigError, match=message):
        config(**settings)


async def test_settings_that_something_given_decides_are_refused_not_ignored() -> None:
    """P65: an option is honoured or refused by name."""
    gate = AdmissionGate(4)
    for settings, names in (
        ({"permits": 8}, "permits"),
        ({"admission_queue": 3, "preflight_slots": 2}, "preflight_slots, admission_queue"),
    ):
        with pytest.raises(ConfigError, match=f"{names} would be ignored: the gate"):
            async with open_engine(config(**settings), gate=gate):
                pass
    with pytest.raises(ConfigError, match="index_budget_blocks would be ignored: the index"):
        async with open_engine(config(index_budget_blocks=9), make_index=lambda: Oracle(16)):
            pass
    async with open_engine(config(), gate=gate, make_index=lambda: Oracle(16)) as engine:
        assert engine.gate is gate


def test_plain_data_becomes_a_configuration() -> None:
    made = EngineConfig.from_mapping(
        {"block_size": 32, "weights": {"request": 2.0, "tiers": {"disk": 0.5}}}
    )
    assert made == EngineConfig(
        block_size=32, weights=Weights(request=2.0, tiers=TierWeights(disk=0.5))
    )


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"block_size": 16, "ttl": 5}, r"unknown keys \['ttl'\] of EngineConfig; known are"),
        ({"block_size": 16, "weights": {"overlaps": 1}}, r"unknown keys \['overlaps'\] of Weights"),
        ({"block_size": 16, "weights": {"overlap": -1}}, "overlap must be finite and >= 0"),
        ({"block_size": 16, "weights": {"tiers": {"host": math.nan}}}, "host must be finite"),
        ({"block_size": 16, "weights": 3}, "EngineConfig: .*weights"),
        ({}, "EngineConfig: .*block_size"),
    ],
)
def test_plain_data_that_is_wrong_is_refused_by_name(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_mapping(mapping)


def test_every_setting_is_documented_and_none_is_undocumented() -> None:
    text = EngineConfig.__doc__ or ""
    for field in attrs.fields(EngineConfig):
        assert f"        {field.name}: " in text, field.name


def test_configuration_errors_are_value_errors_of_the_engine() -> None:
    assert issubclass(ConfigError, EngineError)
    assert issubclass(ConfigError, ValueError)


def test_no_setting_is_accepted_and_then_ignored() -> None:
    """P65: each one is read somewhere outside of the class that declares it."""
    folder = Path(engine_package.__file__ or "").parent
    modules = [path for path in folder.glob("_*.py") if path.name != "_config.py"]
    text = "".join(path.read_text() for path in modules)
    unread = [f.name for f in attrs.fields(EngineConfig) if f"onfig.{f.name}" not in text]
    assert unread == []


async def test_the_index_keeps_its_budget() -> None:
    async with open_engine(config(index_budget_blocks=8)) as engine:
        engine.register(Worker("a"))
        for number in range(6):
            await serve(engine, conversation(number))
        kept = [engine.probe(conversation(number)).overlap for number in range(6)]
        assert 0 < sum(kept) <= 8
        assert kept[-1] == 4


async def test_lanes_and_permits_are_as_many_as_configured() -> None:
    async with open_engine(config(lanes=3, permits=7, group_limit=2)) as engine:
        assert len(engine.statistics().lanes.lanes) == 3
        assert engine.gate.total == 7
