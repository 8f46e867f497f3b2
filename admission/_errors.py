"""Why a gate said no, and what a caller did wrong: every error names its numbers."""

from typing import ClassVar, Literal

import trio

Phase = Literal["admission", "preflight queue", "preflight"]


class AdmissionError(Exception):
    """Base of every error of this package."""


class AdmissionRefused(AdmissionError):
    """The gate did not admit the request; nothing is held.

    Attributes:
        retryable: Whether the same request may be admitted later.
        retry_after_seconds: When to ask again at the earliest; None when not retryable.
    """

    retryable: ClassVar[bool] = False
    retry_after_seconds: float | None = None


class RequestTooLarge(AdmissionRefused, ValueError):
    """The weight exceeds what this gate could ever carry.

    Attributes:
        asked: The weight asked for.
        limit: The highest total ever set, or the limit of one group where that is smaller.
        group: The group whose limit it is, if it is one's.
    """

    def __init__(self, asked: int, limit: int, group: str | None = None) -> None:
        whom = "" if group is None else f" by group {group!r}"
        super().__init__(f"asked {asked}, but at most {limit} can ever be held{whom}")
        self.asked = asked
        self.limit = limit
        self.group = group


class CapacityExhausted(AdmissionRefused, trio.WouldBlock):
    """Not now: too little is free, or others already wait.

    Attributes:
        asked: The weight asked for.
        free: What was free; negative after the total shrank under load.
        total: The total at that moment; 0 while the gate is paused.
        waiting: How many requests were queued.
    """

    retryable = True

    def __init__(
        self, asked: int, *, free: int, total: int, waiting: int, retry_after_seconds: float
    ) -> None:
        super().__init__(f"asked {asked}, free {free} of {total}, {waiting} waiting")
        self.asked = asked
        self.free = free
        self.total = total
        self.waiting = waiting
        self.retry_after_seconds = retry_after_seconds


class GroupExhausted(AdmissionRefused, trio.WouldBlock):
    """Not now: this group already holds and waits for as much as one group may.

    Attributes:
        group: The group's name.
        asked: The weight asked for.
        taken: The weight that the group holds and waits for.
        limit: The limit of one group.
    """

    retryable = True

    def __init__(
        self, group: str, asked: int, *, taken: int, limit: int, retry_after_seconds: float
    ) -> None:
        super().__init__(f"group {group!r} asked {asked}, has taken {taken} of its {limit}")
        self.group = group
        self.asked = asked
        self.taken = taken
        self.limit = limit
        self.retry_after_seconds = retry_after_seconds


class QueueFull(AdmissionRefused, trio.WouldBlock):
    """Not now: as many requests wait as may wait.

    Attributes:
        waiting: How many requests were queued.
        limit: The gate's queue limit.
    """

    retryable = True

    def __init__(self, waiting: int, limit: int, *, retry_after_seconds: float) -> None:
        super().__init__(f"{waiting} requests wait, the queue limit is {limit}")
        self.waiting = waiting
        self.limit = limit
        self.retry_after_seconds = retry_after_seconds


class WaitsForItself(AdmissionRefused, RuntimeError):
    """The request already holds so much that what it asks for can never be free beside it.

    Attributes:
        asked: The weight asked for, or 1 preflight slot.
        held: The weight of the request's live permits, or its slot.
        limit: The highest total ever set, or the number of slots.
    """

    def __init__(self, asked: int, *, held: int, limit: int, what: str = "") -> None:
        of = f"{limit} {what}".rstrip()
        super().__init__(
            f"asked {asked} while this request holds {held} of at most {of}: "
            "it would wait for itself"
        )
        self.asked = asked
        self.held = held
        self.limit = limit


class GateClosed(AdmissionRefused, trio.ClosedResourceError):
    """The gate was closed; it admits nobody any more."""

    def __init__(self) -> None:
        super().__init__("the admission gate is closed")


class PermitEnded(AdmissionError, RuntimeError):
    """A permit was used after its weight had gone back."""

    def __init__(self, ask: str) -> None:
        super().__init__(f"the permit of {ask} has ended")


class DeadlinePassed(AdmissionError, TimeoutError):
    """The deadline passed before the phase was through.

    Attributes:
        phase: What was under way: `admission` (waiting at the gate), `preflight queue` (waiting
            for a thread; the function never ran) or `preflight` (the thread goes on).
    """

    def __init__(self, phase: Phase) -> None:
        super().__init__(f"the deadline passed during {phase}")
        self.phase: Phase = phase
