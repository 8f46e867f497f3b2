"""Dispatch: who gets which outcome, and when; who holds what meanwhile."""
# flake8: noqa: ASYNC124, ASYNC910 - work that comes to no checkpoint

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.admission import AdmissionGate
from kvlanes.engine.testing import WorkGate, assert_idle
from kvlanes.nursery import Completed, DeadlineExpired, DispatchExpired, Failed, dispatch
from tests.nursery.dispatched import LATE_RESULT, Ledger, answer, fail, logged

pytestmark = pytest.mark.usefixtures("nothing_is_logged_unheard")


async def test_a_result_before_the_deadline(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    held = Ledger()
    ended = await dispatch(
        answer, "yes", 1, nursery=nursery, holding=held, deadline=trio.current_time() + 1.5
    )
    assert ended == Completed("yes")
    assert ended.unwrap() == "yes"
    assert held.steps == ["enter", "exit"]


async def test_an_error_before_the_deadline(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    held, error = Ledger(), ValueError("no")
    ended = await dispatch(fail, error, 1, nursery=nursery, holding=held, deadline=float("inf"))
    assert ended == Failed(error)
    with pytest.raises(ValueError, match="no"):
        ended.unwrap()
    assert held.steps == ["enter", "exit"]


async def test_p57_at_the_deadline_the_work_is_cancelled_once(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    held, work, start = Ledger(), WorkGate[None](), trio.current_time()
    ended = await dispatch(work, nursery=nursery, holding=held, deadline=start + 1)
    assert ended == DeadlineExpired(drained=True)
    assert trio.current_time() == start + 1
    assert work.cancellations == 1
    assert held.steps == ["enter", "exit"]
    with pytest.raises(DispatchExpired, match="deadline; it has ended") as expired:
        ended.unwrap()
    assert expired.value.drained
    assert isinstance(expired.value, TimeoutError)


async def test_p17_stubborn_work_does_not_hold_its_caller_beyond_the_grace(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    gate, work, start = AdmissionGate(3), WorkGate[int](stubborn=True), trio.current_time()
    with gate.admit_nowait(request_id="r") as permit:
        ended = await dispatch(
            work,
            nursery=nursery,
            holding=permit.hold(deadline=start + 1),
            deadline=start + 1,
            grace_seconds=0.25,
            request_id="r",
        )
    assert ended == DeadlineExpired(drained=False)
    assert trio.current_time() == start + 1.25
    with pytest.raises(DispatchExpired, match="it still runs"):
        ended.unwrap()
    text = "work of request r runs on 0.25 s after its cancellation; it keeps its holds"
    assert logged(caplog) == [(logging.WARNING, text)]
    caplog.clear()
    await trio.sleep_until(start + 1.5)
    assert gate.free == 2
    assert gate.statistics().requests[0].doing == ("overrun",)
    work.open(7)
    await gate.wait_idle()
    assert_idle(gate)
    assert logged(caplog) == [(logging.INFO, LATE_RESULT)]
    caplog.clear()


async def test_an_overrun_is_one_warning_and_no_metric(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics show who overruns while it does; nothing counts it up."""
    gate, work = AdmissionGate(1), WorkGate[None](stubborn=True)
    before = gate.statistics()
    with gate.admit_nowait() as permit:
        at = trio.current_time() + 1
        held = permit.hold(deadline=at)
        await dispatch(work, nursery=nursery, holding=held, deadline=at, request_id="r")
    work.fail(OSError())
    await gate.wait_idle()
    levels = [level for level, text in logged(caplog) if "runs on" in text]
    assert levels == [logging.WARNING]
    caplog.clear()
    assert gate.statistics() == before


async def test_work_that_finished_in_time_counts_however_late_its_caller_wakes(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    deadline = trio.current_time() + 1

    async def finish_then_stall() -> str:
        await trio.lowlevel.checkpoint()
        nursery.start_soon(stall)
        return "in time"

    async def stall() -> None:
        mock_clock.jump(5)

    ended = await dispatch(finish_then_stall, nursery=nursery, holding=Ledger(), deadline=deadline)
    assert ended == Completed("in time")


async def test_work_that_finished_at_the_deadline_is_too_late(
    nursery: trio.Nursery, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    deadline = trio.current_time() + 1

    async def stall() -> str:
        mock_clock.jump(1)
        return "late"

    ended = await dispatch(
        stall, nursery=nursery, holding=Ledger(), deadline=deadline, request_id="r"
    )
    assert ended == DeadlineExpired(drained=True)
    assert logged(caplog) == [(logging.INFO, LATE_RESULT)]
    caplog.clear()


async def test_a_late_error_is_logged_once_by_kind(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("the prompt was: secret")

    ended = await dispatch(
        breaks_when_cancelled,
        nursery=nursery,
        holding=Ledger(),
        deadline=trio.current_time() + 1,
        request_id="r",
    )
    assert ended == DeadlineExpired(drained=True)
    text = "work of request r ended with OSError that nobody was left to take"
    assert logged(caplog) == [(logging.WARNING, text)]
    caplog.clear()


async def test_the_grace_counts_from_the_moment_of_noticing(
    nursery: trio.Nursery, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that was busy at the deadline must not take the grace away from the work."""
    start, returned = trio.current_time(), trio.Event()

    async def cleans_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, deadline=start + 100.75):
                await trio.sleep_until(start + 100.5)

    async def caller() -> None:
        ended = await dispatch(
            cleans_up, nursery=nursery, holding=Ledger(), deadline=start + 1, grace_seconds=1
        )
        assert ended == DeadlineExpired(drained=True)
        returned.set()

    nursery.start_soon(caller)
    await wait_all_tasks_blocked()
    mock_clock.jump(100)
    await wait_all_tasks_blocked()
    assert not returned.is_set()
    mock_clock.jump(0.5)
    await wait_all_tasks_blocked()
    assert returned.is_set()


async def test_a_cancelled_caller_drains_and_then_is_cancelled(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    held, drained = Ledger(), trio.Event()

    async def cleans_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, relative_deadline=5):
                await trio.sleep(0.5)
            drained.set()

    start = trio.current_time()
    with trio.move_on_after(2) as scope:
        await dispatch(cleans_up, nursery=nursery, holding=held, deadline=start + 9)
    assert scope.cancelled_caught
    assert drained.is_set()
    assert trio.current_time() == start + 2.5
    assert held.steps == ["enter", "exit"]


async def test_a_cancelled_caller_leaves_stubborn_work_after_the_grace(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    held, work, start = Ledger(), WorkGate[int](stubborn=True), trio.current_time()
    with trio.move_on_after(2) as scope:
        await dispatch(work, nursery=nursery, holding=held, deadline=start + 9, request_id="r")
    assert scope.cancelled_caught
    assert trio.current_time() == start + 3
    assert held.steps == ["enter"]
    work.open(1)
    await work.ended.wait()
    await wait_all_tasks_blocked()
    assert held.steps == ["enter", "exit"]
    assert [level for level, _ in logged(caplog)] == [logging.WARNING, logging.INFO]
    caplog.clear()


async def test_a_result_that_meets_a_cancelled_caller_is_logged(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    work = WorkGate[int](stubborn=True)
    with trio.CancelScope() as scope:
        nursery.start_soon(_open_soon, work, scope)
        await dispatch(
            work, nursery=nursery, holding=Ledger(), deadline=float("inf"), request_id="r"
        )
    assert scope.cancelled_caught
    assert logged(caplog) == [(logging.INFO, LATE_RESULT)]
    caplog.clear()


async def _open_soon(work: WorkGate[int], caller: trio.CancelScope) -> None:
    await work.entered.wait()
    caller.cancel()
    await trio.sleep(0.5)
    work.open(1)


async def test_a_past_deadline_starts_no_work_and_gives_the_hold_back(
    nursery: trio.Nursery,
) -> None:
    held, work = Ledger(), WorkGate[None]()
    with trio.testing.assert_checkpoints():
        ended = await dispatch(work, nursery=nursery, holding=held, deadline=trio.current_time())
    assert ended == DeadlineExpired(drained=True)
    assert held.steps == ["enter", "exit"]
    await wait_all_tasks_blocked()
    assert not work.entered.is_set()


async def test_a_caller_cancelled_before_the_call_still_gives_the_hold_back(
    nursery: trio.Nursery,
) -> None:
    gate, work = AdmissionGate(1), WorkGate[None]()
    with trio.CancelScope() as scope, gate.admit_nowait() as permit:
        scope.cancel()
        await dispatch(work, nursery=nursery, holding=permit.hold(), deadline=float("inf"))
    assert scope.cancelled_caught
    assert_idle(gate)


async def test_p81_a_shielded_drain_does_not_spin(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted in steps of the loop, which needs no real time: a spin would be thousands."""
    work, steps = WorkGate[int](stubborn=True), 0

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal steps
            steps += 1

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            inner.start_soon(_dispatch_stubborn, nursery, work)
            await work.entered.wait()
            counter = Steps()
            trio.lowlevel.add_instrument(counter)
            scope.cancel()
    trio.lowlevel.remove_instrument(counter)
    assert steps < 20
    work.open(1)
    await wait_all_tasks_blocked()
    assert [level for level, _ in logged(caplog)] == [logging.WARNING, logging.INFO]
    caplog.clear()


async def _dispatch_stubborn(owner: trio.Nursery, work: WorkGate[int]) -> None:
    await dispatch(work, nursery=owner, holding=Ledger(), deadline=float("inf"), grace_seconds=0.2)
