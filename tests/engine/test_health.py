"""What an engine says about itself, in figures and in sentences."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import pytest
import trio
from trio.testing import MockClock

from kvlanes.engine import Engine, Rank, Worker
from kvlanes.engine.testing import WorkGate
from tests.engine.scenes import ABC, conversation, running, serve
from tests.engine.test_routing import store


async def test_an_engine_without_workers_is_not_ready() -> None:
    async with running() as engine:
        assert (engine.health().ready, engine.health().problems) == (False, ())
        engine.register(*ABC)
        assert (engine.health().ready, engine.health().problems) == (True, ())


async def test_it_is_ready_while_one_rank_may_serve() -> None:
    async with running(*ABC) as engine:
        for worker in "ab":
            engine.drain(worker)
        assert engine.health().ready
        assert engine.health().problems == ("a: draining", "b: draining")
        engine.report_load(Rank("c"), "engine", 0.97)
        assert not engine.health().ready


async def report_hits(engine: Engine, measured: int, times: int) -> None:
    for _ in range(times):
        async with engine.request() as request:
            request.route(conversation(1)).succeeded(cached_tokens=measured)


async def test_a_worker_that_finds_far_less_than_expected_is_named_with_causes() -> None:
    async with running(Worker("a")) as engine:
        await serve(engine, conversation(1))
        await report_hits(engine, 16, 19)
        assert engine.health().problems == ()  # too early to judge
        await report_hits(engine, 16, 1)
        (problem,) = engine.health().problems
        assert problem.startswith("a: found 25% of the expected tokens in its cache")
        for cause in ("block size", "adapter", "cache salt", "evicts sooner", "that is off"):
            assert cause in problem
        row = engine.statistics().ranks[0]
        assert (row.predicted_tokens, row.measured_tokens) == (20 * 64, 20 * 16)


async def test_a_worker_that_finds_what_was_expected_is_not_named() -> None:
    async with running(Worker("a")) as engine:
        await serve(engine, conversation(1))
        await report_hits(engine, 64, 50)
        assert engine.health().problems == ()


async def test_a_change_shows_after_a_long_good_time_and_heals_again() -> None:
    """The judgement is of late: thousands of good requests do not hide what is bad now."""
    async with running(Worker("a")) as engine:
        await serve(engine, conversation(1))
        await report_hits(engine, 64, 2000)
        await report_hits(engine, 0, 200)
        assert len(engine.health().problems) == 1
        await report_hits(engine, 64, 300)
        assert engine.health().problems == ()


async def test_a_fed_rank_that_falls_silent_is_listed(autojump_clock: MockClock) -> None:
    """P65: also one that was configured for events and never got any."""
    async with running(Worker("a"), Worker("b", feed=True), Worker("c")) as engine:
        await store(engine, "c", conversation(1))
        await trio.sleep(9)
        assert engine.health().problems == ()
        await store(engine, "c", conversation(2))
        await trio.sleep(2)
        assert engine.health().problems == ("b: no event for 11 s; its coverage may be stale",)
        assert engine.health().ready


async def test_statistics_are_a_tree_of_snapshots() -> None:
    async with running(Worker("a", dp_size=2), permits=8) as engine, trio.open_nursery() as nursery:
        gate = WorkGate[None]()
        async with engine.request(weight=3, group="g", request_id="q") as request:
            nursery.start_soon(request.route(conversation(1)).dispatch, gate)
            await gate.entered.wait()
            told = engine.statistics()
            assert (told.open_requests, told.dispatched, told.gate.held) == (1, 1, 3)
            (presence,) = told.gate.requests
            assert (presence.request_id, presence.doing) == ("q", ("admitted", "dispatched"))
            assert [(row.rank, row.requests) for row in told.ranks] == [("a", 1), ("a:1", 0)]
            gate.open(None)
        assert told.dispatched == 1  # a snapshot stays what it was


async def test_an_overrun_shows_in_the_statistics_and_in_no_metric(
    autojump_clock: MockClock,
) -> None:
    """Design section 7: one warning and this word, but no counter anywhere."""
    async with running(Worker("a"), grace_seconds=1) as engine:
        gate = WorkGate[None](stubborn=True)
        async with engine.request(seconds=1) as request:
            await request.route(conversation(1)).dispatch(gate)
        (presence,) = engine.statistics().gate.requests
        assert presence.doing == ("overrun",)
        gate.open(None)


@pytest.mark.parametrize("call", ["statistics", "health", "digest", "check"])
async def test_looking_changes_nothing(call: str) -> None:
    async with running(*ABC) as engine:
        await serve(engine, conversation(1))
        before = engine.statistics().ranks, engine.digest()
        for _ in range(100):
            getattr(engine, call)()
        assert (engine.statistics().ranks, engine.digest()) == before
