"""Which event sources run: those of the registered workers, while they are registered."""
# flake8: noqa: ASYNC910 - an idle lane applies in the caller; a source that is late does nothing

import logging
from collections.abc import Iterator, Sequence

import attrs
import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection
from trio_util import AsyncValue

from kvlanes.engine._fleet import Fleet
from kvlanes.engine._registry import LiveRank, Member, Registry
from kvlanes.engine.feeds import EventSource, Feed, FeedState, ResyncNeeded, apply_batch
from kvlanes.indexer import Applied, Clear, Mutation, Rank
from kvlanes.nursery import Incarnation, LaneSet

logger = logging.getLogger("kvlanes.engine")


class RegisteredSink:
    """Applies a worker's events on the lives of its ranks, while its registration lasts.

    A source that is late, because its worker left or was registered anew, changes nothing: the
    sink looks the registration up each time.

    Attributes:
        feeds: The streams that feed it.
    """

    def __init__(
        self,
        member: Member,
        registry: Registry,
        fleet: Fleet,
        lanes: LaneSet,
        block_size: int,
        replays: trio.CapacityLimiter,
    ) -> None:
        self.block_size = block_size
        self.replays = replays
        self.feeds: list[Feed] = []
        self._left = False
        self._member = member
        self._registry = registry
        self._fleet = fleet
        self._lanes = lanes
        # The life that the ledgers of the source speak of.
        self._told: dict[Rank, Incarnation] = {live.rank: live.incarnation for live in member.ranks}

    def rank(self, dp_rank: int) -> Rank | None:
        """The worker's rank of this number, if it has one."""
        if 0 <= dp_rank < self._member.worker.dp_size:
            return Rank(self._member.worker.worker_id, dp_rank)
        return None

    def watch(self, feed: Feed) -> None:
        """Keep the feed for `health()`, and have the selector know its state."""
        self.feeds.append(feed)
        feed.on_state = self._judge

    def _judge(self, feed: Feed) -> None:
        if not self._left:
            for rank in feed.ranks:
                doubted = any(other.doubted for other in self.feeds if rank in other.ranks)
                self._fleet.doubt(self._member, rank, doubted=doubted)

    def leave(self) -> None:
        """The source was told to end; what becomes of its feeds is no news any more."""
        self._left = True
        self._fleet.trust(self._member)

    async def apply(self, rank: Rank, mutations: Sequence[Mutation]) -> Sequence[Applied]:
        """Apply a batch. A checkpoint only where the lane is busy.

        Raises:
            ResyncNeeded: The rank began another life, or the index crashed.
        """
        live = self._live(rank)
        if live is None:
            return ()
        if live.incarnation is not self._told.get(rank):
            raise ResyncNeeded(f"{rank} began anew")
        if not all(isinstance(mutation, Clear) for mutation in mutations):
            # A follower begins with a clear of its own: it says nothing about the engine.
            self._fleet.fed(live)
        return await apply_batch(self._lanes, live.incarnation, mutations)

    def lost(self, rank: Rank) -> bool:
        """Whether a crash or a new life took the rank's coverage. O(lanes)."""
        live = self._live(rank)
        if live is None:
            return False  # its source is on its way out
        anew = live.incarnation is not self._told.get(rank)
        return anew or rank in self._lanes.statistics().resync

    async def restart(self, rank: Rank) -> None:
        """The engine process was replaced: what the rank held and ran is gone."""
        if self._live(rank) is not None:
            self._fleet.restarted(rank)
            self._tell(rank)
        await self._lanes.flush()

    async def resync(self, rank: Rank) -> None:
        """Empty the rank's coverage; what runs there goes on."""
        live = self._live(rank)
        if live is not None:
            self._fleet.emptied(live)
            self._tell(rank)
        await self._lanes.flush()

    def _live(self, rank: Rank) -> LiveRank | None:
        live = self._registry.live(rank) if rank in self._registry else None
        return live if live is not None and live.member is self._member else None

    def _tell(self, rank: Rank) -> None:
        self._told[rank] = self._registry.live(rank).incarnation


@attrs.define(eq=False)
class _Running:
    """One source at work."""

    member: Member
    source: EventSource
    dp_size: int
    sink: RegisteredSink
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@disable_ki_protection
async def _interruptible(source: EventSource, sink: RegisteredSink) -> None:
    """A source may be the user's code: Ctrl-C may end it, as it may anything of theirs."""
    await source.run(sink)


class Feeding:
    """Runs the sources of the registered workers. Written by `align` and `close` alone.

    Attributes:
        tasks: Sources that run, those included that were told to end.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        registry: Registry,
        fleet: Fleet,
        lanes: LaneSet,
        block_size: int,
        replays_at_once: int,
    ) -> None:
        self.tasks = AsyncValue(0)
        self._nursery = nursery
        self._registry = registry
        self._fleet = fleet
        self._lanes = lanes
        self._block_size = block_size
        self._replays = trio.CapacityLimiter(replays_at_once)
        self._running: dict[str, _Running] = {}
        self._alive: dict[_Running, None] = {}

    def feeds(self) -> Iterator[Feed]:
        """All streams that are followed."""
        for running in self._running.values():
            yield from running.sink.feeds

    @enable_ki_protection
    def align(self) -> None:
        """Let exactly the sources of the registered workers run. Never a checkpoint."""
        for worker_id, running in list(self._running.items()):
            if not self._wanted(worker_id, running):
                running.scope.cancel()
                running.sink.leave()
                del self._running[worker_id]
        for member in self._registry:
            if member.worker.events is not None and member.worker.worker_id not in self._running:
                self._start(member, member.worker.events)

    def _wanted(self, worker_id: str, running: _Running) -> bool:
        if worker_id not in self._registry:
            return False
        member = self._registry.member(worker_id)
        now = (member, member.worker.events, member.worker.dp_size)
        return now == (running.member, running.source, running.dp_size)

    def _start(self, member: Member, source: EventSource) -> None:
        sink = RegisteredSink(
            member, self._registry, self._fleet, self._lanes, self._block_size, self._replays
        )
        running = _Running(member, source, member.worker.dp_size, sink)
        self._running[member.worker.worker_id] = running
        self._alive[running] = None
        self.tasks.value = len(self._alive)
        self._nursery.start_soon(self._run, running)

    @enable_ki_protection
    async def _run(self, running: _Running) -> None:
        """A source that fails costs its coverage, not the engine."""
        try:
            with running.scope:
                await _interruptible(running.source, running.sink)
        except Exception as error:
            self._failed(running, error)
        except BaseExceptionGroup as group:
            # Its errors are its own; what goes on is the cancellation that they came along with.
            errors, others = group.split(Exception)
            if errors is not None:
                self._failed(running, errors)
            if others is not None:
                raise others from None
        finally:
            del self._alive[running]
            self.tasks.value = len(self._alive)

    def _failed(self, running: _Running, error: Exception) -> None:
        logger.error(
            "the feed of worker %r failed", running.member.worker.worker_id, exc_info=error
        )
        for live in running.member.ranks:
            self._lanes.post(Clear(live.rank), live.incarnation)
        for feed in running.sink.feeds:
            feed.error = repr(error)
            feed.become(FeedState.UNTRUSTED)

    def running(self) -> list[str]:
        """Workers whose sources run, also those that were told to end."""
        return [running.member.worker.worker_id for running in self._alive]

    def close(self) -> None:
        """End all sources. Idempotent, never a checkpoint."""
        for running in self._running.values():
            running.scope.cancel()
        self._running.clear()
