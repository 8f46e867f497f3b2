"""How the engine says no. Every message carries the numbers that decided."""

from collections.abc import Mapping


class EngineError(Exception):
    """Base of what the engine itself refuses or reports."""

    retryable = False


class EngineClosed(EngineError, RuntimeError):
    """The engine is closing: nothing new starts, and running work was asked to end."""


class WorkerLost(EngineError, ConnectionError):
    """The worker left while it was serving; another worker may serve the request."""

    retryable = True

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"worker {worker_id!r} left while it was serving")
        self.worker_id = worker_id


class NoEligibleWorker(EngineError, LookupError):
    """No worker may serve this request now.

    Attributes:
        reasons: Each registered worker (or rank) with why it was left out.
    """

    retryable = True

    def __init__(self, reasons: Mapping[str, str]) -> None:
        listed = ", ".join(f"{name}: {reason}" for name, reason in reasons.items())
        super().__init__(f"none of {len(reasons)} ranks may serve ({listed or 'none registered'})")
        self.reasons = dict(reasons)


class UnknownWorker(EngineError, KeyError):
    """No worker of this name is registered."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(worker_id)
        self.worker_id = worker_id

    def __str__(self) -> str:
        return f"no worker {self.worker_id!r} is registered"


class WorkerExists(EngineError, ValueError):
    """A worker of this name is registered already."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"worker {worker_id!r} is registered already; use update or reconcile")
        self.worker_id = worker_id


class ConfigError(EngineError, ValueError):
    """A configuration contradicts itself or names something unknown."""
