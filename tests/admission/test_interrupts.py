"""Ctrl-C at every line of admission and dispatch: whatever it ends, every hold comes back."""
# flake8: noqa: ASYNC910 - asynchronous in order to run in a loop

import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import kvlanes.admission
import kvlanes.nursery._dispatch
from kvlanes.admission import AdmissionGate, DeadlinePassed
from kvlanes.engine.testing import VirtualThreads, assert_idle
from kvlanes.nursery import Completed, Ending, dispatch, run_branches

ADMISSION = Path(kvlanes.admission.__file__).parent
OURS = {str(path) for path in ADMISSION.glob("*.py")} | {
    str(ADMISSION.parent / "nursery" / name) for name in ("_dispatch.py", "_branches.py")
}

Scenario = Callable[[AdmissionGate, trio.Nursery], Awaitable[None]]


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    signal.signal(signal.SIGINT, before)


class Interrupter:
    """Raises SIGINT before one line of our code is run, counted over the run.

    Attributes:
        at: Where it was raised.
    """

    def __init__(self, after: int) -> None:
        self.at: tuple[CodeType, int] | None = None
        self._left = after

    def __enter__(self) -> "Interrupter":
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, _: object) -> Any:
        return self._stepped if frame.f_code.co_filename in OURS else None

    def _stepped(self, frame: FrameType, event: str, _: object) -> Any:
        if event != "line" or self.at is not None:
            return self._stepped
        if self._left == 0:
            self.at = frame.f_code, frame.f_lineno
            signal.raise_signal(signal.SIGINT)
        self._left -= 1
        return self._stepped


def interrupted_everywhere(scenario: Scenario) -> set[str]:
    """Run a scenario until an interrupt would come too late; the functions that were met."""
    met: set[str] = set()
    for after in range(10_000):
        gates: list[AdmissionGate] = []
        with Interrupter(after) as interrupter, suppress(BaseExceptionGroup, KeyboardInterrupt):
            trio.run(_play, scenario, gates, clock=MockClock(autojump_threshold=0))
        if interrupter.at is None:
            return met
        code, line = interrupter.at
        met.add(code.co_name)
        try:
            trio.run(_assert_idle, gates)
        except AssertionError as error:
            error.add_note(f"interrupted in {code.co_qualname} before line {line}")
            raise
    raise AssertionError("the scenario has too many lines")


async def _play(scenario: Scenario, gates: list[AdmissionGate]) -> None:
    async with trio.open_nursery() as threads, trio.open_nursery() as owner:
        runner = VirtualThreads(threads, repeat(1.0))
        gates.append(AdmissionGate(3, queue_limit=2, preflight_slots=1, runner=runner))
        await scenario(gates[0], owner)


async def _assert_idle(gates: list[AdmissionGate]) -> None:
    for gate in gates:  # none when the interrupt came while it was made
        assert_idle(gate)


async def preflight(gate: AdmissionGate, owner: trio.Nursery) -> None:
    """In time, behind another's thread, and too late."""
    with await gate.admit() as permit:
        owner.start_soon(_call, gate)
        await permit.run_blocking(int)
        await permit.run_blocking(int)
        with suppress(DeadlinePassed):
            await permit.run_blocking(int, deadline=trio.current_time() + 0.5)


async def _call(gate: AdmissionGate) -> None:
    with await gate.admit() as permit:
        await permit.run_blocking(int)


async def served(gate: AdmissionGate, owner: trio.Nursery) -> None:
    """Work in time, work that expires, work that an ending ends, and branches."""
    ending = Ending()

    async def end() -> None:
        await trio.sleep(0.5)
        ending.end(OSError)

    async def branches() -> None:
        await run_branches([end, end], at_once=1)

    with gate.admit_nowait(2) as permit:
        for work in (end, trio.sleep_forever, branches):
            await dispatch(
                work,
                nursery=owner,
                holding=permit.hold(),
                deadline=trio.current_time() + 2,
                endings=(ending,) if work is end else (),
            )


async def waiting(gate: AdmissionGate, owner: trio.Nursery) -> None:
    """Behind a holder that leaves, and until the deadline."""
    owner.start_soon(_hold, gate)
    await trio.testing.wait_all_tasks_blocked()
    with await gate.admit(2):
        pass
    with gate.admit_nowait(3) as permit, permit.hold(), suppress(DeadlinePassed):
        await gate.admit(deadline=trio.current_time() + 1)


async def _hold(gate: AdmissionGate) -> None:
    with gate.admit_nowait(2):
        await trio.sleep(1)


@pytest.mark.parametrize(
    ("scenario", "functions"),
    [
        (preflight, {"run_blocking", "run", "leave", "hold", "acquire_on_behalf_of"}),
        (served, {"dispatch", "run", "_capture", "_finish", "cut_short", "some", "_interruptible"}),
        (waiting, {"admit", "_wait", "_leave", "_serve", "end", "_take_back", "__enter__"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_interrupted_at_any_line_every_hold_comes_back(
    scenario: Scenario, functions: set[str]
) -> None:
    assert interrupted_everywhere(scenario) >= functions


async def test_the_work_itself_can_be_interrupted(nursery: trio.Nursery) -> None:
    """Also where it does not come to a checkpoint: Ctrl-C must end what hangs."""

    async def work() -> bool:
        return trio.lowlevel.currently_ki_protected()

    with AdmissionGate(1).admit_nowait() as permit:
        ended = await dispatch(work, nursery=nursery, holding=permit.hold(), deadline=float("inf"))
    assert ended == Completed(False)
