"""Ctrl-C at a chosen line of a step: it is delivered after the step, which stays whole."""

import inspect
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kvlanes.nursery import CapacityLease, LaneSet
from kvlanes.nursery._queue import LaneQueue
from tests.nursery.scenes import A, checked_lanes, confirmed, depth, prompt


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    tracing = sys.gettrace()
    yield
    sys.settrace(tracing)
    signal.signal(signal.SIGINT, before)


def interrupt_at(code: CodeType, text: str) -> None:
    """Raise SIGINT, once, just before the line of `code` that contains `text`."""
    lines, first = inspect.getsourcelines(code)
    (number,) = [first + n for n, line in enumerate(lines) if text in line]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return trace if event == "call" else None
        if event == "line" and frame.f_lineno == number:
            sys.settrace(None)
            frame.f_trace = None
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)


async def a_post(lanes: LaneSet) -> None:
    interrupt_at(LaneQueue._accept.__code__, "self.depth += 1")
    lanes.post(confirmed(A, 1))


async def a_wake(lanes: LaneSet) -> None:
    interrupt_at(LaneQueue.wake.__code__, "self._consumer = None")
    lanes.post(confirmed(A, 1))


async def a_release(lanes: LaneSet) -> None:
    incarnation = lanes.attach(A)
    lanes.set_capacity(incarnation, 1)
    first = lanes.occupy(incarnation, prompt(1))
    interrupt_at(CapacityLease.close.__code__, "self._post(")
    try:
        first.close()
    finally:
        lanes.occupy(incarnation, prompt(1, 3)).close()  # stays only where the first made room


STEPS: list[Callable[[LaneSet], Awaitable[None]]] = [a_post, a_wake, a_release]


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_step_is_whole(step: Callable[[LaneSet], Awaitable[None]]) -> None:
    goes_on: list[bool] = []

    async def main() -> None:
        async with checked_lanes(lanes=1, in_place=False) as lanes:
            await wait_all_tasks_blocked()
            try:
                await step(lanes)
                await trio.sleep_forever()
            finally:
                lanes.post(confirmed(A, 2))
                with trio.CancelScope(shield=True, relative_deadline=5.0):
                    await lanes.flush()
                    assert lanes.statistics().lanes[0].depth == 0
                    room = lanes.overlap(prompt(1, 3)).of(A) == int(step is a_release)
                    goes_on.append(room and depth(lanes) == 2)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert goes_on == [True]
