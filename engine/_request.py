"""One request: a permit, a deadline, and the reservations made on its behalf."""

from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from trio.lowlevel import enable_ki_protection

from kvlanes.admission import Permit
from kvlanes.engine._eligibility import Wishes
from kvlanes.engine._errors import RequestEnded
from kvlanes.engine._reservation import Reservation
from kvlanes.indexer import Prompt, Rank, Tokens

if TYPE_CHECKING:
    from kvlanes.engine._engine import Engine

T = TypeVar("T")
Args = TypeVarTuple("Args")

current_request_id: ContextVar[str | None] = ContextVar("kvlanes_request_id", default=None)
"""The id of the request that the running task, thread or dispatched work belongs to."""


class Request:
    """One request, from its arrival to its end; the engine makes, admits and ends it.

    Leaving it gives back whatever no thread or dispatched work holds.

    Attributes:
        request_id: As given, or made by the engine; in every log line about this request.
        deadline: Absolute, on Trio's clock; bounds preflight and dispatch.
    """

    __slots__ = (
        "_ended",
        "_engine",
        "_outer_id",
        "_permit",
        "_reservations",
        "deadline",
        "request_id",
    )

    def __init__(self, engine: "Engine", deadline: float, request_id: str) -> None:
        self.request_id = request_id
        self.deadline = deadline
        self._engine = engine
        self._permit: Permit | None = None  # until admitted
        self._outer_id: Token[str | None] | None = None
        self._reservations: dict[Reservation, None] = {}
        self._ended = False

    @property
    def permit(self) -> Permit:
        """What was admitted."""
        assert self._permit is not None, "a request is handed out when it is admitted"
        return self._permit

    async def preflight(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run a blocking function in a thread that holds the permit until it has really ended.

        Returns:
            What `fn` returned.

        Raises:
            DeadlinePassed: The request's deadline came first; the thread goes on and keeps its
                hold, and its outcome is logged with the request id.
            RequestEnded: The request was left.
            PermitEnded: Its permit was closed under it.
            Exception: What `fn` raised.

        Always a checkpoint.
        """
        if self._ended:
            raise RequestEnded(self.request_id)
        return await self.permit.run_blocking(fn, *args, deadline=self.deadline)

    @enable_ki_protection
    def route(
        self,
        prompt: Prompt | Tokens,
        *,
        exclude: Collection[str | Rank] = (),
        allowed: Collection[str | Rank] | None = None,
        requires: Collection[str] = (),
    ) -> Reservation:
        """Choose a rank for a prompt and reserve a place there, in one step.

        A request may hold several reservations, one for each branch of its work. To try another
        worker, `exclude` the one that failed: its reservation has ended when `dispatch` returns.

        Args:
            prompt: A prompt of the engine's block size, or token ids to make one from.
            exclude: Workers (all their ranks) or ranks that shall not serve.
            allowed: The only ones that may; a single rank pins.
            requires: Capabilities the worker must have.

        Raises:
            NoEligibleWorker: Nobody is left; says why for each rank.
            BlockSizeMismatch: A prompt cut into other blocks.
            RequestEnded: This request was left.
            EngineClosed: The engine has closed.
            TypeError: A wish that names neither workers nor ranks.

        Never a checkpoint. O(ranks) in C, O(ranks that hold some of it) in Python.
        """
        if self._ended:
            raise RequestEnded(self.request_id)
        reservation = self._engine._reserve(self, prompt, Wishes.of(exclude, allowed, requires))
        self._reservations[reservation] = None
        return reservation

    def admitted(self, permit: Permit) -> None:
        """The engine admitted it; its id is the context's from here on."""
        self._permit = permit
        self._outer_id = current_request_id.set(self.request_id)

    @enable_ki_protection
    def close(self) -> None:
        """End the request's own hold and the reservations that nothing occupies. Idempotent."""
        self._ended = True
        for reservation in list(self._reservations):
            reservation.close()
        if self._permit is not None:
            self._permit.close()
        if self._outer_id is not None:
            outer, self._outer_id = self._outer_id, None
            # A streaming response may be closed by another task, whose context is not ours.
            with suppress(ValueError):
                current_request_id.reset(outer)

    def forget(self, reservation: Reservation) -> None:
        """A reservation has ended by itself."""
        self._reservations.pop(reservation, None)
