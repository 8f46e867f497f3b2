"""The lanes of one index: which lane a mutation goes to, and what spans several of them."""

from collections.abc import Iterable

import trio
from trio.lowlevel import (
    cancel_shielded_checkpoint,
    checkpoint,
    checkpoint_if_cancelled,
    enable_ki_protection,
)

from kvlanes.indexer import Applied, Mutation, Overlap, Prompt, Rank, require_count
from kvlanes.nursery._capacity_lease import CapacityLease
from kvlanes.nursery._crew import AnyLane, Crew
from kvlanes.nursery._errors import LaneBusy, LaneClosed
from kvlanes.nursery._incarnations import Incarnation, Seat
from kvlanes.nursery._masked import without
from kvlanes.nursery._queue import Barrier, CapacityChange, Entry, Reading
from kvlanes.nursery._statistics import LaneSetStatistics

CALLS_A_SCHEDULING_POINT = 32


class LaneSet:
    """Ordered mutations, leases and expiry for one index; `open_lanes` makes one.

    A rank sits on one lane, and that lane's order is the order of everything that happens to the
    rank. The lane set is the only writer of its seats, the owner the only one of the index.
    """

    __slots__ = ("_credit", "_crew", "_lanes", "_owner", "_seats", "_table")

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._owner, self._lanes, self._seats = crew.owner, crew.lanes, crew.seats
        self._table = crew.seats.table
        self._credit = CALLS_A_SCHEDULING_POINT

    # -- mutations

    def attach(self, rank: Rank) -> Incarnation:
        """The living incarnation of `rank`, a new one if it has none. Never a checkpoint.

        The first use gives the rank a lane, round robin, which it keeps.
        """
        return self._locate(rank, None)[1]

    async def apply(self, mutation: Mutation, incarnation: Incarnation | None = None) -> Applied:
        """Apply one mutation in its rank's order and return what it did.

        Always a cancellation point; counted over the whole lane set a scheduling point at least
        every 32nd call. On an idle lane it costs no task switch. `Cancelled` before the mutation
        is accepted means it was not applied; out of a queued call it means that nobody here
        knows: it will be applied in its turn, with its lease.

        Args:
            mutation: A `Lease(None)` in it takes the default TTL of the lanes.
            incarnation: From `attach`, compared when the mutation is applied; `None` is the one
                that lives at this call.

        Raises:
            StaleIncarnation: A reset or departure ended the incarnation first.
            IndexerError: The index refused the mutation; nothing was written.
            LaneCrashed: The index broke; the cause is chained.
            LaneClosed: The lanes are closing; it was not applied.
        """
        await checkpoint_if_cancelled()
        self._credit -= 1
        try:
            # What the rest of this class leaves to `_locate`, `_scheduling_point_due` and
            # `Lane.idle` is written out: three calls are an eighth of an acknowledged store.
            # Not `owner.busy`: no coroutine runs inside a write, only what the index itself calls.
            seat = self._table.get(mutation.rank)
            if seat is None or seat.current is None:
                seat, incarnation = self._locate(mutation.rank, incarnation)
            elif incarnation is None:
                incarnation = seat.current
            lane = seat.lane
            queue = lane.queue
            if lane.in_place and not (queue.entries or queue.closed):
                return lane.step.apply(seat, incarnation, mutation)
            entry = Entry(seat, incarnation, mutation)
            queue.submit(entry)
            if entry.result is None:
                await queue.done(entry)
            return entry.unwrap()
        finally:
            # Also after a refusal: a loop that goes on after each must let others run too.
            if self._credit <= 0:
                self._credit = CALLS_A_SCHEDULING_POINT
                await cancel_shielded_checkpoint()

    def apply_nowait(self, mutation: Mutation, incarnation: Incarnation | None = None) -> Applied:
        """`apply` for an idle lane. Never a checkpoint.

        Raises:
            LaneBusy: Something is queued before it, or the backend waits.
            StaleIncarnation, IndexerError, LaneCrashed, LaneClosed: As in `apply`.
        """
        seat, incarnation = self._locate(mutation.rank, incarnation)
        if seat.lane.idle:
            return seat.lane.step.apply(seat, incarnation, mutation)
        if seat.lane.queue.closed:
            seat.lane.queue.counts.rejected += 1
            raise LaneClosed("the lanes are closing")
        whose = str(mutation.rank) + ("" if seat.lane.in_place else ", which queues everything")
        raise LaneBusy(f"{seat.lane.queue.depth} mutations wait on the lane of {whose}")

    async def apply_many(
        self, mutations: Iterable[Mutation], incarnation: Incarnation | None = None
    ) -> list[Applied]:
        """Apply several mutations, each in its rank's order. Always a checkpoint.

        All of them are tried, whatever becomes of one; then the first error is raised. They are
        no transaction: other callers' mutations may come between, and a cancelled call leaves
        what it has accepted to be applied. O(mutations).

        Raises:
            StaleIncarnation, IndexerError, LaneCrashed, LaneClosed: As in `apply`.
        """
        await checkpoint()
        entries: list[Entry] = []
        for mutation in mutations:
            entry = self._begin(mutation, incarnation)
            entries.append(entry)
            if entry in entry.seat.lane.queue.overflow:
                await entry.seat.lane.queue.room(entry)
                await checkpoint_if_cancelled()  # room may have come just before it
            elif self._scheduling_point_due():
                await checkpoint()
        for entry in entries:
            if entry.result is None:
                await entry.seat.lane.queue.done(entry)
        return [entry.unwrap() for entry in entries]

    def post(self, mutation: Mutation, incarnation: Incarnation | None = None) -> bool:
        """Hand over a mutation whose outcome nobody waits for. Never a checkpoint.

        Returns:
            Whether it was accepted. `False`: the queue was full or closed; counted as dropped.
            What becomes of an accepted one is counted only.
        """
        seat, incarnation = self._locate(mutation.rank, incarnation)
        lane = seat.lane
        if not lane.idle and (lane.queue.closed or lane.queue.full):
            lane.queue.counts.posts_dropped += 1
            return False
        self._begin(mutation, incarnation)
        return True

    @enable_ki_protection
    def _begin(self, mutation: Mutation, incarnation: Incarnation | None) -> Entry:
        """Apply in place, or queue: either way the entry's result will tell."""
        rank = mutation.rank
        try:
            seat, incarnation = self._locate(rank, incarnation)
        except TypeError as error:  # no rank: settled like every refusal, so that a batch goes on
            entry = Entry(Seat(rank, self._lanes[0]), Incarnation(rank, 0), mutation)
            self._lanes[0].queue.refuse(entry, error)
            return entry
        entry = Entry(seat, incarnation, mutation)
        if seat.lane.idle:
            entry.settle(seat.lane.step.outcome(entry))
        else:
            seat.lane.queue.submit(entry)
        return entry

    def _scheduling_point_due(self) -> bool:
        """Counts calls over the whole lane set: many lanes must not starve the loop together."""
        self._credit -= 1
        if self._credit > 0:
            return False
        self._credit = CALLS_A_SCHEDULING_POINT
        return True

    def _locate(
        self, rank: Rank, incarnation: Incarnation | None
    ) -> tuple[Seat[AnyLane], Incarnation]:
        """The rank's seat, and the incarnation the caller means. Never a checkpoint."""
        if incarnation is not None:
            return self._seats.find(rank), incarnation
        seat = self._seats.table.get(rank)
        if seat is None or seat.current is None:
            seat = self._attach(rank)
        assert seat.current is not None
        return seat, seat.current

    @enable_ki_protection
    def _attach(self, rank: Rank) -> Seat[AnyLane]:
        seat = self._seats.attach(rank)
        seat.lane.step.ranks.add(rank)
        # The factory may have filled the index: have this rank's leases looked up once.
        seat.lane.queue.wake_by(trio.current_time())
        return seat

    # -- modelled block pools

    def set_capacity(self, incarnation: Incarnation, capacity_blocks: int | None) -> None:
        """From here on model what this rank's engine evicts. In lane order; never a checkpoint.

        Coverage that leases held is taken over by the requests that store it again. `None`: the
        capacity is not known any more; what the model had stored goes, and `occupy` leases.
        A crash of the index starts the pool again, with this capacity. For an incarnation that
        has ended this is nothing.

        Raises:
            ValueError: A capacity below 1.
        """
        if capacity_blocks is not None:
            require_count("capacity_blocks", capacity_blocks, 1)
        seat, _ = self._locate(incarnation.rank, incarnation)
        change = CapacityChange(seat, incarnation, lambda m: m.set_capacity(capacity_blocks))
        seat.lane.change(change, must=True)

    @enable_ki_protection  # an interrupt behind `acquire` would leave the room taken for ever
    def occupy(
        self, incarnation: Incarnation, prompt: Prompt, *, private_blocks: int = 0
    ) -> CapacityLease:
        """A request starts on this rank: its prompt takes room in the modelled pool.

        In lane order; never a checkpoint. Without a known capacity it is a leased store. A full
        lane drops and counts it, as it does a post; then the lease holds nothing.

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
            ValueError: `private_blocks` is negative.
        """
        seat, _ = self._locate(incarnation.rank, incarnation)
        lease = CapacityLease(seat, incarnation)
        lease.acquire(prompt, self._owner.block_size, private_blocks)
        return lease

    # -- reading

    @property
    def block_size(self) -> int:
        """Tokens a block, as the index says."""
        return self._owner.block_size

    def overlap(self, prompt: Prompt) -> Overlap:
        """How deep each rank's coverage of `prompt` reaches, now. Never a checkpoint.

        A rank whose departure is under way covers nothing.

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
            LaneBusy: The backend reads in its lane; use `read`.
        """
        return self._without_leaving(self._owner.overlap(prompt))

    async def read(self, prompt: Prompt) -> Overlap:
        """`overlap`, where the backend wants it: in the caller or in a lane. Always a checkpoint.

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
            LaneCrashed, LaneClosed: The lane could not read it.
        """
        if self._owner.reads_in_caller:
            await checkpoint()
            return self.overlap(prompt)
        reading = Reading(prompt)
        self._lanes[0].queue.control(reading)
        await reading.answer.wait()
        assert reading.overlap is not None
        return self._without_leaving(reading.overlap)

    def _without_leaving(self, overlap: Overlap) -> Overlap:
        return without(overlap, self._seats.leaving)

    def statistics(self) -> LaneSetStatistics:
        """What waits, what was done, what was lost. Never a checkpoint. O(lanes + lost ranks)."""
        return self._crew.statistics()

    # -- barriers

    async def reset(self, rank: Rank) -> Incarnation:
        """End the rank's coverage and incarnation, and start its next one. Always a checkpoint.

        Takes effect at the call: what is queued for the old incarnation settles as stale. An
        unknown rank gets a lane. Returns when nothing of the old incarnation is queued.

        Returns:
            The incarnation that lives from this call on; `attach` would answer the same.

        Raises:
            LaneCrashed: A backend that waits broke over it. The rank is empty all the same, and
                its new incarnation lives.
            LaneClosed: The lanes closed first.
        """
        barrier = self._depart(rank.worker_id, rank.dp_rank, again=rank)
        incarnation = self.attach(rank)
        await barrier.wait()
        return incarnation

    async def drop(self, worker_id: str, dp_rank: int | None = None) -> None:
        """`drop_nowait`, and wait until nothing of the worker is queued. Always a checkpoint.

        Raises:
            LaneCrashed: A backend that waits broke over it. The worker is gone all the same.
            LaneClosed: The lanes closed first.
        """
        await self._depart(worker_id, dp_rank).wait()

    def drop_nowait(self, worker_id: str, dp_rank: int | None = None) -> None:
        """End a worker's coverage and incarnations (or one rank's), now. Never a checkpoint.

        What is queued for them settles as stale. An unknown worker takes no lane. The rank may be
        registered again at once, with a new incarnation that nothing of the old one reaches.
        """
        self._depart(worker_id, dp_rank)

    @enable_ki_protection
    def _depart(self, worker_id: str, dp_rank: int | None, again: Rank | None = None) -> Barrier:
        """Revoke, retire and post the barrier in one step; `again` begins its next life in it."""
        seats = self._seats.revoke(worker_id, dp_rank)
        self._owner.drop(worker_id, dp_rank)
        self._crew.resync.difference_update(seat.rank for seat in seats)
        if again is not None:
            self._attach(again)
        lanes = [lane for lane in self._lanes if any(seat.lane is lane for seat in seats)]
        barrier = Barrier(len(lanes), lambda: self._departed(seats))
        for seat in seats:
            seat.lane.depart(seat.rank, barrier)
        return self._post(barrier, lanes)

    def _departed(self, seats: list[Seat[AnyLane]]) -> None:
        for seat in self._seats.departed(seats):
            seat.lane.step.ranks.discard(seat.rank)

    async def flush(self) -> None:
        """Return when all that was queued at this call is settled. Always a checkpoint."""
        await self._post(Barrier(len(self._lanes), lambda: None), self._lanes).wait()

    async def dump(self) -> object:
        """The index's dump, taken when all that was queued at this call is settled.

        Always a checkpoint. O(index), in one piece.

        Raises:
            AttributeError: This kind of index cannot be dumped.
            DumpUnavailable: The backend waits.
            LaneCrashed, LaneClosed: A lane did not get there.
        """
        barrier = Barrier(len(self._lanes), self._owner.dump)
        return await self._post(barrier, self._lanes).wait()

    @enable_ki_protection
    def _post(self, barrier: Barrier, lanes: list[AnyLane]) -> Barrier:
        """Post to all lanes in one step, so that no cancellation leaves half a barrier."""
        if not lanes:
            barrier.arrive()
        for lane in lanes:
            lane.pass_barrier(barrier)
        return barrier
