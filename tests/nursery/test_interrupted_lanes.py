"""Ctrl-C between two writes of the lanes' own code: the program ends, and loses nothing."""

import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
from trio.lowlevel import currently_ki_protected
from trio.testing import wait_all_tasks_blocked

from kvlanes.nursery import LaneSet, TaskReceiver, open_bare_nursery, open_lanes
from kvlanes.nursery._crew import Crew
from kvlanes.nursery._lane import Lane
from kvlanes.nursery._queue import LaneQueue
from kvlanes.nursery._served_lane import ServedLane
from tests.nursery.scenes import A, B, Broken, checked_lanes, confirmed, depth, small_index
from tests.nursery.served import GatedBackend, scripted
from tests.nursery.test_interrupts import ctrl_c as ctrl_c
from tests.nursery.test_interrupts import interrupt_at
from tests.support.interrupts import bounded


@pytest.fixture(autouse=True)
def bound() -> Iterator[None]:
    with bounded():
        yield


opening: Any = open_lanes  # its generator is what an interrupt finds
bare: Any = open_bare_nursery
waiting: Any = trio.Event.wait  # under `Barrier.wait`; Trio leaves it unprotected

LINES = [
    (small_index, opening.__wrapped__, "try:"),
    (small_index, Crew.start, "start_soon(self._watch)"),
    (small_index, Crew.end, "self.refuse()"),
    (small_index, Lane.run, "ended()"),
    (small_index, LaneQueue.sleep, "await wait_task_rescheduled"),
    (GatedBackend, ServedLane.run, "ended()"),
    (GatedBackend, TaskReceiver.receive, "if self._task is not None"),
]


@pytest.mark.parametrize(("make_index", "function", "line"), LINES)
def test_wherever_the_lanes_are_interrupted_they_end_and_have_applied_all(
    make_index: Callable[[], Any], function: Any, line: str
) -> None:
    seen: list[LaneSet] = []

    async def main() -> None:
        interrupt_at(function.__code__, line)
        async with open_lanes(make_index, lanes=2, in_place=False) as lanes:
            seen.append(lanes)
            for rank in (A, B):
                assert lanes.post(confirmed(rank, 1))
            await wait_all_tasks_blocked()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    (lanes,) = seen
    statistics = lanes.statistics()
    assert (statistics.total("applied"), statistics.total("depth")) == (2, 0)


async def one(lanes: LaneSet) -> None:
    await lanes.apply(confirmed(A, 1))


async def more_than_has_room(lanes: LaneSet) -> None:
    await lanes.apply_many([confirmed(A, 1), confirmed(A, 2)])


async def a_barrier(lanes: LaneSet) -> None:
    lanes.post(confirmed(A, 1))
    await lanes.flush()


CALLS = [
    (one, LaneQueue.done, "await wait_task_rescheduled"),
    (more_than_has_room, LaneQueue.room, "await self.done"),  # the second is withdrawn
    (a_barrier, waiting, "await _core.wait_task_rescheduled"),
]


@pytest.mark.parametrize(("call", "function", "line"), CALLS)
def test_a_caller_that_goes_on_after_ctrl_c_is_not_woken_for_what_it_waited_for(
    call: Callable[[LaneSet], Awaitable[None]], function: Any, line: str
) -> None:
    async def set_when_blocked(event: trio.Event) -> None:
        await wait_all_tasks_blocked()
        event.set()

    async def main() -> None:
        async with checked_lanes(lanes=1, in_place=False, queue_capacity=1) as lanes:
            await wait_all_tasks_blocked()
            interrupt_at(function.__code__, line)
            with pytest.raises(KeyboardInterrupt):
                await call(lanes)
            elsewhere = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(set_when_blocked, elsewhere)
                await elsewhere.wait()
                assert elsewhere.is_set()
            assert (depth(lanes), lanes.statistics().total("applied")) == (1, 1)

    trio.run(main)


def test_the_error_that_leaves_a_bare_nursery_is_not_lost_to_ctrl_c() -> None:
    told: list[str] = []

    async def main() -> None:
        interrupt_at(bare.__wrapped__.__code__, "alone = group")
        try:
            async with open_bare_nursery():
                raise Broken
        except Broken:
            told.append("broken")
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert told == ["broken"]


def test_a_backend_that_waits_is_the_user_s_code_and_not_protected() -> None:
    protected: list[bool] = []

    async def serve(backend: GatedBackend, tasks: TaskReceiver) -> None:
        protected.append(currently_ki_protected())
        await tasks.receive()
        protected.append(currently_ki_protected())
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with open_lanes(scripted(serve), lanes=1) as lanes:
            lanes.post(confirmed(A, 1))
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert protected == [False, False]
