"""What is held because of a decision: a place on one rank, until the work there has ended."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, TypeVarTuple

from kvlanes.admission import Hold
from kvlanes.engine._router import Decision
from kvlanes.engine.load import Booking
from kvlanes.nursery import Completed, DeadlineExpired, Failed, dispatch

if TYPE_CHECKING:
    from kvlanes.engine._engine import Engine
    from kvlanes.engine._request import Request

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Reservation:
    """A place on one rank, held until the work there has really ended.

    The owner is the request, or whoever closes it; while a dispatch runs, the dispatched work
    owns it and a close by anybody else waits for its end. Holds no cancel scope, so it may live
    across a `yield`. All methods but `dispatch` are synchronous and never a checkpoint.
    """

    __slots__ = (
        "_booking",
        "_dispatched",
        "_engine",
        "_live",
        "_placed",
        "_prompt",
        "_request",
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
        self._dispatched = False
        self._serving: Hold | None = None  # what dispatched work holds while it runs
        self._placed = False

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
            RuntimeError: This reservation was closed, or dispatched before.
            trio.Cancelled: The caller was cancelled; the work was cancelled and drained first.

        Always a checkpoint. The end of local work is not the end of work on a GPU.
        """
        if self._dispatched or not self._booking.open:
            raise RuntimeError("a reservation serves one dispatch, while it is open")
        request, engine = self._request, self._engine
        self._serving = request.permit.hold("dispatched", deadline=request.deadline)
        self._dispatched = True
        engine.dispatched.value += 1
        return await dispatch(
            self._serve,
            work,
            args,
            nursery=engine.nursery,
            holding=self._occupied(),
            deadline=request.deadline,
            grace_seconds=engine.config.grace_seconds,
            request_id=request.request_id,
            endings=(engine.ending, self._live.ending),
        )

    async def _serve(self, work: Callable[[*Args], Awaitable[T]], args: tuple[*Args]) -> T:
        value = await work(*args)
        self.succeeded()  # also when it is late: the worker holds the prompt all the same
        return value

    @contextmanager
    def _occupied(self) -> Iterator[None]:
        """What dispatched work holds: the permit and the place, until it has really ended."""
        assert self._serving is not None
        try:
            yield
        finally:
            serving, self._serving = self._serving, None
            self.close()
            serving.close()
            self._engine.dispatched.value -= 1

    def first_output(self) -> None:
        """The first token came: the prefill is done and leaves the worker's load."""
        self._booking.first_output()

    def grow(self, blocks: int) -> None:
        """Output filled `blocks` further blocks on the worker."""
        self._booking.grow(blocks)

    def succeeded(self, cached_tokens: int | None = None) -> None:
        """The worker served the prompt and holds it now: post its placement, once.

        Args:
            cached_tokens: Prompt tokens that the worker found cached, when it says so; kept
                beside what was predicted (`Engine.health`).

        Raises:
            ValueError: Negative, or more than the prompt has.
        """
        tokens = self._prompt.token_count
        if cached_tokens is not None and not 0 <= cached_tokens <= tokens:
            raise ValueError(f"cached_tokens must be within 0..{tokens}, got {cached_tokens}")
        if cached_tokens is not None:
            predicted = min(tokens, self.route.overlap * self._prompt.block_size)
            self._live.hits.note(predicted, cached_tokens)
        if not self._placed:
            self._placed = True
            self._engine.place(self._live, self._prompt)

    def close(self) -> None:
        """Give the place back, unless dispatched work still occupies it. Idempotent."""
        if self._serving is None:
            self._booking.close()
            self._request.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
