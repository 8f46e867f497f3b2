"""Work that outlives its caller without anybody losing count of it.

A dispatch is a child of a nursery that its owner names, not of the caller: the caller can return
at its bound while work that ignores its cancellation keeps its owner and what it holds.
"""
# flake8: noqa: ASYNC910 - a child is a checkpoint where its work is one

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, NoReturn, TypeVar, TypeVarTuple

import attrs
import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")

logger = logging.getLogger("kvlanes.nursery")


class DispatchExpired(TimeoutError):
    """The work did not finish before its deadline.

    Attributes:
        drained: Whether it had ended when its caller returned.
    """

    def __init__(self, drained: bool) -> None:
        state = "has ended" if drained else "still runs"
        super().__init__(f"the work did not finish before its deadline; it {state}")
        self.drained = drained


class WorkCancelled(RuntimeError):
    """The nursery that owned the work was cancelled; nobody named another reason."""


@attrs.frozen
class Completed(Generic[T_co]):
    """The work returned before its deadline."""

    value: T_co

    def unwrap(self) -> T_co:
        return self.value


@attrs.frozen
class Failed:
    """The work raised before its deadline, or an `Ending` ended it with this error."""

    error: Exception

    def unwrap(self) -> NoReturn:
        raise self.error


@attrs.frozen
class DeadlineExpired:
    """The work did not finish before its deadline, whatever it did afterwards.

    Attributes:
        drained: Whether it had ended when its caller returned. If not, it keeps what it holds.
    """

    drained: bool

    def unwrap(self) -> NoReturn:
        raise DispatchExpired(self.drained)


class Ending:
    """A reason to end dispatches before their deadline, for whoever learns of it.

    The owner of something that dispatches depend on (a worker's incarnation, an engine) keeps one,
    passes it to each `dispatch`, and ends it once. Written by `end` and by the jobs under it.
    """

    __slots__ = ("_jobs", "_make_error")

    def __init__(self) -> None:
        self._make_error: Callable[[], Exception] | None = None
        self._jobs: dict[Job[Any], None] = {}

    @property
    def ended(self) -> bool:
        return self._make_error is not None

    @enable_ki_protection
    def end(self, make_error: Callable[[], Exception]) -> None:
        """End every dispatch under it as `Failed`, and refuse later ones the same way.

        Work that has finished keeps its outcome, work whose deadline has passed is expired. The
        others are cancelled, and their callers drain as at a deadline. The first call counts,
        later ones change nothing.

        Args:
            make_error: Called once for each dispatch, so that no two callers raise one exception;
                an exception class will do. What it raises leaves from here, and nothing has ended.

        Never a checkpoint. O(dispatches under it).
        """
        if self._make_error is None:
            jobs = list(self._jobs)
            errors = [make_error() for _ in jobs]
            self._make_error = make_error
            for job, error in zip(jobs, errors, strict=True):
                job.cut_short(error)

    def _join(self, job: "Job[Any]") -> None:
        self._jobs[job] = None

    def _leave(self, job: "Job[Any]") -> None:
        self._jobs.pop(job, None)

    def _refusal(self) -> Failed | None:
        return None if self._make_error is None else Failed(self._make_error())


