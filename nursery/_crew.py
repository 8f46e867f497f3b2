"""The lanes and what they share: who starts them, who replaces their index, who ends them."""
# flake8: noqa: ASYNC102 - what waits at the end is shielded, for a bounded time at a time

from collections import deque
from collections.abc import Callable
from typing import TypeAlias, cast

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.indexer import IndexBackend, Lease, LeaseTable, Rank
from kvlanes.nursery._errors import LaneCrashed
from kvlanes.nursery._incarnations import Seats
from kvlanes.nursery._lane import Lane
from kvlanes.nursery._owner import IndexOwner, crashed, logger
from kvlanes.nursery._queue import Barrier, LaneQueue
from kvlanes.nursery._receiver import ServedBackend
from kvlanes.nursery._served_lane import BackendOwner, Outbox, ServedLane
from kvlanes.nursery._statistics import LaneSetStatistics
from kvlanes.nursery._step import Step

AnyLane: TypeAlias = Lane | ServedLane
CRASHES_A_MINUTE = 3  # more than these, and the error goes to who opened the lanes
REPORT_SECONDS = 10.0  # between two words about a backend that does not end


@attrs.define(eq=False)
class CrashLog:
    """Counts crashes, and says when they are too many."""

    count: int = 0
    _recent: deque[float] = attrs.Factory(lambda: deque(maxlen=CRASHES_A_MINUTE + 1))

    def note(self, now: float) -> bool:
        """Whether the owner must be told: one more than allowed within a minute."""
        self.count += 1
        self._recent.append(now)
        return len(self._recent) > CRASHES_A_MINUTE and now - self._recent[0] < 60.0


@attrs.frozen
class CrewConfig:
    """What `open_lanes` was asked for."""

    lanes: int
    queue_capacity: int
    default_lease: Lease
    in_place: bool
    drain_seconds: float


class Crew:
    """All lanes of one index or backend. Written by its own methods and by its lane set."""

    def __init__(
        self, make_index: Callable[[], IndexBackend | ServedBackend], config: CrewConfig
    ) -> None:
        self.resync: set[Rank] = set()
        self._failure: LaneCrashed | None = None
        self._watching = trio.CancelScope()
        self._crashes = CrashLog()
        self._ended = Barrier(config.lanes, lambda: None)
        self._config = config
        first = make_index()
        self.owner: IndexOwner | BackendOwner
        self.lanes: list[AnyLane]
        if isinstance(first, ServedBackend):
            self.owner = BackendOwner(cast(Callable[[], ServedBackend], make_index), first)
            self.lanes = [self._served(self.owner) for _ in range(config.lanes)]
        elif not callable(getattr(first, "apply", None)):
            raise TypeError(f"make_index makes an index, or a backend that waits, got {first!r}")
        else:
            self.owner = IndexOwner(cast(Callable[[], IndexBackend], make_index), self.crash, first)
            self.lanes = [self._lane(self.owner) for _ in range(config.lanes)]
        self.seats: Seats[AnyLane] = Seats(self.lanes)

    def _lane(self, owner: IndexOwner) -> Lane:
        queue = LaneQueue(self._config.queue_capacity)
        return Lane(Step(owner, self._config.default_lease, queue), queue, self._config.in_place)

    def _served(self, owner: BackendOwner) -> ServedLane:
        queue, outbox = LaneQueue(self._config.queue_capacity), Outbox(owner.backend.block_size)

        def make_table() -> LeaseTable:
            return LeaseTable(outbox)

        table = IndexOwner(make_table, self.crash, make_table())
        step = Step(table, self._config.default_lease, queue)
        return ServedLane(owner, self.crash, step, queue, outbox)

    @enable_ki_protection
    def crash(self, error: Exception) -> None:
        """Replace the broken index; runs inside the write that broke it. Incarnations stay."""
        logger.error("the index crashed and is replaced by an empty one", exc_info=error)
        self.resync |= self.seats.table.keys()
        for seat in self.seats.table.values():
            seat.seed()
        for lane in self.lanes:
            lane.queue.fail(lambda: crashed(error))
        too_many, again = self._crashes.note(trio.current_time()), None
        try:
            self.owner.replace()
        except Exception as failure:
            again = failure
        for lane in self.lanes:
            lane.restart(error)
        if again is not None:
            self._escalate(again, "and its factory failed")
        elif too_many:
            self._escalate(error, f"{CRASHES_A_MINUTE + 1} times in a minute")

    def _escalate(self, error: Exception, how: str) -> None:
        """Tell who opened the lanes, through `_watch` in their nursery, whichever task crashed."""
        self._failure = LaneCrashed(f"the index crashed {how}: {error!r}")
        self._failure.__cause__ = error
        self.refuse()
        self.stop()

    @enable_ki_protection
    def start(self, nursery: trio.Nursery) -> None:
        for lane in self.lanes:
            nursery.start_soon(lane.run, self._ended.arrive)
        nursery.start_soon(self._watch)

    @enable_ki_protection
    async def _watch(self) -> None:
        with self._watching:
            await trio.sleep_forever()  # until `stop`
        if self._failure is not None:
            raise self._failure

    @enable_ki_protection
    async def end(self) -> None:
        """Refuse, drain, stop; in the scope of who opened the lanes. Always a checkpoint."""
        self.refuse()
        try:
            with trio.CancelScope(shield=True, relative_deadline=self._config.drain_seconds):
                await self._ended.wait()
        finally:
            self.stop()
            while self._ended.remaining:
                await self._outlast()

    @enable_ki_protection
    def refuse(self) -> None:
        """Accept nothing more; the lanes end when they have settled what is queued."""
        for lane in self.lanes:
            lane.queue.close()

    @enable_ki_protection
    def stop(self) -> None:
        """The drain's time is over."""
        for lane in self.lanes:
            lane.stop()
        self._watching.cancel()

    @enable_ki_protection
    async def _outlast(self) -> None:
        """Wait a while for backends that ignore their cancellation, and say so."""
        with trio.move_on_after(REPORT_SECONDS, shield=True) as patience:
            await self._ended.wait()
        if patience.cancelled_caught:
            logger.warning("%d lanes wait for their backend to end", self._ended.remaining)

    def statistics(self) -> LaneSetStatistics:
        lanes = tuple(lane.statistics() for lane in self.lanes)
        owners = {id(lane.step.owner): lane.step.owner for lane in self.lanes}
        held = sum(owner.leased_blocks() for owner in owners.values())
        return LaneSetStatistics(lanes, self._crashes.count, frozenset(self.resync), held)
