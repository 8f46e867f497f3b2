"""Batches that are there already are taken together, and mean what they mean one by one."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.engine.feeds import Feed, FeedState, FollowOptions, LaneSink, ResyncNeeded
from kvlanes.engine.feeds._burst import Burst, read_ahead
from kvlanes.engine.feeds._cursor import Cursor
from kvlanes.engine.feeds._errors import ConnectionLost, FrameInvalid
from kvlanes.engine.feeds._follow import Follower
from kvlanes.engine.feeds._frames import Frame
from kvlanes.indexer import Applied, Clear, Mutation, Prompt, RadixIndex, Rank
from kvlanes.nursery import LaneCrashed, LaneSet, open_lanes
from tests.feeds.frames import CLEARED, frame, payload, remove, store
from tests.feeds.pool import BLOCK_SIZE, Pool, random_events
from tests.feeds.world import RANK, World, open_world
from tests.support.profiles import budget

BROKEN = frame(2)._replace(payload=b"\x93\x01")


@attrs.define(eq=False)
class Ready:
    """A connection over which all of this came already; `None` is no batch."""

    rest: list[Frame | None]
    scoped: bool = True
    replayable: bool = False

    def receive_nowait(self) -> Frame | None:
        if not self.rest:
            return None
        taken = self.rest.pop(0)
        if taken is None:
            raise FrameInvalid("1 frame")
        return taken

    async def receive(self, idle_seconds: float) -> Frame | None:
        await trio.lowlevel.checkpoint()
        raise ConnectionLost("the end")

    def check(self) -> None: ...

    def replay(self, start: int) -> AbstractContextManager[Any]:
        raise AssertionError("not replayable")


def read(*frames: Frame | None) -> tuple[Burst, Ready]:
    first, *rest = frames
    assert first is not None
    link = Ready(rest)
    return read_ahead(first, link, Cursor(), 100), link


@pytest.mark.parametrize(
    ("behind", "odd", "invalid"),
    [
        ([], None, ""),
        ([frame(1), frame(4)], frame(1), ""),
        ([frame(3), frame(4)], frame(3), ""),
        ([BROKEN, frame(3)], BROKEN, ""),
        ([None, frame(2)], None, "1 frame"),
    ],
    ids=["nothing", "a duplicate", "a gap", "unreadable", "no batch"],
)
def test_reading_ahead_stops_where_something_else_comes(
    behind: Sequence[Frame | None], odd: Frame | None, invalid: str
) -> None:
    burst, link = read(frame(0, CLEARED), frame(1), *behind)
    assert (len(burst.batches), burst.last) == (2, frame(1))
    assert (burst.odd, burst.invalid) == (odd, invalid)
    assert link.rest == list(behind[1:])


def test_what_is_not_the_next_batch_makes_an_empty_burst() -> None:
    burst, link = read(frame(1), frame(2))
    assert burst == Burst([], None, frame(1), "")
    assert link.rest == [frame(2)]


def test_reading_ahead_moves_no_cursor() -> None:
    cursor = Cursor(frame(6))
    burst = read_ahead(frame(7), Ready([frame(8)]), cursor, 100)
    assert burst.last == frame(8)
    assert cursor.last == frame(6)


def test_a_burst_is_bounded_in_batches_and_in_bytes() -> None:
    small, link = read(*map(frame, range(100)))
    assert len(small.batches) + len(link.rest) == 100
    assert 1 < len(small.batches) < 50
    long = [frame(number, store([number], [1] * 5000)) for number in range(100)]
    large, link = read(*long)
    assert len(large.batches) + len(link.rest) == 100
    assert 1 < len(large.batches) < len(small.batches)


async def told(stream: Sequence[Sequence[Any]], options: dict[str, Any], *, slowly: bool) -> Any:
    """What an index and its feed are like after a stream."""
    async with open_world(**options) as world:
        await wait_all_tasks_blocked()
        for events in stream:
            world.publish(events)
            if slowly:
                await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        feed = world.feed
        return await world.digest(), feed.watermark, feed.blocks, feed.events, feed.counts.batches


@settings(max_examples=budget(ci=40, deep=1_000))
@given(st.integers(0, 2**32), st.integers(1, 80), st.booleans())
def test_a_burst_means_what_its_batches_mean_one_by_one(
    seed: int, batches: int, in_place: bool
) -> None:
    pool, chance = Pool(), random.Random(seed)
    stream = [random_events(pool, chance, holes=True, clears=True) for _ in range(batches)]

    async def main() -> None:
        options = {"in_place": in_place}
        together = await told(stream, options, slowly=False)
        assert together == await told(stream, options, slowly=True)
        assert (together[0], together[-1]) == (pool.digest(RANK), batches)

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def batch(sequence: int, rank: int, *events: Any) -> Frame:
    return Frame(b"", sequence, b"", payload(*events, rank=rank))


@asynccontextmanager
async def followed(*frames: Frame | None) -> AsyncIterator[tuple[LaneSet, Feed]]:
    """What became of a connection over which all of this came at once."""
    async with open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes:
        sink = LaneSink(lanes, "w0", block_size=BLOCK_SIZE, dp_size=2)
        feed = Feed("ready", RANK)
        follower = Follower(sink, feed, FollowOptions())
        with pytest.raises(ConnectionLost):
            await follower.follow(Ready([*frames]))
        yield lanes, feed


TOKENS = list(range(2 * BLOCK_SIZE))
FIRST, SECOND = TOKENS[:BLOCK_SIZE], TOKENS[BLOCK_SIZE:]


async def test_a_burst_may_name_several_ranks() -> None:
    """Each goes to its own rank, in the order in which they came."""
    frames = [
        batch(0, 0, store([1, 2], TOKENS)),
        batch(1, 1, store([1], FIRST)),
        batch(2, 1, store([3], SECOND, parent=1)),
        batch(3, 0, remove(2)),
        batch(4, 1, remove(3)),
        batch(5, 1, store([4], SECOND, parent=1)),
    ]
    async with followed(*frames) as (lanes, feed):
        held = lanes.overlap(Prompt(TOKENS, BLOCK_SIZE))
        assert (held.of(RANK), held.of(Rank("w0", 1))) == (1, 2)
        assert (feed.counts.batches, feed.counts.rank_mismatches) == (6, 4)
        assert feed.watermark == frames[-1].watermark


@pytest.mark.parametrize(
    ("behind", "state"),
    [
        ([(1, store([1], FIRST))], FeedState.PARTIAL),
        ([(1, store([1], FIRST)), (0, CLEARED)], FeedState.PARTIAL),
        ([(0, CLEARED), (1, store([1], FIRST))], FeedState.PARTIAL),
        ([(0, CLEARED), (1, store([1], FIRST)), (1, CLEARED)], FeedState.LIVE),
    ],
)
async def test_a_rank_first_named_after_a_loss_is_partial_until_its_own_clear(
    behind: Sequence[tuple[int, Any]], state: FeedState
) -> None:
    rest = [batch(number, rank, event) for number, (rank, event) in enumerate(behind, 2)]
    async with followed(batch(0, 0), *rest) as (_, feed):
        assert (feed.counts.losses, feed.state) == (1, state)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_stream_is_live_from_its_first_batch_on(rank: int) -> None:
    """Nothing has to be silent or missing before that is seen."""
    async with followed(batch(0, rank, store([1], FIRST))) as (_, feed):
        assert feed.state is FeedState.LIVE


async def test_coverage_that_a_crash_took_is_asked_for_again() -> None:
    """Another rank's mutation broke the index; this one's next store finds no parent."""

    class Fragile(RadixIndex):
        def apply(self, mutation: Mutation, now: float) -> Applied:
            if mutation == Clear(Rank("other")):
                raise RuntimeError("broken")
            return super().apply(mutation, now)

    class Crashing(Ready):
        async def receive(self, idle_seconds: float) -> Frame | None:
            with pytest.raises(LaneCrashed):
                await lanes.apply(Clear(Rank("other")))
            return batch(1, 0, store([2], SECOND, parent=1))

    async with open_lanes(lambda: Fragile(BLOCK_SIZE)) as lanes:
        sink = LaneSink(lanes, "w0", block_size=BLOCK_SIZE)
        follower = Follower(sink, Feed("ready", RANK), FollowOptions())
        with pytest.raises(ResyncNeeded):
            await follower.follow(Crashing([batch(0, 0, store([1], FIRST))]))


async def test_junk_behind_a_burst_costs_the_coverage_but_not_the_batches() -> None:
    async with followed(batch(0, 0, store([1], FIRST)), batch(1, 0), None) as (lanes, feed):
        assert (feed.counts.batches, feed.counts.unreadable_batches) == (2, 1)
        assert (feed.counts.losses, feed.error) == (1, "1 frame")
        assert lanes.overlap(Prompt(FIRST, BLOCK_SIZE)).of(RANK) == 0


def test_lag_is_told_from_the_last_batch_and_the_fastest_one() -> None:
    feed = Feed("ready", RANK)
    feed.advance(frame(2), [100.0, 109.0, 107.0], now=10.0)
    assert feed.lag_seconds == 2.0
    feed.advance(frame(4), [108.0, 108.5], now=11.0)
    assert (feed.lag_seconds, feed.last_at, feed.counts.batches) == (1.5, 11.0, 5)


@pytest.mark.parametrize("what", ["next", "again", "broken", "no batch"])
def test_whatever_floods_in_others_run(what: str) -> None:
    """Counted in scheduling points: at least one for 50 messages."""

    def flood(world: World) -> None:
        assert world.link is not None
        first = world.process.sequence
        for number in range(1000):
            later = frame(first + number)
            world.link.put(
                {
                    "next": later,
                    "again": world.process.buffer[0],
                    "broken": later._replace(payload=b"\x93\x01"),
                    "no batch": None,
                }[what]
            )

    async def main() -> None:
        async with open_world(replayable=False) as world:
            await wait_all_tasks_blocked()
            world.go_on()
            await wait_all_tasks_blocked()
            flood(world)
            turns = 0
            assert world.link is not None
            while world.link.queue:
                await trio.lowlevel.checkpoint()
                turns += 1
            assert turns >= 1000 / 50

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def test_no_token_is_shown_with_a_feed_or_its_cursor() -> None:
    """The last batch is kept as it came, and descriptions end up in logs."""
    last = frame(3)._replace(payload=b"secret")
    feed, cursor = Feed("ready", RANK), Cursor(last)
    feed.advance(last, [1.0], now=1.0)
    assert feed.watermark == cursor.watermark == last.watermark
    assert "secret" not in repr(feed) + repr(cursor)
