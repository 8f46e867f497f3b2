"""The gate: at most so much weight at once, all or none, and nobody slips past a hand-over."""

import math

import outcome
import trio
from trio.lowlevel import Abort, enable_ki_protection

from kvlanes.admission._charges import Charges
from kvlanes.admission._checks import at_least, require_deadline
from kvlanes.admission._errors import (
    CapacityExhausted,
    DeadlinePassed,
    GateClosed,
    GroupExhausted,
    QueueFull,
    RequestTooLarge,
    WaitsForItself,
)
from kvlanes.admission._line import Waiter, WaitingLine
from kvlanes.admission._permit import ADMITTED, OWNER, Ask, Grant, Permit
from kvlanes.admission._statistics import GateStatistics, holding_presence, waiting_presence
from kvlanes.admission._threads import BlockingRunner, Threads, calling_family, run_in_thread


class AdmissionGate:
    """Admits requests of a weight while their sum stays within a total.

    Immediate admission comes first. Waiting is off unless `queue_limit` allows it; then requests
    are served in their order, and what a release frees is handed over in the same step, so nobody
    can slip in between. A request that already holds a permit never waits: requests that hold and
    wait for each other are how a gate deadlocks.

    All state is written by synchronous methods of this class, in one Trio run. Cost does not
    depend on weight.

    Args:
        total: The weight that may be held at once, at least 1. See `set_total`.
        queue_limit: How many requests may wait; 0 refuses at once.
        overtake: How many waiting requests that fit may pass a given head that does not;
            0 is strictly first come, first served.
        preflight_slots: How many blocking calls run at once.
        group_limit: The weight that one group may hold and wait for; None for no limit.
        retry_after_seconds: What a retryable refusal tells its caller.
        runner: What runs blocking calls. Tests pass a virtual one.
    """

    __slots__ = (
        "_charges",
        "_closed",
        "_grants",
        "_group_limit",
        "_held",
        "_highest_total",
        "_idle",
        "_line",
        "_retry_after_seconds",
        "_threads",
        "_total",
    )

    def __init__(
        self,
        total: int,
        *,
        queue_limit: int = 0,
        overtake: int = 0,
        preflight_slots: int = 40,
        group_limit: int | None = None,
        retry_after_seconds: float = 1.0,
        runner: BlockingRunner = run_in_thread,
    ) -> None:
        at_least(1, "total", total)
        at_least(0, "queue_limit", queue_limit)
        at_least(0, "overtake", overtake)
        at_least(1, "preflight_slots", preflight_slots)
        if group_limit is not None:
            at_least(1, "group_limit", group_limit)
        if not 0.0 <= retry_after_seconds < math.inf:
            raise ValueError(
                f"retry_after_seconds must be finite and >= 0, got {retry_after_seconds}"
            )
        self._total = self._highest_total = total
        self._line = WaitingLine(queue_limit, overtake, total)
        self._group_limit = group_limit
        self._retry_after_seconds = retry_after_seconds
        self._threads = Threads(trio.CapacityLimiter(preflight_slots), runner)
        self._held = 0
        self._grants: dict[Grant, None] = {}
        self._charges = Charges()
        self._idle = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def total(self) -> int:
        return self._total

    @property
    def free(self) -> int:
        """What is free; negative after the total shrank under load."""
        return self._total - self._held

    @property
    def closed(self) -> bool:
        """Whether nobody is admitted any more."""
        return self._closed

    @property
    def preflight_slots(self) -> int:
        """How many blocking calls run at once."""
        return int(self._threads.slots.total_tokens)

    @property
    def busy_preflight_slots(self) -> int:
        """How many of them are taken, abandoned calls included.

        When it equals `preflight_slots`, a further call would wait. O(1).
        """
        return self._threads.slots.borrowed_tokens

    @enable_ki_protection
    def admit_nowait(
        self,
        weight: int = 1,
        *,
        group: str | None = None,
        request_id: str | None = None,
        family: object | None = None,
    ) -> Permit:
        """Admit all of `weight` now, or refuse.

        Args:
            weight: At least 1.
            group: Whose limit it counts against, for example a tenant.
            request_id: Names the request in statistics, logs and warnings, and does nothing else.
            family: Any hashable object that stands for the request where it asks more than once,
                so that it never waits for itself. Blocking calls under a permit are known
                without, and so is whatever they start, as long as the permit lives.

        Raises:
            GateClosed: The gate was closed.
            RequestTooLarge: No total ever set, or no group, could carry it.
            WaitsForItself: It could never be free beside what this request already holds.
            GroupExhausted: The group has taken its limit.
            CapacityExhausted: Not now; also while others wait whom the total could carry.

        Never a checkpoint. O(1).
        """
        ask = self._judge(weight, group, request_id, family)
        if weight > self._total - self._held or self._line.head is not None:
            raise self._exhausted(weight)
        self._charges.add(ask, weight)
        return self._grant(ask)

    @enable_ki_protection
    async def admit(
        self,
        weight: int = 1,
        *,
        deadline: float = math.inf,
        group: str | None = None,
        request_id: str | None = None,
        family: object | None = None,
    ) -> Permit:
        """Admit all of `weight`, waiting for it where the gate allows waiting.

        Args:
            weight: As for `admit_nowait`, and so are `group`, `request_id` and `family`.
            deadline: Absolute Trio time up to which to wait.

        Raises:
            DeadlinePassed: In phase `admission`; a deadline that is past is refused first.
            ValueError: A weight below 1, or a deadline that is no number.
            QueueFull: It would have to wait, and as many wait as may.
            AdmissionRefused: As `admit_nowait`; `CapacityExhausted` where waiting is off or the
                request already holds a permit.

        Always a checkpoint.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not deadline > trio.current_time():
            require_deadline(deadline)
            raise DeadlinePassed("admission")
        ask = self._judge(weight, group, request_id, family)
        if weight > self.free or not self._line.may_pass():
            if not self._line.limit or ask.family in self._charges.families:
                raise self._exhausted(weight)
            return await self._wait(ask, deadline)
        self._line.note_pass()
        self._charges.add(ask, weight)
        permit = self._grant(ask)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return permit

    @enable_ki_protection
    def set_total(self, total: int) -> None:
        """Change the total at once: 0 pauses, growth admits waiters.

        Shrinking below what is held takes nothing away: `free` turns negative and nobody is
        admitted until enough has come back. Who waits for more than the new total keeps the place
        in the line, and others go ahead until the total is large enough again.

        Raises:
            ValueError: The total is negative.

        Never a checkpoint.
        """
        at_least(0, "total", total)
        self._total = total
        self._highest_total = max(self._highest_total, total)
        self._line.resize(total)
        self._serve()

    @enable_ki_protection
    def close(self) -> None:
        """Admit nobody any more; waiters leave with `GateClosed`, permits stay good.

        Idempotent; never a checkpoint.
        """
        self._closed = True
        for waiter in list(self._line):
            self._leave(waiter)
            trio.lowlevel.reschedule(waiter.task, outcome.Error(GateClosed()))

    async def wait_idle(self) -> None:
        """Wait until no permit is out. Always a checkpoint; the caller sets the bound."""
        await trio.lowlevel.checkpoint()
        while self._grants:
            await self._idle.park()

    def statistics(self) -> GateStatistics:
        """Who holds what, since when, doing what. O(permits and waiters); never a checkpoint."""
        now = trio.current_time()
        slots = self._threads.slots.statistics()
        return GateStatistics(
            total=self._total,
            held=self._held,
            waiting=len(self._line),
            threads=slots.borrowed_tokens,
            waiting_for_thread=slots.tasks_waiting,
            requests=(
                *(holding_presence(grant, now) for grant in self._grants),
                *(waiting_presence(one.ask, one.since) for one in self._line),
            ),
        )

    def check(self) -> None:
        """Assert every invariant and recount every counter. O(permits and waiters)."""
        held = sum(grant.ask.weight for grant in self._grants)
        assert self._held == held, (self._held, held)
        assert all(grant.holds for grant in self._grants)
        entries: tuple[Grant | Waiter, ...] = (*self._grants, *self._line)
        self._charges.check(entry.ask for entry in entries)
        assert len(self._line) <= self._line.limit
        assert self._line.total == self._total, (self._line.total, self._total)
        assert self._line.next_served(self.free) is None, "a waiter that could be served stands"

    def _judge(
        self, weight: int, group: str | None, request_id: str | None, family: object | None
    ) -> Ask:
        """Refuse what waiting would not help."""
        at_least(1, "weight", weight)
        if self._closed:
            raise GateClosed
        if group is not None and not isinstance(group, str):
            raise TypeError(f"a group is a string, got {group!r}")
        if weight > self._highest_total:
            raise RequestTooLarge(weight, self._highest_total)
        if self._called_back():
            family = calling_family.get()
        elif family is None:
            family = object()
        held = self._charges.families.get(family, 0)
        if weight + held > self._highest_total:
            raise WaitsForItself(weight, held=held, limit=self._highest_total)
        if group is not None and self._group_limit is not None:
            self._judge_group(weight, group, self._group_limit)
        return Ask(weight, group, request_id, family)

    def _called_back(self) -> bool:
        """Whether the caller was started from a blocking call under a permit of this gate."""
        return calling_family.get() in self._charges.families

    def _require_slot(self) -> None:
        """A blocking call that waited for a second slot would wait for itself, or for its like."""
        slots = self._threads.slots
        if not slots.available_tokens and self._called_back():
            raise WaitsForItself(1, held=1, limit=int(slots.total_tokens), what="preflight slots")

    def _judge_group(self, weight: int, group: str, limit: int) -> None:
        # Waiters count too, so a group never waits for itself and never blocks the queue's head.
        taken = self._charges.groups.get(group, 0)
        if weight > limit:
            raise RequestTooLarge(weight, limit, group)
        if taken + weight > limit:
            seconds = self._retry_after_seconds
            raise GroupExhausted(
                group, weight, taken=taken, limit=limit, retry_after_seconds=seconds
            )

    def _exhausted(self, weight: int) -> CapacityExhausted:
        return CapacityExhausted(
            weight,
            free=self.free,
            total=self._total,
            waiting=len(self._line),
            retry_after_seconds=self._retry_after_seconds,
        )

    async def _wait(self, ask: Ask, deadline: float) -> Permit:
        if len(self._line) >= self._line.limit:
            seconds = self._retry_after_seconds
            raise QueueFull(len(self._line), self._line.limit, retry_after_seconds=seconds)
        waiter = Waiter(ask, trio.lowlevel.current_task(), trio.current_time())

        def abort(_: object) -> Abort:
            # Runs at the moment of the cancellation and never for a waiter that was served:
            # a hand-over takes the abort function away with it, so the grant wins.
            was_head = waiter is self._line.head
            self._leave(waiter)
            if was_head:  # nobody else can have kept others from being served
                self._serve()
            return Abort.SUCCEEDED

        with trio.CancelScope(deadline=deadline):
            self._charges.add(ask, ask.weight)
            self._line.join(waiter)
            permit: Permit = await trio.lowlevel.wait_task_rescheduled(abort)
            return permit
        raise DeadlinePassed("admission")

    def _leave(self, waiter: Waiter) -> None:
        self._line.leave(waiter)
        self._charges.add(waiter.ask, -waiter.ask.weight)

    def _serve(self) -> None:
        """Hand what is free to waiters: the one place where a waiter is granted anything.

        The weight is booked here and not when the waiter runs again, or a caller of
        `admit_nowait` could take it in between.
        """
        while (waiter := self._line.next_served(self.free)) is not None:
            self._line.serve(waiter)
            trio.lowlevel.reschedule(waiter.task, outcome.Value(self._grant(waiter.ask)))

    def _grant(self, ask: Ask) -> Permit:
        grant = Grant(self, ask, trio.current_time(), {OWNER: ADMITTED})
        self._held += ask.weight
        self._grants[grant] = None
        return Permit(grant)

    def _take_back(self, grant: Grant) -> None:
        """The weight of a grant whose last hold has ended; called by the grant, once."""
        del self._grants[grant]
        self._held -= grant.ask.weight
        self._charges.add(grant.ask, -grant.ask.weight)
        self._serve()
        if not self._grants:
            self._idle.unpark_all()
