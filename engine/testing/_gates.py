"""Stand-ins for what a test must be able to stop and let go: threads and work."""

import threading
from collections.abc import Callable, Iterator
from typing import Generic, NoReturn, TypeVar

import trio

from kvlanes.admission import ThreadLimiter

T = TypeVar("T")


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def result() -> NoReturn:
        raise error

    return result


class _Gate(Generic[T]):
    """What the callers of a gate come back with, once a test has said so."""

    def __init__(self, set_free: Callable[[], object]) -> None:
        self._set_free = set_free
        self._result: Callable[[], T] | None = None

    def open(self, value: T) -> None:
        """Let the callers return a value."""
        self._let_go(lambda: value)

    def fail(self, error: BaseException) -> None:
        """Let the callers raise an error."""
        self._let_go(_raising(error))

    def _let_go(self, result: Callable[[], T]) -> None:
        self._result = result
        self._set_free()

    def _come_back(self) -> T:
        assert self._result is not None
        return self._result()


class ThreadGate(_Gate[T]):
    """A blocking function that stands still in its thread until the test lets it go.

        gate = ThreadGate[int]()
        nursery.start_soon(permit.run_blocking, gate)
        await gate.entered.wait()            # the thread is inside
        gate.open(7)                         # and returns 7

    Make it in the Trio thread. It can be called several times; once let go it stays so.

    Attributes:
        entered: Set when a thread has come in.
    """

    def __init__(self) -> None:
        self.entered = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._freed = threading.Event()
        super().__init__(self._freed.set)

    def __call__(self, *args: object) -> T:
        """In the thread: say so, and wait."""
        self._token.run_sync_soon(self.entered.set)
        self._freed.wait()
        return self._come_back()


class WorkGate(_Gate[T]):
    """Work for a dispatch that stands still until the test lets it go.

    Args:
        stubborn: Ignore cancellation, as work does that never comes to a checkpoint.

    Attributes:
        entered: Set when the work has begun.
        ended: Set when it has ended, however.
        cancellations: How often a cancellation reached it.
    """

    def __init__(self, *, stubborn: bool = False) -> None:
        self.entered = trio.Event()
        self.ended = trio.Event()
        self.cancellations = 0
        self._stubborn = stubborn
        self._freed = trio.Event()
        super().__init__(self._freed.set)

    async def __call__(self, *args: object) -> T:
        """Wait to be let go."""
        self.entered.set()
        try:
            # Without a bound on purpose: this is the work that a bound elsewhere must survive.
            with trio.CancelScope(shield=self._stubborn):
                await self._freed.wait()
        except trio.Cancelled:
            self.cancellations += 1
            raise
        finally:
            self.ended.set()
        return self._come_back()


class VirtualThreads:
    """Runs blocking calls without threads: `AdmissionGate(..., runner=VirtualThreads(...))`.

    It keeps the contract of `trio.to_thread.run_sync`: nothing runs for a caller cancelled on
    entry or while it waits for the limiter, a cancelled caller leaves at once, the limiter is
    released when the call is over. A call takes virtual time, so a test may use a clock that
    jumps, which must never be combined with real threads: the clock cannot see them.

    Args:
        nursery: Where the calls go on when their callers have left.
        lengths: How many seconds each call takes, in the order in which they start; None for a
            thread that cannot start.

    Attributes:
        running: How many calls run.
    """

    def __init__(self, nursery: trio.Nursery, lengths: Iterator[float | None]) -> None:
        self.running = 0
        self._nursery = nursery
        self._lengths = lengths

    async def __call__(self, call: Callable[[], None], limiter: ThreadLimiter, /) -> None:
        """Run one call."""
        await trio.lowlevel.checkpoint_if_cancelled()
        thread = object()
        await limiter.acquire_on_behalf_of(thread)
        seconds = next(self._lengths)
        if seconds is None:
            limiter.release_on_behalf_of(thread)
            raise RuntimeError("can't start new thread")
        self.running += 1
        caller: list[trio.lowlevel.Task] = [trio.lowlevel.current_task()]

        @trio.lowlevel.enable_ki_protection  # Ctrl-C never reaches a thread
        async def run() -> None:
            # Nothing can cancel a thread; its length is its bound.
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
            call()
            self.running -= 1
            limiter.release_on_behalf_of(thread)
            for task in caller:
                trio.lowlevel.reschedule(task)

        def abandon(_: object) -> trio.lowlevel.Abort:
            caller.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        self._nursery.start_soon(run)
        await trio.lowlevel.wait_task_rescheduled(abandon)
