"""One followed stream as others see it: its state, how far it is, what went wrong."""
# flake8: noqa: ASYNC910 - a wait for what holds already is none

from collections.abc import Callable, Sequence
from enum import Enum

import attrs
import trio

from kvlanes.engine.feeds._frames import Frame, Watermark
from kvlanes.indexer import Rank

_REMEMBERED_GROUPS = 16  # group numbers come from the wire


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


@attrs.define
class EventCounts:
    """What one stream's events did so far; written by its ledgers.

    Attributes:
        stored_blocks: Blocks that became held.
        duplicate_blocks: Blocks announced while they were held.
        removed_blocks: Blocks that ceased to be held.
        unknown_removals: Removals of blocks that were not held.
        clears: Caches emptied, by the engine or because something was missed.
        orphans: Stores refused because this rank does not hold their parent.
        non_dense: Stores refused because their tokens do not fill their blocks (masked or
            placeholder blocks).
        wrong_block_size: Stores refused because their blocks have another size.
        malformed: Stores refused because they name a block twice or themselves as parent, or
            because their tokens cannot be read.
        conflicts: Stores cut short because a held block was named again at another place.
        other_groups: Events of KV-cache groups that are not followed.
        other_tiers: Events of tiers that are not followed.
        unknown_events: Events of unknown kinds, ignored.
        unreadable_events: Events that could not be read.
        refused_sizes: The last wrong block size of each KV-cache group.
    """

    stored_blocks: int = 0
    duplicate_blocks: int = 0
    removed_blocks: int = 0
    unknown_removals: int = 0
    clears: int = 0
    orphans: int = 0
    non_dense: int = 0
    wrong_block_size: int = 0
    malformed: int = 0
    conflicts: int = 0
    other_groups: int = 0
    other_tiers: int = 0
    unknown_events: int = 0
    unreadable_events: int = 0
    refused_sizes: dict[int, int] = attrs.field(factory=dict)

    def refused(self, group: int, block_size: int) -> None:
        """Note a block size that is not the index's."""
        self.wrong_block_size += 1
        known = group in self.refused_sizes or len(self.refused_sizes) < _REMEMBERED_GROUPS
        if block_size and known:
            self.refused_sizes[group] = block_size


@attrs.define(eq=False)
class Feed:
    """One publisher's stream, for `health()` and the selector to read. Its follower writes it.

    Attributes:
        endpoint: Where the publisher is, or the topic it publishes under.
        rank: The rank that the stream was configured for.
        state: See `FeedState`.
        ranks: Those whose coverage it has told of, this one first.
        counts: What happened to the stream so far.
        events: What its events did so far.
        blocks: Held blocks.
        last_at: When the last batch arrived, on Trio's clock; minus infinity before the first.
        lag_seconds: How much later than the fastest batch so far the last one arrived, by the
            engine's own time stamps.
        error: What went wrong last, empty when nothing did.
        on_state: Called with the feed at each new state.
    """

    endpoint: str
    rank: Rank
    state: FeedState = FeedState.COLD
    counts: FeedCounts = attrs.field(factory=FeedCounts)
    events: EventCounts = attrs.field(factory=EventCounts)
    blocks: int = 0
    last_at: float = float("-inf")
    lag_seconds: float = 0.0
    error: str = ""
    on_state: "Callable[[Feed], None] | None" = None
    ranks: dict[Rank, None] = attrs.field(init=False)
    _last: Frame | None = attrs.field(default=None, repr=False)  # has token ids in it
    _fastest: float = float("inf")
    _change: trio.Event | None = None  # set by the next change; made by who waits for it

    @ranks.default
    def _only_its_own(self) -> dict[Rank, None]:
        return {self.rank: None}

    @property
    def watermark(self) -> Watermark | None:
        """The last batch applied, even if it was of an earlier process; `None` before the first.

        O(bytes of a batch).
        """
        return None if self._last is None else self._last.watermark

    def advance(self, last: Frame, timestamps: Sequence[float], now: float) -> None:
        """Note batches that were applied; of their engine's time stamps only differences count."""
        self.counts.batches += len(timestamps)
        self._last = last
        self.last_at = now
        delay = now - max(timestamps)
        if delay < self._fastest:
            self._fastest = delay
        self.lag_seconds = now - timestamps[-1] - self._fastest
        if self._change is not None:
            self.changed()

    def complaint(self) -> str:
        """What a person should look at, in one sentence; empty when all is well."""
        sizes = ", ".join(map(str, sorted(set(self.events.refused_sizes.values()))))
        if sizes and not self.events.stored_blocks:
            return f"its events have blocks of {sizes} tokens, which are refused"
        if self.state in (FeedState.LIVE, FeedState.PARTIAL, FeedState.SYNCING):
            return ""
        return f"its events are {self.state.value} ({self.error or 'not connected yet'})"

    @property
    def doubted(self) -> bool:
        """Whether blocks that count as held may be gone: removals may have been missed."""
        return self.state in (FeedState.STALE, FeedState.UNTRUSTED)

    def become(self, state: FeedState) -> None:
        self.state = state
        if self.on_state is not None:
            self.on_state(self)
        self.changed()

    def changed(self) -> None:
        """Wake those who wait for something. O(1) when nobody does."""
        if self._change is not None:
            self._change.set()
            self._change = None

    async def until(self, condition: Callable[["Feed"], bool]) -> None:
        """Wait until `condition(feed)` holds. A checkpoint unless it holds already."""
        while not condition(self):
            if self._change is None:
                self._change = trio.Event()
            await self._change.wait()
