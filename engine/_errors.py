"""How the engine says no. Every message carries the numbers that decided."""

from collections.abc import Mapping

REASONS_IN_MESSAGE = 8  # of `NoEligibleWorker`; all of them stand in its `reasons`


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
        reasons: Each rank with why it was left out, and each name that nobody registered.
        retry_after_seconds: When to ask again at the earliest.
    """

    retryable = True

    def __init__(self, reasons: Mapping[str, str], retry_after_seconds: float = 1.0) -> None:
        named = [f"{name}: {reason}" for name, reason in list(reasons.items())[:REASONS_IN_MESSAGE]]
        if more := len(reasons) - len(named):
            named.append(f"and {more} more")
        listed = ", ".join(named) or "none registered"
        super().__init__(f"none of {len(reasons)} ranks may serve ({listed})")
        self.reasons = dict(reasons)
        self.retry_after_seconds = retry_after_seconds


class RanksAlike(EngineError, ValueError):
    """Two ranks would bear one name, so that no figure and no reason could tell them apart."""

    def __init__(self, name: str) -> None:
        worker, _, number = name.rpartition(":")
        super().__init__(f"worker {name!r} and rank {number} of {worker!r} would bear one name")
        self.name = name


class RequestExists(EngineError, ValueError):
    """A request of this id is open; two of one name could not be told apart in any log."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} is open already")
        self.request_id = request_id


class RequestEnded(EngineError, RuntimeError):
    """A request was used after it had been left."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} has ended; it routes nothing any more")
        self.request_id = request_id


class ReservationEnded(EngineError, RuntimeError):
    """A reservation was dispatched a second time, or after it had been closed."""

    def __init__(self, request_id: str, why: str) -> None:
        super().__init__(f"the reservation of request {request_id!r} {why}; it serves one dispatch")
        self.request_id = request_id


class UnknownWorker(EngineError, KeyError):
    """No worker of this name is registered."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(worker_id)
        self.worker_id = worker_id

    def __str__(self) -> str:
        return f"no worker {self.worker_id!r} is registered"


class WorkerExists(EngineError, ValueError):
    """The name is taken, by a registered worker or by another one of the same call."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"there is a worker {worker_id!r} already; update or reconcile changes it")
        self.worker_id = worker_id


class ConfigError(EngineError, ValueError):
    """A configuration contradicts itself or names something unknown."""
