"""Each thing an engine does, cancelled at each of its scheduling points: nothing is left behind."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to be cancelled

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
import trio

from kvlanes.engine import (
    AdmissionGate,
    Engine,
    EngineClosed,
    GateClosed,
    Rank,
    Worker,
    open_engine,
)
from kvlanes.engine.testing import Victim, VirtualThreads, assert_engine_idle, cancel_everywhere
from tests.engine.scenes import ABC, config, conversation, running

PROMPT = conversation(1)


@asynccontextmanager
async def scene() -> AsyncIterator[Engine]:
    """An engine whose threads are virtual, and which is used again after the victim."""
    async with trio.open_nursery() as threads:
        runner = VirtualThreads(threads, itertools.repeat(0.5))
        gate = AdmissionGate(2, queue_limit=4, preflight_slots=1, runner=runner)
        async with running(*ABC, gate=gate, grace_seconds=1) as engine:
            yield engine
            await gate.wait_idle()
            await use(engine)
        assert engine.gate.free == 2


async def work(seconds: float) -> float:
    await trio.sleep(seconds)
    return seconds


async def unwilling(seconds: float) -> None:
    """Work whose clean-up takes longer than any grace."""
    try:
        await trio.sleep(seconds)
    finally:
        with trio.CancelScope(shield=True, relative_deadline=3):
            await trio.sleep(3)


async def use(engine: Engine) -> None:
    """A whole request, every stage of it."""
    async with engine.request(seconds=10, weight=2) as request:
        text = await request.preflight(str, 1)
        with request.route(PROMPT) as place:
            assert (await place.dispatch(work, float(text))).unwrap() == 1.0
        again = request.route(PROMPT, exclude=[place.route.worker])
        await again.dispatch(work, 20)


async def contend(engine: Engine) -> None:
    """Three requests of which two fit, so that one of them waits."""
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(one_place, engine)


async def one_place(engine: Engine) -> None:
    async with engine.request() as request:
        await request.route(PROMPT).dispatch(work, 1)


async def struggle(engine: Engine) -> None:
    async with engine.request(seconds=2) as request:
        await request.route(PROMPT).dispatch(unwilling, 9)


async def lose(engine: Engine) -> None:
    """The worker goes while work runs on it, and comes back."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_place, engine)
        await trio.sleep(0.1)
        await engine.remove("a")
        engine.register(Worker("a"))


async def reshape(engine: Engine) -> None:
    await engine.update(Worker("a", dp_size=3))
    engine.restarted(Rank("a", 2))
    await engine.reconcile([Worker("a", dp_size=2), Worker("d")])
    await engine.reconcile(ABC)


async def stream(engine: Engine) -> None:
    """A reservation held across yields, by a generator that is closed in the cancelled task."""

    async def words() -> AsyncGenerator[int, None]:
        async with engine.request(seconds=60) as request:
            place = request.route(PROMPT)
            for word in range(3):
                await trio.sleep(0.1)
                place.grow(1)
                yield word
            place.succeeded(cached_tokens=0)

    async with aclosing(words()) as stream_of_words:
        async for _ in stream_of_words:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("victim", "at_least"),
    [(use, 8), (contend, 10), (struggle, 5), (lose, 6), (reshape, 3)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_cancellation_at_any_checkpoint_leaves_every_book_at_zero(
    victim: Callable[[Engine], Awaitable[None]], at_least: int
) -> None:
    async def scenario(cancelled: Victim) -> None:
        async with scene() as engine:
            with cancelled:
                await victim(engine)
        assert_engine_idle(engine)

    assert cancel_everywhere(scenario) >= at_least


def test_a_stream_that_is_cancelled_at_any_checkpoint_leaves_nothing() -> None:
    """P01: also in the middle of its close."""

    async def scenario(cancelled: Victim) -> None:
        async with scene() as engine:
            with cancelled:
                await stream(engine)

    assert cancel_everywhere(scenario) >= 5


async def unless_closed(work: Callable[[Engine], Awaitable[None]], engine: Engine) -> None:
    with suppress(EngineClosed, GateClosed):
        await work(engine)


def test_closing_that_is_cancelled_at_any_checkpoint_still_ends_everything() -> None:
    async def scenario(cancelled: Victim) -> None:
        async with trio.open_nursery() as nursery:
            with cancelled:
                async with open_engine(config(close_seconds=2, grace_seconds=1)) as engine:
                    engine.register(*ABC)
                    nursery.start_soon(unless_closed, one_place, engine)
                    nursery.start_soon(unless_closed, struggle, engine)
                    await trio.sleep(0.2)
        assert_engine_idle(engine)

    assert cancel_everywhere(scenario) >= 5
