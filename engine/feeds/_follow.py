"""Follows one publisher over one connection after the other: watermark, replays, losses.

    connect ── replay from the watermark ──▶ live ── gap, unreadable, idle ──▶ replay ──▶ live
                      │ other checksum, or nothing but the end marker
                      ▼
               another engine process: empty the rank, forget the watermark, connect anew

Two rules keep the index from over-reporting. What was missed and cannot be replayed may have
removed blocks, so it empties the rank. And the live socket is not read while a replay runs: the
library holds the messages, and what overflows there is an ordinary gap.
"""
# flake8: noqa: ASYNC910 - steps of one task, which gives way by the work it has done (_breathe)

import math
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter

import trio

from kvlanes.engine.feeds._burst import read_ahead
from kvlanes.engine.feeds._cursor import Cursor, Replay, Verdict
from kvlanes.engine.feeds._decode import decode
from kvlanes.engine.feeds._errors import (
    FrameInvalid,
    PublisherRestarted,
    ReplayTruncated,
    ResyncNeeded,
)
from kvlanes.engine.feeds._events import Batch
from kvlanes.engine.feeds._feed import Feed, FeedState
from kvlanes.engine.feeds._frames import Frame
from kvlanes.engine.feeds._ledger import Ledger
from kvlanes.engine.feeds._ledgers import Ledgers
from kvlanes.engine.feeds._options import FollowOptions
from kvlanes.engine.feeds._protocols import EventSink, Link
from kvlanes.indexer import Clear, Mutation, Rank

_REPLAYS_WITHOUT_PROGRESS = 3
_WORK_A_SCHEDULING_POINT = 256  # blocks, about a microsecond each
_WORK_A_BATCH = 16  # what a batch costs beside its blocks
_dp_rank = attrgetter("dp_rank")


