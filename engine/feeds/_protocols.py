"""The joint between feeds and what they feed."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import trio

from kvlanes.engine.feeds._feed import Feed
from kvlanes.engine.feeds._frames import Frame
from kvlanes.indexer import Applied, Mutation, Rank


class EventSink(Protocol):
    """Where the events of one worker go."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        ...

    @property
    def replays(self) -> trio.CapacityLimiter:
        """Bounds the replays that run at once, over all workers."""
        ...

    def rank(self, dp_rank: int) -> Rank | None:
        """The worker's rank of this number; `None` when it has no such rank."""
        ...

    def watch(self, feed: Feed) -> None:
        """A stream begins; the feed shows how it fares from now on. Never a checkpoint."""
        ...

    async def apply(self, rank: Rank, mutations: Sequence[Mutation]) -> Sequence[Applied]:
        """Apply one batch's mutations, in order and all of them.

        Raises:
            ResyncNeeded: The coverage that was there before is gone.
        """
        ...

    def lost(self, rank: Rank) -> bool:
        """Whether the coverage of `rank` went without this feed's doing. Never a checkpoint."""
        ...

    async def restart(self, rank: Rank) -> None:
        """The engine process of `rank` is another one now: what it held and ran is gone."""
        ...

    async def resync(self, rank: Rank) -> None:
        """The stream of `rank` begins anew: empty its coverage, and only that."""
        ...


class EventSource(Protocol):
    """Something that follows one worker's engine events."""

    async def run(self, sink: EventSink) -> None:
        """Follow until cancelled; survives whatever the engine does."""
        ...


class Link(Protocol):
    """A connection to one publisher.

    Attributes:
        scoped: Whether the connection belongs to one publisher process, so that a restart ends it.
        replayable: Whether past batches can be asked for.
    """

    @property
    def scoped(self) -> bool: ...

    @property
    def replayable(self) -> bool: ...

    def receive_nowait(self) -> Frame | None:
        """A live batch that is there already, or `None`. Never a checkpoint.

        Raises:
            FrameInvalid, ConnectionLost: As in `receive`.
        """
        ...

    async def receive(self, idle_seconds: float) -> Frame | None:
        """The next live batch; `None` after so many seconds without one.

        Raises:
            FrameInvalid: A message that is no batch.
            ConnectionLost: The connection ended.
        """
        ...

    def check(self) -> None:
        """Raise `ConnectionLost` if the connection has ended. Never a checkpoint."""
        ...

    def replay(self, start: int) -> AbstractContextManager["Replies"]:
        """Ask for the batches from `start` on."""
        ...


class Replies(Protocol):
    """The answer to one replay request."""

    async def receive(self, idle_seconds: float) -> Frame | None:
        """The next reply, `None` for the end marker.

        Raises:
            FrameInvalid: A message that is no batch.
            ReplayTruncated: Nothing came for so many seconds.
        """
        ...
