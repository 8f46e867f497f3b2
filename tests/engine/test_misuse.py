"""What a program gets wrong is refused by name, with the figures, before anything is counted."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import math
from typing import Any

import pytest

from kvlanes.engine import (
    AdmissionGate,
    BlockSizeMismatch,
    Clear,
    Engine,
    EngineConfig,
    RadixIndex,
    Rank,
    RanksAlike,
    Worker,
    open_engine,
)
from kvlanes.engine.testing import assert_engine_idle
from tests.engine.scenes import ABC, config, conversation, running


@pytest.mark.parametrize("count", [math.nan, 1.5, True])
async def test_a_count_of_a_reservation_is_an_integer(count: Any) -> None:
    async with running(*ABC) as engine, engine.request() as request:
        with request.route(conversation(1)) as place:
            with pytest.raises(TypeError, match="blocks must be an integer"):
                place.grow(count)
            with pytest.raises((TypeError, ValueError), match="cached_tokens must be"):
                place.succeeded(cached_tokens=count)
            engine.check()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tier_weights": {"host": 1.0}}, "tier_weights"),
        ({"capabilities": [1]}, "capabilities must be words, got 1"),
        ({"feed": "yes"}, "feed"),
        ({"events": object()}, r"events must have a method `run\(sink\)`"),
    ],
)
def test_a_field_of_a_worker_is_what_it_says(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Worker("a", **fields)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"config": {"block_size": 16}}, TypeError, "config must be an EngineConfig"),
        ({"gate": 3}, TypeError, "gate must be an AdmissionGate, got 3"),
        ({"make_index": lambda: 3}, TypeError, "make_index makes an index, .*, got 3"),
        (
            {"make_index": lambda: RadixIndex(32)},
            BlockSizeMismatch,
            "the index has blocks of 32 tokens",
        ),
    ],
)
async def test_an_engine_is_not_opened_on_what_cannot_work(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        async with open_engine(**{"config": config(), **given}):
            raise AssertionError("opened")


async def test_an_index_of_another_block_size_names_both_sizes() -> None:
    with pytest.raises(BlockSizeMismatch) as refusal:
        async with open_engine(config(), make_index=lambda: RadixIndex(32)):
            raise AssertionError("opened")
    assert (refusal.value.got, refusal.value.expected) == (32, 16)


TWO = Worker("gpu-0", dp_size=2)
ALIKE = Worker("gpu-0:1")


def names(engine: Engine) -> list[str]:
    return [row.rank for row in engine.statistics().ranks]


async def test_no_two_ranks_bear_one_name() -> None:
    message = "worker 'gpu-0:1' and rank 1 of 'gpu-0' would bear one name"
    async with running() as engine:
        with pytest.raises(RanksAlike, match=message):
            engine.register(TWO, ALIKE)
        engine.register(TWO)
        with pytest.raises(RanksAlike, match=message):
            engine.register(ALIKE)
        await engine.update(Worker("gpu-0"))
        engine.register(ALIKE, Worker("10.0.0.1:8000"), Worker("10.0.0.1"), Worker("gpu-0:01"))
        with pytest.raises(RanksAlike, match=message):
            await engine.update(TWO)
        assert names(engine) == ["gpu-0", "gpu-0:1", "10.0.0.1:8000", "10.0.0.1", "gpu-0:01"]


async def test_a_set_of_workers_is_judged_as_it_will_be() -> None:
    """Names that change hands: who bears one leaves in the step in which the other comes."""
    async with running(TWO, Worker("gone")) as engine:
        with pytest.raises(RanksAlike):
            await engine.reconcile([ALIKE, TWO])
        assert names(engine) == ["gpu-0", "gpu-0:1", "gone"]
        await engine.reconcile([ALIKE, Worker("gpu-0")])
        assert sorted(names(engine)) == ["gpu-0", "gpu-0:1"]
        await engine.apply(Clear(Rank("gpu-0:1")))
        await engine.reconcile([TWO])
        await engine.apply(Clear(Rank("gpu-0", 1)))


async def test_a_reservation_reports_an_unreachable_worker_once() -> None:
    async with running(Worker("a"), connect_failures=2) as engine, engine.request() as request:
        place = request.route(conversation(1))
        for _ in range(5):
            place.connect_failed()
        assert engine.health().ready
        request.route(conversation(2)).connect_failed()
        assert not engine.health().ready


async def test_a_rank_is_not_its_worker_s_name() -> None:
    async with running(*ABC) as engine:
        wrong: Any = "a"
        with pytest.raises(TypeError, match="a rank is a Rank, got 'a'"):
            engine.restarted(wrong)
        with pytest.raises(TypeError, match="a rank is a Rank, got 'a'"):
            engine.report_load(wrong, "scheduler", 0.5)
        with pytest.raises(TypeError, match="a rank is a Rank, got 'a'"):
            await engine.apply(Clear(wrong))


async def test_health_is_ready_only_while_requests_are_admitted() -> None:
    gate = AdmissionGate(2)
    async with open_engine(EngineConfig(block_size=16), gate=gate) as engine:
        engine.register(Worker("a"))
        assert engine.health().ready
        gate.set_total(0)
        assert not engine.health().ready
        assert engine.health().problems == ("the gate is paused: its total is 0",)
        gate.set_total(2)
        assert engine.health().ready
        gate.close()
        assert engine.health().problems == ("the gate is closed",)
        assert not engine.health().ready
    assert engine.health().problems == ("the engine is closing",)
    assert not engine.health().ready
    assert_engine_idle(engine)
