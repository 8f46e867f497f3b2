"""Event sources that do not do what the protocol asks for."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import logging
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.engine import Clear, Rank, Store, Worker, open_engine
from kvlanes.engine.feeds import EventSink
from tests.engine.scenes import config, conversation, running, serve

A = Rank("a")


@attrs.define(eq=False)
class Source:
    """Runs what a test says."""

    follow: Callable[[EventSink], Awaitable[None]]

    async def run(self, sink: EventSink) -> None:
        await self.follow(sink)


async def test_who_has_only_begun_to_follow_says_nothing_about_the_engine() -> None:
    """A follower begins with a clear of its own; the engine's first store is another matter."""
    goes_on = trio.Event()

    async def follow(sink: EventSink) -> None:
        await sink.apply(A, [Clear(A)])
        await goes_on.wait()
        prompt = conversation(2)
        await sink.apply(A, [Store(A, None, prompt.blocks, prompt.sequence_hashes)])
        await trio.sleep_forever()

    async with running(Worker("a", capacity_blocks=8, events=Source(follow))) as engine:
        await wait_all_tasks_blocked()
        await serve(engine, conversation(1))
        assert engine.probe(conversation(1)).source == "modelled"
        goes_on.set()
        await wait_all_tasks_blocked()
        assert engine.probe(conversation(2)).source == "confirmed"


async def test_a_source_that_does_not_end_keeps_closing_open_and_is_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn(_: EventSink) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)

    async with open_engine(config(close_seconds=1, grace_seconds=1)) as engine:
        engine.register(Worker("a", events=Source(stubborn)))
        await wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() == began + 10
    lines = {record.getMessage() for record in caplog.records}
    assert lines == {"closing the engine: the event sources of a have not ended"}


async def test_an_error_beside_the_cancellation_of_a_source_does_not_leave_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def breaks_on_its_way_out(_: EventSink) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError("the clean-up broke")

    with trio.CancelScope() as host:
        async with open_engine(config(close_seconds=1, grace_seconds=1)) as engine:
            engine.register(Worker("a", events=Source(breaks_on_its_way_out)))
            await wait_all_tasks_blocked()
            host.cancel()
            await trio.lowlevel.checkpoint()
    assert host.cancelled_caught
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == ["the feed of worker 'a' failed"]
