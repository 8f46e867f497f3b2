"""Ctrl-C comes between steps and never inside one: what must be atomic is protected from it."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import signal
from collections.abc import Callable, Iterator

import pytest
import trio
from trio.lowlevel import currently_ki_protected

from kvlanes.engine import Applied, Engine, Mutation, Prompt, Worker, open_engine
from kvlanes.engine.testing import assert_engine_idle
from tests.engine.scenes import ABC, answer, config, conversation, load, running
from tests.indexer.oracle import Oracle, OracleOverlap

PROMPT = conversation(1)


class Hooked(Oracle):
    """An index that calls somebody whenever it is read or written."""

    def __init__(self, hook: Callable[[], None]) -> None:
        super().__init__(16)
        self.hook = hook

    def overlap(self, prompt: Prompt) -> OracleOverlap:
        self.hook()
        return super().overlap(prompt)

    def apply(self, mutation: Mutation, now: float) -> Applied:
        self.hook()
        return super().apply(mutation, now)

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        self.hook()
        return super().drop(worker_id, dp_rank)


async def test_steps_are_protected_and_the_user_s_code_is_not() -> None:
    inside: list[bool] = []

    def note() -> None:
        inside.append(currently_ki_protected())

    def workers() -> Iterator[Worker]:
        note()
        yield from ABC

    async def work() -> None:
        assert not currently_ki_protected()

    async with running(*ABC, make_index=lambda: Hooked(note)) as engine:
        async with engine.request() as request:
            assert not currently_ki_protected()
            (await request.route(PROMPT).dispatch(work)).unwrap()
        await engine.remove("a")
        await engine.reconcile(workers())
        with engine.request_nowait():
            assert not currently_ki_protected()
    assert inside == [True] * 4  # the route, the placement, the departure, the reconciliation


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(index: Callable[[], Oracle]) -> None:
    """Run a request that Ctrl-C ends; every book must be level when the engine has closed."""
    idle: list[Engine] = []

    async def request_for_ever(engine: Engine) -> None:
        async with engine.request() as request:
            place = request.route(PROMPT)
            assert load(engine, "a") == 1  # the step was finished first
            await place.dispatch(answer, place.route)
            await trio.sleep_forever()

    async def main() -> None:
        try:
            async with open_engine(config(grace_seconds=0), make_index=index) as engine:
                engine.register(*ABC)
                await request_for_ever(engine)
        finally:
            assert_engine_idle(engine)
            idle.append(engine)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert len(idle) == 1


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_inside_a_step_is_delivered_after_it(at: int) -> None:
    """In the middle of a route, and in the middle of a placement."""
    calls: list[None] = []

    def interrupt() -> None:
        calls.append(None)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)

    interrupted(lambda: Hooked(interrupt))
    assert len(calls) >= at
