"""One followed stream as others see it: its state, how far it is, what went wrong."""
# flake8: noqa: ASYNC910 - a wait for what holds already is none

from collections.abc import Callable
from enum import Enum

import attrs
import trio

from kvlanes.engine.feeds._cursor import Watermark
from kvlanes.indexer import Rank


class FeedState(Enum):
    """How far the coverage of a fed rank can be trusted.

    `LIVE` is exact as far as messages arrived. `PARTIAL` holds a part of what the engine holds:
    it under-reports, and becomes live when the engine empties its cache. `SYNCING` is being
    replayed, `STALE` is not connected and may lag, `UNTRUSTED` could not be verified, `COLD` has
    never been connected.
    """

    COLD = "cold"
    SYNCING = "syncing"
    LIVE = "live"
    PARTIAL = "partial"
    STALE = "stale"
    UNTRUSTED = "untrusted"


@attrs.define
class FeedCounts:
    """What happened to one stream so far; written by the task that follows it.

    Attributes:
        batches: Batches applied.
        duplicates: Batches seen before, not applied again.
        gaps: Times that live batches were missing.
        replays: Replays asked for.
        truncated_replays: Replays that ended without their end marker, or with a hole.
        restarts: Times that another engine process answered.
        losses: Times that coverage was emptied because what was missed could not be replayed.
        connects: Connections made.
        failures: Connections that ended or could not be made.
        unreadable_batches: Live batches that were wholly or partly unreadable.
        rank_mismatches: Batches that named another rank than the one they were followed for.
        dropped: Batches dropped on our side because this stream's queue was full.
    """

    batches: int = 0
    duplicates: int = 0
    gaps: int = 0
    replays: int = 0
    truncated_replays: int = 0
    restarts: int = 0
    losses: int = 0
    connects: int = 0
    failures: int = 0
    unreadable_batches: int = 0
    rank_mismatches: int = 0
    dropped: int = 0


@attrs.define(eq=False)
class Feed:
    """One publisher's stream, for `health()` and the selector to read. Its follower writes it.

    Attributes:
        endpoint: Where the publisher is, or the topic it publishes under.
        rank: The rank that the stream was configured for.
        state: See `FeedState`.
        watermark: The last batch applied.
        counts: What happened so far.
        blocks: Held blocks.
        last_at: When the last batch arrived, on Trio's clock; minus infinity before the first.
        lag_seconds: How much later than the fastest batch so far the last one arrived, by the
            engine's own time stamps.
        error: What went wrong last, empty when nothing did.
    """

    endpoint: str
    rank: Rank
    state: FeedState = FeedState.COLD
    watermark: Watermark | None = None
    counts: FeedCounts = attrs.field(factory=FeedCounts)
    blocks: int = 0
    last_at: float = float("-inf")
    lag_seconds: float = 0.0
    error: str = ""
    _fastest: float = float("inf")
    _watchers: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def arrived(self, now: float, timestamp: float) -> None:
        """Note a batch that the engine stamped with `timestamp`; only differences count."""
        self.last_at = now
        delay = now - timestamp
        self._fastest = min(self._fastest, delay)
        self.lag_seconds = delay - self._fastest

    def become(self, state: FeedState) -> None:
        self.state = state
        self.changed()

    def changed(self) -> None:
        """Wake those who wait for something. O(1) when nobody does."""
        if self._watchers:
            self._watchers.unpark_all()

    async def until(self, condition: Callable[["Feed"], bool]) -> None:
        """Wait until `condition(feed)` holds. A checkpoint unless it holds already."""
        while not condition(self):
            await self._watchers.park()
