"""What lanes refuse and how they end: one base, each error also the nearest builtin."""

import trio


class LaneError(Exception):
    """Base of everything that lanes raise on their own account."""


class LaneBusy(LaneError, trio.WouldBlock):
    """The lane has work queued, or its backend waits: it cannot be done right now."""


class LaneClosed(LaneError, trio.ClosedResourceError):
    """The lanes are closing: the mutation was not applied and never will be."""


class LaneCrashed(LaneError, trio.BrokenResourceError):
    """The index broke while this waited, and was replaced by an empty one.

    The cause is chained. Every rank needs a resync; load and permits are untouched.
    """


class StaleIncarnation(LaneError, LookupError):
    """The mutation belongs to an incarnation that a reset or a departure has ended."""


class DumpUnavailable(LaneError, NotImplementedError):
    """A dump of a backend that waits would make guesses confirmed, and lose engines' names."""


class AcknowledgementMissing(LaneError, RuntimeError):
    """A backend asked for its next task, or returned, and had not acknowledged the one it had."""


class ServedTooShort(LaneError, RuntimeError):
    """A backend returned from `serve` while its lane was open."""