class Follower:
    """Applies one publisher's batches to a sink, each exactly once and in order.

    Lives as long as its source, across connections. One task runs it and writes its cursor,
    ledgers and feed. The batches of a burst are decided and entered in one step; then the index is
    told; then the watermark moves. Only the end of the source cancels in between, and coverage ends
    with it.
    """

    def __init__(
        self,
        sink: EventSink,
        feed: Feed,
        options: FollowOptions,
        elsewhere: Collection[int] = (),
    ) -> None:
        """Make a follower that holds nothing yet.

        Args:
            sink: Where the mutations go.
            feed: What the follower writes about itself.
            options: How to follow.
            elsewhere: Ranks of the same worker that have a stream of their own.
        """
        self.feed = feed
        self.cursor = Cursor()
        self.ledgers = Ledgers(sink, feed, options, elsewhere)
        self._sink = sink
        self._options = options
        self._verified = True  # the last replay ran to its end
        self._ask_again_at = -math.inf
        self._work = 0

    async def begin(self) -> None:
        """Empty what an earlier source may have left in the index."""
        try:
            await self._sink.apply(self.feed.rank, [Clear(self.feed.rank)])
        except ResyncNeeded:
            await self.resync()

    async def restart(self) -> None:
        """Begin with another engine process: everything that was known of the old one ends."""
        self.feed.counts.restarts += 1
        self._forget()
        for ledger in self.ledgers:
            await self._sink.restart(ledger.rank)

    async def resync(self) -> None:
        """Begin anew with what may be the same engine process."""
        self._forget()
        for ledger in self.ledgers:
            await self._sink.resync(ledger.rank)

    def _forget(self) -> None:
        self.cursor.forget()
        self.ledgers.restart()

    async def follow(self, link: Link) -> None:
        """Follow one connection until it ends.

        Raises:
            ConnectionLost: It ended.
            PublisherRestarted: Another engine process answers; `restart` before going on.
            ResyncNeeded: The index lost what it was told; `resync` before going on.
        """
        self.feed.become(FeedState.SYNCING)
        self._ask_again_at = -math.inf
        if link.replayable:
            await self._replay(link)
        else:
            if self.cursor.last is not None:
                # Nobody can tell whether this is the process that was followed before.
                await self.resync()
            self.ledgers.become(complete=False)  # unless its very first batch comes
        self._settle()
        while True:
            await self._step(link)

    def _settle(self) -> None:
        """Show how far the coverage can be trusted now."""
        state = FeedState.LIVE if self.ledgers.look() else FeedState.PARTIAL
        if not self._verified:
            state = FeedState.UNTRUSTED
        if state is not self.feed.state:
            self.feed.become(state)

    async def _step(self, link: Link) -> None:
        """Take what comes next: a batch, a message that is none, or silence."""
        try:
            frame = link.receive_nowait() or await link.receive(self._options.idle_seconds)
        except FrameInvalid as error:
            await self._take_unreadable(str(error), link)
            return
        if frame is None:
            await self._take_silence(link)
            return
        batches, last, odd, invalid = read_ahead(
            frame, link, self.cursor, self._options.limit_hashes
        )
        if batches:
            assert last is not None
            await self._apply(batches, last)
        if odd is not None:
            await self._take_odd(odd, link)
        if invalid:
            await self._take_unreadable(invalid, link)

    # -- whatever is not the next batch

    async def _take_silence(self, link: Link) -> None:
        self._require_coverage(self.feed.rank)
        if link.replayable:
            await self._replay(link)  # a lost tail has no successor that reveals it
        self._settle()

    async def _take_unreadable(self, why: str, link: Link) -> None:
        """A message that is no batch stands for one that was lost."""
        self._unreadable(why)
        if not (link.replayable and await self._replay(link)):
            await self._lose(why)
        self._settle()
        await self._breathe(_WORK_A_BATCH)

    async def _take_odd(self, frame: Frame, link: Link) -> None:
        """A batch that was seen, that came too early, that cannot be read, or of a stranger."""
        verdict = self.cursor.judge(frame, scoped=link.scoped)
        if verdict is Verdict.DUPLICATE:
            self.feed.counts.duplicates += 1
            await self._breathe(_WORK_A_BATCH)
            return
        if verdict is Verdict.GAP:
            self.feed.counts.gaps += 1
        elif verdict is Verdict.NEXT:
            self._unreadable(f"batch {frame.sequence} is not readable")
        known = link.scoped
        if link.replayable:
            known = await self._replay(link) or known
        await self._take_anyway(frame, scoped=known, link=link)
        self._settle()

    async def _take_anyway(self, frame: Frame, *, scoped: bool, link: Link) -> None:
        """Once a replay has brought what it can, a batch is what it is."""
        verdict = self.cursor.judge(frame, scoped=scoped)
        if verdict is Verdict.DUPLICATE:
            self.feed.counts.duplicates += 1
            return
        if verdict is Verdict.RESTARTED:
            if link.scoped:
                raise PublisherRestarted(f"batch {frame.sequence} is not the one that was applied")
            await self.restart()
            verdict = self.cursor.judge(frame)
        if verdict is Verdict.GAP:
            await self._lose(f"a batch between {self.cursor.expected} and {frame.sequence} is lost")
        await self._apply([decode(frame.payload, self._options.limit_hashes)], frame)

    def _unreadable(self, why: str) -> None:
        self.feed.counts.unreadable_batches += 1
        self.feed.error = why
        self.feed.become(FeedState.UNTRUSTED)

    # -- replays

    async def _replay(self, link: Link) -> bool:
        """Ask for what came after the watermark until nothing is missing.

        Returns:
            Whether the publisher answered to the end, so that it is known to be the same process.
        """
        if trio.current_time() < self._ask_again_at:
            return False
        async with self._sink.replays:
            self._verified = await self._replay_until_whole(link)
        link.check()  # what answered may be the successor of the process we are connected to
        if not self._verified:
            self._ask_again_at = trio.current_time() + self._options.replay_pause_seconds
        return self._verified

    async def _replay_until_whole(self, link: Link) -> bool:
        deadline = trio.current_time() + self._options.replay_seconds
        fruitless = 0
        while fruitless < _REPLAYS_WITHOUT_PROGRESS and trio.current_time() < deadline:
            before = self.cursor.last
            last = fruitless == _REPLAYS_WITHOUT_PROGRESS - 1
            if await self._replay_once(link, deadline, last):
                return True
            self.feed.counts.truncated_replays += 1
            fruitless = fruitless + 1 if self.cursor.last is before else 0
        return False

    async def _replay_once(self, link: Link, deadline: float, last: bool) -> bool:
        """One request; whether its answer came to its end without a hole.

        Between two replies the time is looked at; no scope cancels, or it could tear a batch.
        """
        replay = Replay(self.cursor)
        self.feed.counts.replays += 1
        self.feed.changed()
        with link.replay(replay.start) as replies:
            while trio.current_time() < deadline:
                try:
                    frame = await replies.receive(self._options.replay_idle_seconds)
                except (ReplayTruncated, FrameInvalid) as error:
                    self.feed.error = str(error)
                    return False
                if frame is None:
                    return self._ended(replay)
                if not await self._take_reply(frame, replay, last):
                    return False
        return False

    def _ended(self, replay: Replay) -> bool:
        if replay.ended() is Verdict.RESTARTED:
            raise PublisherRestarted(f"the publisher does not know batch {replay.start}")
        return True

    async def _take_reply(self, frame: Frame, replay: Replay, last: bool) -> bool:
        """Apply one reply; false when there is a hole before it that another try may fill."""
        verdict = replay.judge(frame)
        if verdict is Verdict.RESTARTED:
            raise PublisherRestarted(f"batch {frame.sequence} is not the one that was applied")
        if verdict is Verdict.DUPLICATE:
            return True
        if verdict is Verdict.GAP:
            rotated = replay.seen == 1  # older batches left the publisher's buffer for good
            if not rotated and not last:
                return False
            await self._lose(f"a batch between {self.cursor.expected} and {frame.sequence} is lost")
        await self._apply([decode(frame.payload, self._options.limit_hashes)], frame)
        return True

    # -- coverage

    async def _apply(self, batches: Sequence[Batch], last: Frame) -> None:
        """Enter batches, tell the index, move the watermark to the last of them."""
        if last.sequence < len(batches):
            self.ledgers.become(complete=True)  # a process was followed from its beginning
        for number, run in groupby(batches, _dp_rank):
            await self._enter(self.ledgers.of(number), list(run))
        self.cursor.advance(last)
        self.feed.advance(last, [batch.timestamp for batch in batches], trio.current_time())
        await self._breathe(_WORK_A_BATCH * len(batches))

    async def _enter(self, ledger: Ledger, batches: list[Batch]) -> None:
        """Enter batches that name one rank, and tell the index."""
        mutations: list[Mutation] = []
        for batch in batches:
            mutations += ledger.apply(batch)
        results = await self._sink.apply(ledger.rank, mutations) if mutations else ()
        for applied, duplicates, missing_parent, unknown in results:
            self._work += applied + duplicates + missing_parent + unknown
            if missing_parent:
                self._require_coverage(ledger.rank)
        feed = self.feed
        feed.blocks = len(ledger)
        if batches[0].dp_rank not in (None, feed.rank.dp_rank):
            feed.counts.rank_mismatches += len(batches)
        if ledger.complete is not self.ledgers.whole and feed.state is not FeedState.SYNCING:
            self._settle()

    async def _breathe(self, work: int) -> None:
        """A scheduling point after so much work, or a busy publisher starves everybody else."""
        self._work += work
        if self._work >= _WORK_A_SCHEDULING_POINT:
            self._work = 0
            await trio.lowlevel.checkpoint()

    async def _lose(self, why: str) -> None:
        """Empty the coverage: what was missed may have removed any of it."""
        self.feed.counts.losses += 1
        self.feed.error = why
        for clear in self.ledgers.lose():
            await self._sink.apply(clear.rank, [clear])

    def _require_coverage(self, rank: Rank) -> None:
        if self._sink.lost(rank):
            raise ResyncNeeded(f"the index lost the coverage of {rank}")
