"""What a worker's events may still do when its life has changed, and what goes first in a step."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kvlanes.engine import Engine, Rank, Store, Worker
from kvlanes.engine.feeds import EventSink, ResyncNeeded
from tests.engine.scenes import conversation, held, running, serve
from tests.indexer.oracle import Oracle

A = Rank("a")
PROMPT = conversation(1)


@attrs.define(eq=False)
class Source:
    """Follows a worker as a test says, anew with each sink."""

    follow: Callable[[EventSink], Awaitable[None]]

    async def run(self, sink: EventSink) -> None:
        await self.follow(sink)


def announced(rank: Rank) -> Store:
    return Store(rank, None, PROMPT.blocks, PROMPT.sequence_hashes)


def listed(engine: Engine) -> list[str]:
    return [row.rank for row in engine.statistics().ranks]


@pytest.mark.parametrize("again", [True, False], ids=["registered anew", "gone"])
async def test_a_source_that_fails_late_clears_nothing_of_the_next_registration(
    again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fails = trio.Event()

    async def follow(_: EventSink) -> None:
        with trio.CancelScope(shield=True):
            await fails.wait()
        raise LookupError("late")

    async with running(Worker("a", events=Source(follow))) as engine:
        await wait_all_tasks_blocked()
        await engine.remove("a")
        if again:
            engine.register(Worker("a"))
            await engine.apply(announced(A))
        fails.set()
        await wait_all_tasks_blocked()
        assert "the feed of worker 'a' failed" in caplog.text
        assert held(engine, PROMPT) == ({"a": 4} if again else {})
        assert engine.lanes.statistics().total("ranks") == int(again)


async def test_a_source_begins_anew_where_its_worker_has_other_ranks() -> None:
    sizes: list[int] = []

    async def follow(sink: EventSink) -> None:
        ranks = [rank for number in range(4) if (rank := sink.rank(number))]
        sizes.append(len(ranks))
        for rank in ranks:
            await sink.apply(rank, [announced(rank)])
        await trio.sleep_forever()

    source = Source(follow)
    async with running(Worker("a", events=source)) as engine:
        await wait_all_tasks_blocked()
        await engine.update(Worker("a", events=source, capabilities=frozenset({"json"})))
        await wait_all_tasks_blocked()
        assert sizes == [1]
        await engine.update(Worker("a", events=source, dp_size=2))
        await wait_all_tasks_blocked()
        assert sizes == [1, 2]
        assert held(engine, PROMPT) == {"a": 4, "a:1": 4}


async def test_events_of_an_ended_life_leave_the_pool_of_the_next_one_modelled() -> None:
    goes_on = trio.Event()

    async def follow(sink: EventSink) -> None:
        await goes_on.wait()
        with pytest.raises(ResyncNeeded, match="began anew"):
            await sink.apply(A, [announced(A)])
        await trio.sleep_forever()

    async with running(Worker("a", capacity_blocks=8, events=Source(follow))) as engine:
        await wait_all_tasks_blocked()
        engine.restarted(A)
        goes_on.set()
        await wait_all_tasks_blocked()
        await serve(engine, PROMPT)
        assert engine.probe(PROMPT).source == "modelled"
        assert not engine.statistics().ranks[0].fed


class Watched(Oracle):
    """An index that looks at the engine when it is told to drop somebody."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(16)
        self.look = look

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        self.look()
        return super().drop(worker_id, dp_rank)


async def test_who_leaves_has_left_before_anybody_comes() -> None:
    """Not even from inside the step do both count: their capacity twice, or two of one name."""
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(listed(engine))

    workers = (Worker("a", dp_size=2), Worker("b"))
    async with running(*workers, make_index=lambda: Watched(look)) as engine:
        await engine.reconcile([Worker("a:1"), Worker("b")])
        assert seen == [["b"], ["b"]]
        assert listed(engine) == ["b", "a:1"]
