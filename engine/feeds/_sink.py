"""Feeds into lanes: what a worker's events do to the index."""
# flake8: noqa: ASYNC910 - an idle lane applies in the caller

from collections.abc import Coroutine, Sequence
from typing import Any

import trio

from kvlanes.engine.feeds._errors import ResyncNeeded
from kvlanes.engine.feeds._feed import Feed
from kvlanes.indexer import Applied, Mutation, Rank, Remove
from kvlanes.nursery import (
    Incarnation,
    LaneBusy,
    LaneCrashed,
    LaneError,
    LaneSet,
    StaleIncarnation,
)

REPLAYS_AT_ONCE = 8


async def apply_batch(
    lanes: LaneSet, incarnation: Incarnation, mutations: Sequence[Mutation]
) -> Sequence[Applied]:
    """Apply one batch of one rank: on an idle lane in one step, else through its queue.

    A checkpoint only where the lane is busy.

    Raises:
        ResyncNeeded: The index crashed, or somebody else ended the incarnation.
    """
    apply = lanes.apply_nowait
    done: list[Applied] = []
    try:
        try:
            for mutation in mutations:
                done.append(apply(mutation, incarnation))
        except LaneBusy:  # by the first, or behind what the index itself has queued meanwhile
            done += await lanes.apply_many(mutations[len(done) :], incarnation)
    except (LaneCrashed, StaleIncarnation) as error:
        raise ResyncNeeded(str(error)) from error
    return done


class LaneSink:
    """Applies the events of one worker through a lane set, on the worker's incarnations.

    Args:
        lanes: Where coverage lives.
        worker_id: The worker.
        block_size: Tokens a block.
        dp_size: Its data-parallel ranks.
        replays: Bounds the replays that run at once; share one among all sinks.

    Attributes:
        feeds: The streams that feed it, in the order in which they began.
    """

    def __init__(
        self,
        lanes: LaneSet,
        worker_id: str,
        *,
        block_size: int,
        dp_size: int = 1,
        replays: trio.CapacityLimiter | None = None,
    ) -> None:
        self.block_size = block_size
        self.replays = replays or trio.CapacityLimiter(REPLAYS_AT_ONCE)
        self.feeds: list[Feed] = []
        self._lanes = lanes
        self._ranks = [Rank(worker_id, number) for number in range(dp_size)]
        self._incarnations = {rank: lanes.attach(rank) for rank in self._ranks}

    def rank(self, dp_rank: int) -> Rank | None:
        """The worker's rank of this number, if it has one."""
        return self._ranks[dp_rank] if 0 <= dp_rank < len(self._ranks) else None

    def watch(self, feed: Feed) -> None:
        """Keep the feed for whoever asks how it fares."""
        self.feeds.append(feed)

    def apply(
        self, rank: Rank, mutations: Sequence[Mutation]
    ) -> Coroutine[Any, Any, Sequence[Applied]]:
        """Apply a batch; see `apply_batch`."""
        return apply_batch(self._lanes, self._incarnations[rank], mutations)

    def lost(self, rank: Rank) -> bool:
        """Whether a crash or somebody else's reset took the rank's coverage. O(lanes)."""
        try:
            self._lanes.apply_nowait(Remove(rank, ()), self._incarnations[rank])
        except StaleIncarnation:
            return True
        except LaneError:
            pass  # busy, crashing or closing: the next batch will tell
        return rank in self._lanes.statistics().resync

    async def restart(self, rank: Rank) -> None:
        """End the rank's incarnation and begin its next one. Always a checkpoint."""
        self._incarnations[rank] = await self._lanes.reset(rank)

    async def resync(self, rank: Rank) -> None:
        """The same: nothing but coverage lives here. Always a checkpoint."""
        await self.restart(rank)
