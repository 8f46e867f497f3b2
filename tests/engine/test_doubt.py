"""Coverage whose events are out of contact or untrusted counts less, and says so."""
# flake8: noqa: ASYNC910 - asynchronous in order to run in a loop

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kvlanes.engine import Engine, FeedState, Rank, Store, Worker
from kvlanes.engine.feeds import EventSink, Feed
from tests.engine.scenes import chain, conversation, running

A, B = Rank("a"), Rank("b")


@attrs.define(eq=False)
class Told:
    """A source whose feed is in the state that a test says, and stale when it ends."""

    feed: Feed = attrs.field(factory=lambda: Feed("told", A, FeedState.LIVE))

    async def run(self, sink: EventSink) -> None:
        sink.watch(self.feed)
        try:
            await trio.sleep_forever()
        finally:
            self.feed.become(FeedState.STALE)


async def announce(engine: Engine, rank: Rank, blocks: int) -> None:
    """Its engine holds the first blocks of conversation 1."""
    prompt = chain(*(1000 + block for block in range(blocks)))
    await engine.apply(Store(rank, None, prompt.blocks, prompt.sequence_hashes))


async def followed(engine: Engine, source: Told) -> None:
    """Two workers; the one whose events are followed holds one block more."""
    engine.register(Worker("a", events=source), Worker("b"))
    await wait_all_tasks_blocked()
    await announce(engine, A, 4)
    await announce(engine, B, 3)


@pytest.mark.parametrize("state", FeedState)
async def test_a_holder_out_of_contact_loses_to_one_that_holds_almost_as_much(
    state: FeedState,
) -> None:
    async with running() as engine:
        source = Told()
        await followed(engine, source)
        assert engine.probe(conversation(1)).rank == A
        source.feed.become(state)
        doubted = state in (FeedState.STALE, FeedState.UNTRUSTED)
        route = engine.probe(conversation(1))
        assert route.rank == (B if doubted else A)
        rows = {row.rank: row for row in route.explanation.rows}
        assert [rows[rank].doubted for rank in (A, B)] == [doubted, False]
        assert rows[A].saved == (2.0 if doubted else 4.0)
        assert ("4/4?" in str(route.explanation)) == doubted
        source.feed.become(FeedState.LIVE)
        assert engine.probe(conversation(1)).rank == A


@pytest.mark.parametrize(("share", "saved"), [(0.0, 0.0), (0.25, 1.0), (1.0, 4.0)])
async def test_how_much_doubt_costs_is_a_weight(share: float, saved: float) -> None:
    async with running(weights={"doubted": share}) as engine:
        source = Told()
        await followed(engine, source)
        source.feed.become(FeedState.STALE)
        rows = {row.rank: row for row in engine.probe(conversation(1)).explanation.rows}
        assert rows[A].saved == saved


async def test_the_load_expects_no_more_from_a_doubted_cache_than_the_choice_did() -> None:
    async with running() as engine, engine.request() as request:
        source = Told()
        await followed(engine, source)
        engine.drain("b")
        source.feed.become(FeedState.STALE)
        with request.route(conversation(1)):
            (row,) = [row for row in engine.statistics().ranks if row.rank == "a"]
            assert row.prefill_tokens == 2 * 16


@pytest.mark.parametrize("events", [None, Told()], ids=["nobody", "another"])
async def test_doubt_ends_with_the_source_that_it_came_from(events: Told | None) -> None:
    """The old source says stale on its way out, when somebody else speaks for the rank already."""
    async with running() as engine:
        source = Told()
        await followed(engine, source)
        source.feed.become(FeedState.STALE)
        await engine.update(Worker("a", events=events))
        await wait_all_tasks_blocked()
        assert source.feed.state is FeedState.STALE
        route = engine.probe(conversation(1))
        assert not any(row.doubted for row in route.explanation.rows)


async def test_doubt_outlives_a_restart_of_its_rank() -> None:
    async with running() as engine:
        source = Told()
        await followed(engine, source)
        source.feed.become(FeedState.STALE)
        engine.restarted(A)
        await announce(engine, A, 4)
        rows = {row.rank: row for row in engine.probe(conversation(1)).explanation.rows}
        assert (rows[A].held.blocks, rows[A].doubted) == (4, True)


async def test_doubt_is_about_every_rank_that_a_feed_has_told_of() -> None:
    """And about one that two feeds have told of, as long as either of them is out of contact."""
    both = [Feed("told", Rank("a", number), FeedState.LIVE) for number in (0, 1)]
    both[0].ranks[Rank("a", 1)] = None  # its batches named that rank too

    @attrs.frozen
    class Pair:
        async def run(self, sink: EventSink) -> None:
            for feed in both:
                sink.watch(feed)
            await trio.sleep_forever()

    async with running() as engine:
        engine.register(Worker("a", dp_size=2, events=Pair()))
        await wait_all_tasks_blocked()
        for stale in ((True, False), (True, True), (False, True), (False, False)):
            for feed, away in zip(both, stale):
                feed.become(FeedState.STALE if away else FeedState.LIVE)
            rows = {str(row.rank): row for row in engine.probe(conversation(1)).explanation.rows}
            assert (rows["a"].doubted, rows["a:1"].doubted) == (stale[0], any(stale))
