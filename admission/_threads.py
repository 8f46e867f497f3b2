"""Blocking calls in threads that hold a permit until they have really ended.

`trio.to_thread.run_sync` gives its limiter back when the thread is over, however long ago the
caller left. So the limiter we pass is the hold itself, with a slot of our own limit: whatever
becomes of the caller, hold and slot follow the thread.
"""
# flake8: noqa: ASYNC910 - a limiter is one step of a thread's start, which is a checkpoint

import inspect
import logging
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol, TypeVar, TypeVarTuple, cast

import attrs
import outcome
import trio

from kvlanes.admission._errors import DeadlinePassed
from kvlanes.admission._permit import Hold

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger("kvlanes.admission")

# The family of the request whose blocking call runs in this context. Trio copies the context into
# the thread, so a call back into the gate is known to come from a request that holds a permit.
calling_family: ContextVar[object | None] = ContextVar("calling_family", default=None)


class ThreadLimiter(Protocol):
    """What a thread holds from just before it starts until just after it ended."""

    async def acquire_on_behalf_of(self, borrower: object) -> None: ...

    def release_on_behalf_of(self, borrower: object) -> None: ...


class BlockingRunner(Protocol):
    """What runs blocking calls, to the contract of `trio.to_thread.run_sync`.

    It acquires the limiter, runs the call, releases the limiter when the call is over, and lets a
    cancelled caller go at once; a call that cannot start is an exception after the release.
    """

    async def __call__(self, call: Callable[[], None], limiter: ThreadLimiter, /) -> None: ...


async def run_in_thread(call: Callable[[], None], limiter: ThreadLimiter, /) -> None:
    """The runner that a gate uses unless it is given another."""
    likeness = cast(trio.CapacityLimiter, limiter)  # Trio asks for these two methods only
    await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=likeness)


@attrs.define(eq=False)
class ThreadHold:
    """One blocking call as its thread's limiter.

    Written in the Trio thread only, but for the outcome, which the thread writes before it ends.
    """

    _hold: Hold
    _slots: trio.CapacityLimiter
    started: bool = False
    _outcome: outcome.Outcome[object] | None = None
    _ended_at: float = math.inf
    _taken: bool = False
    _left: bool = False

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        try:
            # A thread is a checkpoint anyway, so a free slot need not be another.
            self._slots.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            await self._slots.acquire_on_behalf_of(borrower)
        # No checkpoint below: from here on Trio calls the release, whatever happens.
        self.started = True

    def release_on_behalf_of(self, borrower: object) -> None:
        """Never raises: an error here would replace the function's result."""
        self._ended_at = trio.current_time()
        self._slots.release_on_behalf_of(borrower)
        self._hold.close()
        self._report_if_untaken()

    def ended_before(self, deadline: float) -> bool:
        return self._ended_at < deadline

    def call(self, fn: Callable[[*Ts], object], args: tuple[*Ts]) -> None:
        """In the thread: run the function."""
        self._outcome = outcome.capture(_call_synchronously, fn, args)

    def take(self) -> object:
        self._taken = True
        assert self._outcome is not None
        return self._outcome.unwrap()

    def leave(self) -> None:
        """The caller goes away, with or without a result."""
        self._left = True
        if not self.started:
            self._hold.close()
        self._report_if_untaken()

    def _report_if_untaken(self) -> None:
        # A thread can end between the cancellation of its caller and the caller's next step, so
        # whichever of the two comes second reports. Only the kind of an error is named: its text
        # may quote a prompt.
        ended = self._outcome
        if self._taken or not self._left or self._ended_at == math.inf or ended is None:
            return
        what, level = "a result", logging.INFO
        if isinstance(ended, outcome.Error):
            what = type(ended.error).__name__
            # Not an error: `Cancelled`, where the function asked and left early.
            level = logging.WARNING if isinstance(ended.error, Exception) else logging.INFO
        text = "blocking call of request %s ended with %s after its caller had left"
        logger.log(level, text, self._hold.request_id, what)


def _call_synchronously(fn: Callable[[*Ts], T], args: tuple[*Ts]) -> T:
    value = fn(*args)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("expected a blocking function, this one returned a coroutine")
    return value


@attrs.define(eq=False)
class Threads:
    """The threads of one gate: a bounded number of slots, and what runs a call.

    A slot limit beside the admitted weight: permits bound what is under way, slots bound how
    many threads the machine runs for it. Whoever waits for a slot holds a permit, so the
    waiters are bounded by the gate's total.
    """

    slots: trio.CapacityLimiter
    _runner: BlockingRunner

    async def run(
        self,
        hold: Hold,
        family: object,
        fn: Callable[[*Ts], T],
        args: tuple[*Ts],
        deadline: float,
    ) -> T:
        """Run one call for `Permit.run_blocking`; `hold` was taken for it and is ours now.

        The caller keeps interrupts off all of it; they come in while it waits.
        """
        thread = ThreadHold(hold, self.slots)
        outer = calling_family.set(family)
        try:
            if deadline > trio.current_time():
                with trio.CancelScope(deadline=deadline):
                    await self._runner(lambda: thread.call(fn, args), thread)
                    if thread.ended_before(deadline):
                        return cast(T, thread.take())
            raise DeadlinePassed("preflight" if thread.started else "preflight queue")
        finally:
            calling_family.reset(outer)
            thread.leave()
