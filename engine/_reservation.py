"""What is held because of a decision: a place on one rank, until the work there has ended."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, TypeVarTuple

import attrs
from trio.lowlevel import enable_ki_protection

from kvlanes.admission import Hold
from kvlanes.engine._errors import ReservationEnded
from kvlanes.engine._router import Decision
from kvlanes.engine.load import Booking
from kvlanes.indexer import require_count
from kvlanes.nursery import CapacityLease, Completed, DeadlineExpired, Failed, dispatch

if TYPE_CHECKING:
    from kvlanes.engine._engine import Engine
    from kvlanes.engine._request import Request

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Reservation:
    """A place on one rank, held until the work there has really ended.

    The owner is the request, or whoever closes it; while a dispatch runs, the dispatched work
    owns it and a close by anybody else waits for its end. The end of the rank's life (removal,
    restart) takes it out of the books at once, and everything that comes after changes nothing.
    Holds no cancel scope, so it may live across a `yield`. All methods but `dispatch` are
    synchronous and never a checkpoint.

    Attributes:
        route: What was decided.
    """

    __slots__ = (
        "_booking",
        "_closed",
        "_engine",
        "_live",
        "_measured",
        "_placed",
        "_prompt",
        "_reported",
        "_request",
        "_room",
        "_serving",
        "route",
    )

    def __init__(
        self, engine: "Engine", request: "Request", decision: Decision, booking: Booking
    ) -> None:
        self.route = decision.route
        self._engine = engine
        self._request = request
        self._live = decision.live
        self._prompt = decision.prompt
        self._booking = booking
        self._closed = False
        self._serving: Serving | None = None  # while dispatched work runs
        self._placed = False
        self._room: CapacityLease | None = None  # in the rank's modelled pool
        self._measured = False
        self._reported = False  # that it could not be reached

    @property
    def lost(self) -> bool:
        """Whether the worker left or restarted since: its place here has ended."""
        return self._live.ending.ended

    @enable_ki_protection
    async def dispatch(
        self, work: Callable[[*Args], Awaitable[T]], *args: *Args
    ) -> Completed[T] | Failed | DeadlineExpired:
        """Run `work(*args)` on behalf of this request until its deadline, then drain.

        The work runs in the engine's nursery with a hold of the request's permit and with this
        reservation, and keeps both until it has really ended, even when nobody waits any more.
        It must observe cancellation. Its success posts the placement.

        Args:
            work: The call to the worker.
            *args: What to call it with.

        Returns:
            `Completed(value)`, `Failed(error)` or `DeadlineExpired(drained)`, judged by when the
            work ended. `Failed(WorkerLost())` when the worker left meanwhile, and
            `Failed(EngineClosed())` when the engine closed.

        Raises:
            ReservationEnded: It was closed, or dispatched before.
            PermitEnded: The request's permit was closed under it.
            trio.Cancelled: The caller was cancelled; the work was cancelled and drained first.

        Always a checkpoint. The end of local work is not the end of work on a GPU.
        """
        request, engine = self._request, self._engine
        return await dispatch(
            self._serve,
            work,
            args,
            nursery=engine.nursery,
            holding=self._occupy(),
            deadline=request.deadline,
            grace_seconds=engine.config.grace_seconds,
            request_id=request.request_id,
            endings=(engine.ending, self._live.ending),
        )

    def _occupy(self) -> "Serving":
        request = self._request
        if self._closed or self._serving is not None:
            why = "was closed" if self._closed else "is dispatched already"
            raise ReservationEnded(request.request_id, why)
        hold = request.permit.hold("dispatched", deadline=request.deadline)
        self._serving = Serving(self, hold)
        self._engine._dispatched.value += 1
        return self._serving

    async def _serve(self, work: Callable[[*Args], Awaitable[T]], args: tuple[*Args]) -> T:
        value = await work(*args)
        self.succeeded()  # also when it is late: the worker holds the prompt all the same
        return value

    def vacate(self) -> None:
        """Dispatched work has ended; called by its `Serving`, once."""
        self._serving = None
        self.close()
        self._engine._dispatched.value -= 1

    @enable_ki_protection
    def first_output(self) -> None:
        """The first token came: the prefill is done and leaves the worker's load.

        Where the worker's block pool is modelled, the prompt takes its room there from now on.
        """
        self._booking.first_output()
        if self._live.pool_blocks is not None:
            self._place()

    @enable_ki_protection
    def grow(self, blocks: int) -> None:
        """Output filled `blocks` further blocks on the worker.

        Raises:
            TypeError: No integer.
            ValueError: A negative number.
        """
        self._booking.grow(blocks)
        if self._room is not None:
            self._room.grow(private_blocks=self._booking.grown_blocks)

    @enable_ki_protection
    def succeeded(self, cached_tokens: int | None = None) -> None:
        """The worker served the prompt and holds it now: post its placement, once.

        Args:
            cached_tokens: Prompt tokens that the worker found cached, when it says so; the first
                figure is kept beside what was predicted (`Engine.health`).

        Raises:
            TypeError: No integer.
            ValueError: Negative, or more than the prompt has.
        """
        if cached_tokens is not None:
            self._measure(cached_tokens)
        self._place()

    def _measure(self, cached_tokens: int) -> None:
        tokens = self._prompt.token_count
        if not 0 <= cached_tokens <= tokens:
            raise ValueError(f"cached_tokens must be within 0..{tokens}, got {cached_tokens}")
        require_count("cached_tokens", cached_tokens)
        if not self._measured:
            self._measured = True
            predicted = min(tokens, self.route.overlap * self._prompt.block_size)
            self._live.hits.note(predicted, cached_tokens)

    def _place(self) -> None:
        if not self._placed:
            self._placed = True
            self._room = self._engine._fleet.place(self._live, self._prompt)
            if self._closed:
                self._leave_room()

    def _leave_room(self) -> None:
        if self._room is not None:
            self._room.close()

    def connect_failed(self) -> None:
        """The worker could not be reached: count it against the registration that was chosen.

        Counts once, however often it is said. A late report on a worker that left and came back
        changes nothing for the new one. See `Engine.connect_failed`.
        """
        if not self._reported:
            self._reported = True
            self._engine._fleet.connect_failed(self._live.member)

    @enable_ki_protection
    def close(self) -> None:
        """Give the place back, unless dispatched work still occupies it. Idempotent."""
        if self._serving is None and not self._closed:
            self._closed = True
            self._booking.close()
            self._leave_room()
            self._request.forget(self)

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


@attrs.define(eq=False)
class Serving:
    """What dispatched work holds, the permit and the place; given back when it really ends."""

    _reservation: Reservation
    _hold: Hold

    def __enter__(self) -> None:
        """Taken already, before the work was started."""

    @enable_ki_protection
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reservation.vacate()
        self._hold.close()
