"""Ctrl-C before every line of the engine that has no protection: its books stay level, it ends."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to be dispatched

import logging
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

import kvlanes.engine
from kvlanes.engine import (
    AdmissionGate,
    Engine,
    Rank,
    Reservation,
    Store,
    Worker,
    open_engine,
)
from kvlanes.engine.feeds import EventSink
from kvlanes.engine.testing import VirtualThreads, assert_engine_idle
from tests.engine.scenes import config, conversation
from tests.nursery.test_interrupts import ctrl_c as ctrl_c
from tests.support.interrupts import Interrupter, bounded
from tests.support.schedule import scheduled

ENGINE = Path(kvlanes.engine.__file__).parent
FOLDERS = (ENGINE, ENGINE / "load", ENGINE / "selection", ENGINE.parent / "admission")
OURS = {str(path) for folder in FOLDERS for path in folder.glob("*.py")}
PROMPT = conversation(1)


@attrs.define(eq=False)
class Told:
    """A source that tells one store, and goes on listening."""

    listening: int = 0

    async def run(self, sink: EventSink) -> None:
        rank = sink.rank(0)
        assert rank is not None
        self.listening += 1
        try:
            await sink.apply(rank, [Store(rank, None, PROMPT.blocks, PROMPT.sequence_hashes)])
            await trio.sleep_forever()
        finally:
            self.listening -= 1


async def answer(place: Reservation) -> None:
    place.first_output()
    place.grow(2)
    await trio.sleep(1.0)
    place.succeeded(16)


async def serve(engine: Engine, name: int) -> None:
    async with engine.request(seconds=5.0) as request:
        await request.preflight(int)
        place = request.route(conversation(name))
        await place.dispatch(answer, place)


async def everything(engine: Engine, source: Told) -> None:
    told = Worker("c", events=source)
    engine.register(Worker("a", capacity_blocks=8), Worker("b", dp_size=2), told)
    async with trio.open_nursery() as nursery:
        for name in range(4):
            nursery.start_soon(serve, engine, name)
    with engine.request_nowait() as request:
        place = request.route(PROMPT)
        place.first_output()
        place.grow(1)
    for draining in (True, False):
        engine.drain("a", draining=draining)
    engine.connect_failed("b")
    engine.restarted(Rank("b", 1))
    engine.report_load(Rank("b"), "engine", 0.2)
    engine.health()
    await engine.update(Worker("b", dp_size=3))
    await engine.reconcile([Worker("a", capacity_blocks=8), Worker("d")])
    await engine.remove("d")


async def level(engine: Engine, source: Told) -> None:
    """What ran has ended, every book says so, and nobody is listed but deaf."""
    await engine.wait_quiet()
    await engine.gate.wait_idle()
    await trio.sleep(1.0)
    engine.check()
    rows = engine.statistics().ranks
    assert source.listening == sum(row.rank == "c" for row in rows)
    for row in rows:
        assert (row.requests, row.prefill_tokens, row.decode_blocks) == (0, 0, 0), row


async def main() -> None:
    opened: list[Engine] = []
    source = Told()
    async with trio.open_nursery() as threads:
        gate = AdmissionGate(2, queue_limit=10, runner=VirtualThreads(threads, repeat(0.5)))
        try:
            async with open_engine(config(grace_seconds=1, close_seconds=1), gate=gate) as engine:
                opened.append(engine)
                try:
                    await everything(engine, source)
                finally:
                    with trio.fail_after(60.0, shield=True):
                        await level(engine, source)
        finally:
            threads.cancel_scope.cancel()
            for engine in opened:
                assert_engine_idle(engine)


def run(interrupter: Interrupter) -> None:
    with bounded(), interrupter, scheduled(1):
        trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_wherever_ctrl_c_comes_the_books_are_level_and_the_engine_ends() -> None:
    run(clean := Interrupter(OURS))
    for line in clean.lines:
        try:
            run(Interrupter(OURS, line))
        except* KeyboardInterrupt:
            pass
        except* BaseException as group:
            group.add_note(f"interrupted at {line}")
            raise
        else:
            pytest.fail(f"nothing was raised at {line}")
