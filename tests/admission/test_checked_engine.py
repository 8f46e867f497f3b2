"""The whole engine under cancellation, checked after every step and at its end."""
# flake8: noqa: ASYNC111, ASYNC910 - callers outlive the engine; parts of one task

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import attrs
import pytest
import trio
from trio.testing import MockClock

from kvlanes.engine import (
    AdmissionGate,
    ConfigError,
    DeadlinePassed,
    Engine,
    EngineClosed,
    EngineConfig,
    Route,
    Worker,
    open_engine,
)
from kvlanes.engine.testing import (
    Victim,
    VirtualThreads,
    assert_engine_idle,
    assert_idle,
    cancel_everywhere,
    checked_engine,
)
from kvlanes.indexer import RadixIndex, Rank, Store
from tests.support.schedule import scheduled

CONFIG = EngineConfig(block_size=4, lanes=2)
TEXT = list(range(40))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@contextlib.asynccontextmanager
async def scene(*lengths: float | None, total: int = 4) -> AsyncIterator[Engine]:
    """A checked engine of two workers, whose blocking calls take these virtual seconds."""
    async with trio.open_nursery() as threads:
        runner = VirtualThreads(threads, iter(lengths))
        gate = AdmissionGate(total, queue_limit=4, preflight_slots=1, runner=runner)
        async with checked_engine(CONFIG, gate=gate) as engine:
            engine.register(Worker("a"), Worker("b"))
            yield engine


def tokenize() -> list[int]:
    return TEXT


async def ask(route: Route, seconds: float) -> str:
    await trio.sleep(seconds)
    return route.worker


async def stubborn(route: Route, seconds: float) -> str:
    with trio.CancelScope(shield=True, relative_deadline=60):
        await trio.sleep(seconds)
    return route.worker


async def request(victim: Victim) -> None:
    """Waits for permits, prepares in a thread, is served in time, twice."""
    async with scene(1.0, 1.0) as engine, trio.open_nursery() as others:
        others.start_soon(_other, engine)
        await trio.testing.wait_all_tasks_blocked()
        with victim:
            for _ in range(2):
                async with engine.request(seconds=20, weight=3) as request:
                    tokens = await request.preflight(tokenize)
                    held = request.route(tokens)
                    (await held.dispatch(ask, held.route, 1.0)).unwrap()


async def _other(engine: Engine) -> None:
    async with engine.request(seconds=20, weight=4) as request:
        held = request.route(TEXT)
        await held.dispatch(ask, held.route, 1.0)


async def overrun(victim: Victim) -> None:
    """A thread and work that outlive their deadlines, and a reservation held across both."""
    async with scene(1.0, 5.0) as engine:
        with victim:
            async with engine.request(seconds=2, weight=2) as request:
                held = request.route(await request.preflight(tokenize))
                await held.dispatch(stubborn, held.route, 4.0)
            with contextlib.suppress(DeadlinePassed):
                async with engine.request(seconds=1) as request:
                    with request.route(TEXT):
                        await request.preflight(tokenize)


async def departure(victim: Victim) -> None:
    """A worker leaves under running work and comes back; the other leaves for good."""
    async with scene() as engine, trio.open_nursery() as others:
        others.start_soon(_other, engine)
        await trio.sleep(0.5)
        with victim:
            await engine.remove("a")
            engine.register(Worker("a"))
            await engine.remove("b")
            async with engine.request(seconds=5) as request:
                held = request.route(TEXT)
                await held.dispatch(ask, held.route, 9.0)
        await trio.sleep(9)


async def closing(victim: Victim) -> None:
    """The engine closes under work that is too long for it, by itself or cancelled."""
    gate = AdmissionGate(4)
    async with trio.open_nursery() as callers:
        with victim:
            async with open_engine(CONFIG, gate=gate) as engine:
                engine.register(Worker("a"))
                callers.start_soon(_long, engine)
                await trio.sleep(0.5)
    await gate.wait_idle()
    assert_idle(gate)


async def _long(engine: Engine) -> None:
    with contextlib.suppress(EngineClosed):
        async with engine.request(seconds=500, weight=4) as request:
            held = request.route(TEXT)
            await held.dispatch(ask, held.route, 400.0)


@pytest.mark.parametrize(
    ("scenario", "least"),
    [(request, 16), (overrun, 8), (departure, 5), (closing, 6)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_cancel_everywhere(scenario: object, least: int) -> None:
    assert callable(scenario)
    for seed in range(3):
        with scheduled(seed):
            checkpoints = cancel_everywhere(scenario)
    print(f"{getattr(scenario, '__name__', '')}: {checkpoints} checkpoints")
    assert checkpoints >= least


async def test_p82_the_prefill_leaves_the_load_at_the_first_output(
    autojump_clock: MockClock,
) -> None:
    async with scene() as engine:
        engine.drain("b")
        async with engine.request(seconds=5) as request:
            held = request.route(TEXT)
            assert engine.statistics().ranks[0].prefill_tokens == 40
            for _ in range(2):
                held.first_output()
                now = engine.statistics().ranks[0]
                assert (now.requests, now.prefill_tokens, now.decode_blocks) == (1, 0, 10)
            held.close()
            held.first_output()
            now = engine.statistics().ranks[0]
            assert (now.requests, now.prefill_tokens, now.decode_blocks) == (0, 0, 0)


async def test_a_checked_engine_notices_what_is_left(autojump_clock: MockClock) -> None:
    """Each of the books has an entry while a request runs, and `assert_engine_idle` says so."""
    async with scene() as engine:
        async with engine.request(seconds=5) as request:
            with pytest.raises(AssertionError, match="open_requests=1"):
                assert_engine_idle(engine)
            request.route(TEXT)
        assert_engine_idle(engine)


async def test_a_checked_engine_fails_for_a_permit_that_was_kept(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(AssertionError, match="held=1"):
        async with checked_engine(CONFIG) as engine:
            permit = engine.gate.admit_nowait()
    permit.close()


async def test_a_checked_engine_checks_the_index(autojump_clock: MockClock) -> None:
    class Torn(RadixIndex):
        def check(self) -> None:
            raise AssertionError("torn")

    with pytest.raises(AssertionError, match="torn"):
        async with checked_engine(CONFIG, make_index=lambda: Torn(4)):
            pass


async def test_a_checked_engine_keeps_its_index_within_the_budget(
    autojump_clock: MockClock,
) -> None:
    config = attrs.evolve(CONFIG, index_budget_blocks=4)
    async with checked_engine(config) as engine:
        engine.register(Worker("a"))
        for first in (0, 40):
            prompt = engine.prompt(range(first, first + 16))
            await engine.apply(Store(Rank("a"), None, prompt.blocks, prompt.sequence_hashes))
            assert engine.probe(prompt).overlap == 4
        assert engine.probe(TEXT).overlap == 0


async def test_a_budget_beside_an_index_of_one_s_own_is_refused_as_ever() -> None:
    config = attrs.evolve(CONFIG, index_budget_blocks=4)
    with pytest.raises(ConfigError, match="index_budget_blocks would be ignored"):
        async with checked_engine(config, make_index=lambda: RadixIndex(4)):
            raise AssertionError("opened")
