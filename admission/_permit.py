"""Permits and holds: admitted weight that goes back once, with the last who holds it.

The books of a gate list *grants*. A `Permit` and each `Hold` are handles on one grant, and the
grant's own table says which of them still count. The books never refer to a handle, so a handle
that nobody closed can be collected, and says so.
"""

import math
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeVar, TypeVarTuple

import attrs
from trio.lowlevel import enable_ki_protection

from kvlanes.admission._checks import require_deadline
from kvlanes.admission._errors import PermitEnded

if TYPE_CHECKING:
    from kvlanes.admission._gate import AdmissionGate

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Activity = Literal["admitted", "preflight", "dispatched"]

OWNER = 0  # the serial of the hold that the permit itself ends


class Ask(NamedTuple):
    """What was asked of a gate.

    All asks on behalf of one request share its family. That is not its id: clients choose ids,
    and two of them may well choose the same.
    """

    weight: int
    group: str | None
    request_id: str | None
    family: object

    def __str__(self) -> str:
        return f"request {self.request_id} (weight {self.weight})"


class Holding(NamedTuple):
    """What one hold is for, and the Trio time from which it counts as overrun."""

    activity: Activity
    deadline: float


ADMITTED = Holding("admitted", math.inf)  # the owner's


@attrs.define(eq=False)
class Grant:
    """One admitted weight in the books of its gate.

    Its `holds` are the authority on who still holds: written by `take` and `end` only.
    """

    gate: "AdmissionGate"
    ask: Ask
    since: float
    holds: dict[int, Holding]
    _serials: int = OWNER

    @enable_ki_protection
    def take(self, holding: Holding) -> int:
        """Add a hold and return its serial."""
        if not self.holds:
            raise PermitEnded(str(self.ask))
        self._serials += 1
        self.holds[self._serials] = holding
        return self._serials

    @enable_ki_protection
    def end(self, serial: int) -> None:
        """End one hold; the weight goes back with the last. Idempotent, never raises."""
        if self.holds.pop(serial, None) is not None and not self.holds:
            self.gate._take_back(self)

    def warn_if_lost(self, serial: int, source: object) -> None:
        """The collector may run anywhere and never releases: it only tells."""
        if serial in self.holds:
            text = f"a hold of {self.ask} was never closed"
            warnings.warn(text, ResourceWarning, stacklevel=3, source=source)


class Hold:
    """One reason why a permit's weight is still out: a child task, a thread, an open stream.

    Use it as a context manager in whatever it was taken for, or call `close`.
    """

    __slots__ = ("_grant", "_serial")

    def __init__(self, grant: Grant, serial: int) -> None:
        self._grant = grant
        self._serial = serial

    def __repr__(self) -> str:
        return f"<hold of {self._grant.ask}>"

    @property
    def request_id(self) -> str | None:
        return self._grant.ask.request_id

    @enable_ki_protection
    def close(self) -> None:
        """End this hold; the permit's weight returns with its last hold.

        Idempotent; never raises; never a checkpoint. O(1) beside the waiters it admits.
        """
        self._grant.end(self._serial)

    @enable_ki_protection  # an interrupt in here would skip the exit
    def __enter__(self) -> Self:
        return self

    @enable_ki_protection
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._grant.warn_if_lost(self._serial, self)


class Permit:
    """Admitted weight. `with permit:` ends the owner's hold; others may outlive it.

    A permit says that a gate has counted the request. It says nothing about a worker: the end of
    a local task or thread is not the end of work on a GPU.
    """

    __slots__ = ("_grant",)

    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    def __repr__(self) -> str:
        return f"<permit of {self._grant.ask}>"

    @property
    def weight(self) -> int:
        return self._grant.ask.weight

    @property
    def request_id(self) -> str | None:
        return self._grant.ask.request_id

    @enable_ki_protection
    def hold(self, activity: Activity = "dispatched", *, deadline: float = math.inf) -> Hold:
        """Hold the weight once more, before the child or thread that needs it is started.

        Args:
            activity: What `AdmissionGate.statistics` shows for it.
            deadline: Absolute Trio time; from then on the statistics call it overrun. Nothing
                is ever released by it.

        Raises:
            PermitEnded: The weight has already gone back.
            ValueError: The deadline is no number.

        Never a checkpoint. O(1).
        """
        require_deadline(deadline)
        return Hold(self._grant, self._grant.take(Holding(activity, deadline)))

    @enable_ki_protection
    async def run_blocking(
        self, fn: Callable[[*Ts], T], *args: *Ts, deadline: float = math.inf
    ) -> T:
        """Run `fn(*args)` in a thread that holds this permit until it has really ended.

        The wait for a thread counts within the deadline. At the deadline, and when the caller is
        cancelled, this returns at once; a thread that has started goes on, keeps its hold, and
        how it ended is logged with the request id. `trio.from_thread.check_cancelled` lets the
        function leave early.

        Args:
            fn: A blocking function.
            deadline: Absolute Trio time. A result counts if the loop learned of the thread's end
                before it.

        Raises:
            DeadlinePassed: With the phase that was under way.
            PermitEnded: The weight has already gone back.
            WaitsForItself: Called back from a blocking call, with every slot taken.
            ValueError: The deadline is no number.

        Always a checkpoint. One thread hop.
        """
        self._grant.gate._require_slot()
        hold = self.hold("preflight", deadline=deadline)
        return await self._grant.gate._threads.run(hold, self._grant.ask.family, fn, args, deadline)

    @enable_ki_protection
    def close(self) -> None:
        """End the owner's hold; idempotent, never raises, never a checkpoint."""
        self._grant.end(OWNER)

    @enable_ki_protection  # as above
    def __enter__(self) -> Self:
        if OWNER not in self._grant.holds:
            raise PermitEnded(str(self._grant.ask))
        return self

    @enable_ki_protection
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._grant.warn_if_lost(OWNER, self)
