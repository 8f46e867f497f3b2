"""Cancels a scenario at each of its checkpoints, one run each."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import trio
from trio.lowlevel import Task
from trio.testing import MockClock, wait_all_tasks_blocked


class Victim(trio.abc.Instrument):
    """The part of a scenario that is cancelled: what runs inside `with victim:`.

    Attributes:
        checkpoints: How many scheduling points of the run were counted inside.
    """

    def __init__(self, at: int) -> None:
        self.checkpoints = 0
        self.entered = False
        self._at = at
        self._scope = trio.CancelScope()

    @property
    def reached(self) -> bool:
        return self._scope.cancel_called

    def __enter__(self) -> Self:
        assert not self.entered, "a scenario enters its victim once"
        self.entered = True
        if self._at == 0:
            self._scope.cancel()
        trio.lowlevel.add_instrument(self)
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        trio.lowlevel.remove_instrument(self)
        return self._scope.__exit__(kind, error, traceback)

    def after_task_step(self, task: Task) -> None:
        """A task has come to a scheduling point, any task: all of them are tried."""
        self.checkpoints += 1
        if self.checkpoints == self._at:
            self._scope.cancel()


def cancel_everywhere(scenario: Callable[[Victim], Awaitable[None]], *, most: int = 10_000) -> int:
    """Run a scenario again and again, cancelling its victim one scheduling point later each time.

        async def scenario(victim):
            async with checked_gate(AdmissionGate(2)) as gate:
                with victim:
                    with await gate.admit() as permit:
                        await permit.run_blocking(tokenize, text)

        print(cancel_everywhere(scenario), "checkpoints")

    The first run is cancelled before it starts, the last one not at all. Every run has a clock of
    its own that jumps, so a scenario must use `VirtualThreads` and no real ones. The scenario
    checks its invariants itself, at its end or with `checked_gate`.

    Args:
        scenario: Called with the victim; it enters it exactly once, with `with victim:`.
        most: How many scheduling points a scenario may have.

    Returns:
        How many there were: at each of them, and before the first, the victim was cancelled once.

    Raises:
        AssertionError: The scenario never entered its victim, or has more scheduling points.
        BaseException: What a run raised, with a note that says where it was cancelled.
    """
    for at in range(most + 1):
        victim = Victim(at)
        try:
            trio.run(_play, scenario, victim, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"cancelled at checkpoint {at}" if victim.reached else "not cancelled")
            raise
        assert victim.entered, "the scenario never entered its victim"
        if not victim.reached:
            return victim.checkpoints
    raise AssertionError(f"the scenario has more than {most} checkpoints")


async def _play(scenario: Callable[[Victim], Awaitable[None]], victim: Victim) -> None:
    await wait_all_tasks_blocked()  # Trio's own tasks have started and do not count any more
    await scenario(victim)


class _EveryStep(trio.abc.Instrument):
    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.error: Exception | None = None

    def before_task_step(self, task: Task) -> None:
        # Between two steps a deadline may pass, and what leaves because of it may let others in.
        self.after_task_step(task)

    def after_task_step(self, task: Task) -> None:
        # Trio only logs what an instrument raises, so the first error is kept.
        try:
            if self.error is None:
                self._check()
        except Exception as error:
            self.error = error


@contextmanager
def at_every_step(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before and after every step of every task; raise its first error at the end.

    To be entered in a running Trio loop. `check` must be synchronous and start nothing.
    """
    watch = _EveryStep(check)
    trio.lowlevel.add_instrument(watch)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(watch)
        if watch.error is not None:
            raise watch.error
