"""One request: a permit, a deadline, and the reservations made on its behalf."""

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from kvlanes.admission import Permit
from kvlanes.engine._eligibility import Wishes
from kvlanes.engine._reservation import Reservation
from kvlanes.indexer import Prompt, Rank

if TYPE_CHECKING:
    from kvlanes.engine._engine import Engine

T = TypeVar("T")
Args = TypeVarTuple("Args")

current_request_id: ContextVar[str | None] = ContextVar("kvlanes_request_id", default=None)
"""The id of the request that the running task, thread or dispatched work belongs to."""


class Request:
    """An admitted request. Leaving it gives back whatever no thread or dispatched work holds.

    Attributes:
        request_id: As given, or made by the engine; in every log line about this request.
        deadline: Absolute, on Trio's clock; bounds preflight and dispatch.
        permit: What was admitted.
    """

    __slots__ = ("_engine", "_reservations", "deadline", "permit", "request_id")

    def __init__(self, engine: "Engine", permit: Permit, deadline: float, request_id: str) -> None:
        self.request_id = request_id
        self.deadline = deadline
        self.permit = permit
        self._engine = engine
        self._reservations: dict[Reservation, None] = {}

    async def preflight(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run a blocking function in a thread that holds the permit until it has really ended.

        Returns:
            What `fn` returned.

        Raises:
            DeadlinePassed: The request's deadline came first; the thread goes on and keeps its
                hold, and its outcome is logged with the request id.
            Exception: What `fn` raised.

        Always a checkpoint.
        """
        return await self.permit.run_blocking(fn, *args, deadline=self.deadline)

    def route(
        self,
        prompt: Prompt | Sequence[int],
        *,
        exclude: Collection[str | Rank] = (),
        allowed: Collection[str | Rank] | None = None,
        requires: Collection[str] = (),
    ) -> Reservation:
        """Choose a rank for a prompt and reserve a place there, in one step.

        Args:
            prompt: A prompt of the engine's block size, or token ids to make one from.
            exclude: Workers (all their ranks) or ranks that shall not serve.
            allowed: The only ones that may; a single rank pins.
            requires: Capabilities the worker must have.

        Raises:
            NoEligibleWorker: Nobody is left; says why for each rank.
            BlockSizeMismatch: A prompt cut into other blocks.
            EngineClosed: The engine is closing.

        Never a checkpoint. O(ranks) in C, O(ranks that hold some of it) in Python.
        """
        reservation = self._engine.reserve(self, prompt, Wishes.of(exclude, allowed, requires))
        self._reservations[reservation] = None
        return reservation

    def close(self) -> None:
        """End the request's own hold and the reservations that nothing occupies. Idempotent."""
        for reservation in list(self._reservations):
            reservation.close()
        self.permit.close()

    def forget(self, reservation: Reservation) -> None:
        """A reservation has ended by itself."""
        self._reservations.pop(reservation, None)