@disable_ki_protection
async def _interruptible(work: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
    """The work is not ours: Ctrl-C may come in the middle of it."""
    return await work(*args)


@attrs.define(eq=False)
class Job(Generic[T]):
    """One dispatch: its child writes how it ended, its caller or an `Ending` that it must end."""

    request_id: str | None
    deadline: float
    endings: tuple[Ending, ...]
    # The caller waits in here, so that an `Ending` reaches both it and the work.
    patience: trio.CancelScope = attrs.Factory(trio.CancelScope)
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    done: trio.Event = attrs.Factory(trio.Event)
    outcome: Completed[T] | Failed | None = None  # None once finished: cancelled
    finished_at: float = math.inf
    _cut: Exception | None = None
    _disowned: bool = False

    @enable_ki_protection
    async def run(
        self,
        work: Callable[[*Ts], Awaitable[T]],
        args: tuple[*Ts],
        holding: AbstractContextManager[object],
    ) -> None:
        """The child. Errors end here; only what its nursery must see goes on."""
        try:
            with holding:
                await self._capture(work, args)
        except Exception as error:  # of `holding` itself
            self.outcome = Failed(error)
        finally:
            self._finish()

    async def _capture(self, work: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> None:
        try:
            with self.scope:
                self.outcome = Completed(await _interruptible(work, args))
        except Exception as error:
            self.outcome = Failed(error)
        except BaseExceptionGroup as group:
            # The nursery is everybody's: what is no error goes on to it, but an error that went
            # along would cancel every other request.
            errors, others = group.split(Exception)
            if errors is not None:
                self.outcome = Failed(errors)
            if others is not None:
                raise others from None
        finally:
            self.finished_at = trio.current_time()

    @enable_ki_protection
    def _finish(self) -> None:
        self.finished_at = min(self.finished_at, trio.current_time())
        for ending in self.endings:
            ending._leave(self)
        self.done.set()
        if self._disowned:
            self._report()

    @enable_ki_protection
    def cut_short(self, error: Exception) -> None:
        """An `Ending` ended. No-op where the work has finished or is being cancelled already."""
        # A deadline that has passed came first, though its caller may not have noticed it yet.
        expired = self.scope.cancel_called or trio.current_time() >= self.deadline
        if self.finished_at == math.inf and not expired:
            self._cut = error
            self.scope.cancel()
            self.patience.cancel()

    def result(self) -> Completed[T] | Failed | DeadlineExpired:
        """How it ended, by when the work finished and not by when its caller woke."""
        if self._cut is None and self.finished_at < self.deadline:
            return self.outcome or Failed(WorkCancelled("the nursery of the work was cancelled"))
        self.disown()
        if self._cut is not None:
            return Failed(self._cut)
        return DeadlineExpired(drained=self.done.is_set())

    def disown(self) -> None:
        """Nobody is left to take the outcome: it is logged once, now or when there is one."""
        self._disowned = True
        if self.done.is_set():
            self._report()

    def _report(self) -> None:
        # Only the kind of an error is named: its text may quote a prompt.
        text = "work of request %s ended with %s that nobody was left to take"
        if isinstance(self.outcome, Failed):
            logger.warning(text, self.request_id, type(self.outcome.error).__name__)
        elif self.outcome is not None:
            logger.info(text, self.request_id, "a result")


@enable_ki_protection
async def dispatch(
    work: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    nursery: trio.Nursery,
    holding: AbstractContextManager[object],
    deadline: float,
    grace_seconds: float = 1.0,
    request_id: str | None = None,
    endings: tuple[Ending, ...] = (),
) -> Completed[T] | Failed | DeadlineExpired:
    """Run `await work(*args)` as a child of `nursery` and wait for it within a bound.

    The work counts by when it finished: before the deadline it is `Completed` or `Failed`,
    however late its caller wakes. At the deadline, when the caller is cancelled, and when one of
    the `endings` ends, the work is cancelled once and the caller waits at most `grace_seconds`
    from that moment, shielded. A cancelled caller then raises `Cancelled`.

    Work must observe its cancellation. Work that does not keeps `holding` until it ends, and one
    warning with the request id says so. What it returns or raises after that is logged once and
    dropped. The end of the work here is not the end of anything it started on a GPU.

    Args:
        work: The call to make; it must not depend on the caller's own cancel scopes.
        nursery: Who owns the work; it outlives the caller.
        holding: What the work holds, taken already. It is entered as the work's first step, and
            given back at once where the work cannot start.
        deadline: Absolute Trio time. When it is past, the work is not started.
        grace_seconds: How long a caller waits for cancelled work.
        request_id: Names the request in logs.
        endings: What may end the work earlier.

    Raises:
        ValueError: The deadline is no number or the grace not finite.
        RuntimeError: The nursery is closed.
        Exception: An ending that has ended could not make its error.

    Always a checkpoint. One task.
    """
    if math.isnan(deadline) or not 0.0 <= grace_seconds < math.inf:
        with holding:
            raise ValueError(f"deadline {deadline}, grace_seconds {grace_seconds}")
    job = Job[T](request_id, deadline, endings)
    if (refusal := _start(job, work, args, nursery, holding)) is not None:
        with holding:
            await trio.lowlevel.checkpoint()
        return refusal
    try:
        await _wait(job, grace_seconds)
    except BaseException:
        job.disown()
        raise
    return job.result()


def _start(
    job: Job[T],
    work: Callable[[*Ts], Awaitable[T]],
    args: tuple[*Ts],
    nursery: trio.Nursery,
    holding: AbstractContextManager[object],
) -> Failed | DeadlineExpired | None:
    """Start the child, or say why not; an error leaves after `holding` was given back."""
    try:
        if (refusal := _refusal(job)) is None:
            nursery.start_soon(job.run, work, args, holding)
    except Exception:  # the nursery is closed, or an `Ending` cannot make its error
        with holding:
            raise
    if refusal is None:
        for ending in job.endings:
            ending._join(job)
    return refusal


def _refusal(job: Job[T]) -> Failed | DeadlineExpired | None:
    if job.deadline <= trio.current_time():
        return DeadlineExpired(drained=True)
    return next((failed for ending in job.endings if (failed := ending._refusal())), None)


async def _wait(job: Job[T], grace_seconds: float) -> None:
    job.patience.deadline = job.deadline
    try:
        with job.patience:
            await job.done.wait()
    finally:
        if not job.done.is_set():
            job.scope.cancel()
            # From the moment of noticing: a loop that was late must not shorten the grace.
            noticed = trio.current_time()
            with trio.CancelScope(shield=True, deadline=noticed + grace_seconds):
                await job.done.wait()
            if not job.done.is_set():
                text = "work of request %s runs on %s s after its cancellation; it keeps its holds"
                logger.warning(text, job.request_id, grace_seconds)
