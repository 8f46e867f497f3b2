"""Sources of registered workers: begun, ended and replaced together with the registration."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from kvlanes.engine import (
    Clear,
    Engine,
    EngineConfig,
    Failed,
    Prompt,
    Rank,
    Store,
    Worker,
    WorkerLost,
    open_engine,
)
from kvlanes.engine.feeds import EventSink, Feed, FeedState, ResyncNeeded
from tests.feeds.engines import PATIENCE_SECONDS, dialling, engine
from tests.feeds.pool import BLOCK_SIZE, CHAINS, tokens_of

TOKENS = tokens_of(CHAINS[2])
BLOCKS = Prompt(TOKENS, BLOCK_SIZE)


def config() -> EngineConfig:
    return EngineConfig(block_size=BLOCK_SIZE, feed_silence_seconds=0.001)


@attrs.define(eq=False)
class Played:
    """A source that does what a test tells it, and says when it began and ended."""

    sink: EventSink | None = None
    runs: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)
    began: trio.Event = attrs.field(factory=trio.Event)
    fails: bool = False

    async def run(self, sink: EventSink) -> None:
        self.sink = sink
        self.runs += 1
        rank = sink.rank(0)
        assert rank is not None
        sink.watch(Feed("played", rank))
        self.began.set()
        try:
            if self.fails:
                await sink.apply(rank, [self.store(rank)])
                raise LookupError("the source broke")
            await trio.sleep_forever()
        finally:
            self.ended.set()

    def store(self, rank: Rank) -> Store:
        return Store(rank, None, BLOCKS.blocks, BLOCKS.sequence_hashes)


Told = Callable[[Engine, Played, EventSink, Rank], Awaitable[None]]


async def played(scene: Told) -> None:
    source = Played()
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_engine(config()) as router:
            router.register(Worker("w0", events=source), Worker("w1"))
            await source.began.wait()
            assert source.sink is not None
            await scene(router, source, source.sink, Rank("w0"))
        assert source.ended.is_set()


async def test_events_of_a_registered_worker_decide_the_route() -> None:
    async with engine() as publisher, open_engine(config()) as router:
        await publisher.tell("store", chain=2)
        with trio.fail_after(PATIENCE_SECONDS):
            router.register(Worker("w0"), Worker("w1", events=dialling(publisher)))
            await trio.testing.wait_all_tasks_blocked()
            (feed,) = router.feeds()
            await feed.until(lambda feed: feed.state is FeedState.LIVE)
            route = router.probe(TOKENS)
        assert (route.worker, route.overlap) == ("w1", 4)
        assert router.health().problems == ()
        router.check()


async def test_a_restarted_engine_process_ends_what_ran_there() -> None:
    async def scene(router: Engine, source: Played, sink: EventSink, rank: Rank) -> None:
        await sink.apply(rank, [source.store(rank)])
        async with router.request(seconds=60) as request:
            held = request.route(TOKENS)
            assert held.route.worker == "w0"

            async def ask() -> None:
                await sink.restart(rank)
                await trio.sleep_forever()

            outcome = await held.dispatch(ask)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, WorkerLost)
        assert router.probe(TOKENS).overlap == 0
        await sink.apply(rank, [source.store(rank)])
        assert router.probe(TOKENS).overlap == 4

    await played(scene)


async def test_a_resync_empties_the_coverage_and_nothing_else() -> None:
    async def scene(router: Engine, source: Played, sink: EventSink, rank: Rank) -> None:
        await sink.apply(rank, [source.store(rank)])
        async with router.request(seconds=60) as request:
            held = request.route(TOKENS)

            async def ask() -> str:
                await sink.resync(rank)
                assert router.probe(TOKENS).overlap == 0
                return "answered"

            assert (await held.dispatch(ask)).unwrap() == "answered"
        await sink.apply(rank, [source.store(rank)])
        router.check()

    await played(scene)


async def test_a_rank_that_began_anew_asks_its_source_to_begin_anew() -> None:
    async def scene(router: Engine, source: Played, sink: EventSink, rank: Rank) -> None:
        assert not sink.lost(rank)
        router.restarted(rank)
        assert sink.lost(rank)
        with pytest.raises(ResyncNeeded, match="w0"):
            await sink.apply(rank, [source.store(rank)])
        await sink.resync(rank)
        await sink.apply(rank, [source.store(rank)])
        assert router.probe(TOKENS).overlap == 4

    await played(scene)


async def test_a_source_that_is_late_changes_nothing() -> None:
    async def scene(router: Engine, source: Played, sink: EventSink, rank: Rank) -> None:
        await router.remove("w0")
        await source.ended.wait()
        router.register(Worker("w0"))
        await router.apply(source.store(rank))
        assert list(await sink.apply(rank, [Clear(rank)])) == []
        await sink.resync(rank)
        await sink.restart(rank)
        assert router.probe(TOKENS).overlap == 4
        assert router.feeds() == ()

    await played(scene)


async def test_a_changed_worker_keeps_its_source_unless_that_changed() -> None:
    async def scene(router: Engine, source: Played, sink: EventSink, rank: Rank) -> None:
        await router.update(Worker("w0", events=source, capabilities={"vision"}))
        await trio.testing.wait_all_tasks_blocked()
        assert (source.runs, source.ended.is_set()) == (1, False)
        other = Played()
        await router.reconcile([Worker("w0", events=other)])
        await other.began.wait()
        await source.ended.wait()
        assert len(router.feeds()) == 1

    await played(scene)


async def test_a_source_that_fails_costs_its_coverage_and_nothing_else() -> None:
    source = Played(fails=True)
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_engine(config()) as router:
            router.register(Worker("w0", events=source), Worker("w1"))
            await source.ended.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert router.probe(TOKENS).overlap == 0
            problems = router.health().problems
            assert any("untrusted" in problem and "broke" in problem for problem in problems)
            router.check()


async def test_an_engine_that_closes_waits_for_no_source() -> None:
    async def scene(router: Engine, source: Played, sink: EventSink, rank: Rank) -> None:
        assert not source.ended.is_set()

    await played(scene)


async def test_health_names_streams_that_are_not_live() -> None:
    async def scene(router: Engine, source: Played, sink: EventSink, rank: Rank) -> None:
        (feed,) = router.feeds()
        assert "w0: its events are cold (not connected yet)" in router.health().problems
        feed.state, feed.error = FeedState.STALE, "the connection ended"
        assert "w0: its events are stale (the connection ended)" in router.health().problems
        feed.events.refused(0, 64)
        assert any("blocks of 64 tokens" in problem for problem in router.health().problems)
        feed.state, feed.events.stored_blocks = FeedState.LIVE, 1
        assert router.health().problems == ()

    await played(scene)
