"""What goes wrong in a dispatch is that request's own affair, and gives back what it held."""

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.admission import AdmissionGate
from kvlanes.engine.testing import WorkGate, assert_idle
from kvlanes.nursery import DeadlineExpired, Ending, Failed, WorkCancelled, dispatch
from tests.nursery.dispatched import Ledger, answer, fail, logged

pytestmark = pytest.mark.usefixtures("nothing_is_logged_unheard")


async def test_a_closed_nursery_gives_the_hold_back_and_raises() -> None:
    gate = AdmissionGate(1)
    async with trio.open_nursery() as closed:
        pass
    ending = Ending()
    with gate.admit_nowait() as permit, pytest.raises(RuntimeError, match="closed"):
        await dispatch(
            answer,
            "never",
            nursery=closed,
            holding=permit.hold(),
            deadline=float("inf"),
            endings=(ending,),
        )
    assert_idle(gate)
    ending.end(ValueError)


@pytest.mark.parametrize(
    ("deadline", "grace_seconds"),
    [(float("nan"), 1.0), (1.0, -1.0), (1.0, float("inf")), (1.0, float("nan"))],
)
async def test_bad_bounds_give_the_hold_back_and_raise(
    nursery: trio.Nursery, deadline: float, grace_seconds: float
) -> None:
    held = Ledger()
    with pytest.raises(ValueError, match=f"deadline {deadline}, grace_seconds {grace_seconds}"):
        await dispatch(
            answer,
            "never",
            nursery=nursery,
            holding=held,
            deadline=deadline,
            grace_seconds=grace_seconds,
        )
    assert held.steps == ["enter", "exit"]


async def breaks_while_cancelled() -> None:
    """Ends in a group of an error and a cancellation."""

    async def breaks() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("x")

    async with trio.open_nursery() as inner:
        inner.start_soon(trio.sleep_forever)
        inner.start_soon(breaks)


async def test_a_group_of_errors_stays_whole(nursery: trio.Nursery) -> None:
    group = ExceptionGroup("g", [OSError(), ValueError()])
    ended = await dispatch(fail, group, nursery=nursery, holding=Ledger(), deadline=float("inf"))
    assert ended == Failed(group)


async def test_an_error_beside_the_cancellation_at_the_deadline_is_a_late_error(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    neighbour = WorkGate[int]()
    nursery.start_soon(neighbour)
    ended = await dispatch(
        breaks_while_cancelled,
        nursery=nursery,
        holding=Ledger(),
        deadline=trio.current_time() + 1,
        request_id="r",
    )
    assert ended == DeadlineExpired(drained=True)
    text = "work of request r ended with ExceptionGroup that nobody was left to take"
    assert logged(caplog) == [(logging.WARNING, text)]
    caplog.clear()
    assert neighbour.cancellations == 0
    neighbour.open(1)


async def test_an_error_beside_the_cancellation_of_the_nursery_is_the_result(
    nursery: trio.Nursery,
) -> None:
    """And the cancellation goes on to the nursery it came from, which swallows it."""
    outcomes: list[object] = []
    held = Ledger()

    async def caller(owner: trio.Nursery) -> None:
        outcomes.append(
            await dispatch(
                breaks_while_cancelled, nursery=owner, holding=held, deadline=float("inf")
            )
        )

    async with trio.open_nursery() as owner:
        nursery.start_soon(caller, owner)
        await wait_all_tasks_blocked()
        owner.cancel_scope.cancel()
    await wait_all_tasks_blocked()
    (ended,) = outcomes
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, ExceptionGroup)
    assert [repr(error) for error in ended.error.exceptions] == ["KeyError('x')"]
    assert held.steps == ["enter", "exit"]


async def test_cancelling_the_nursery_without_a_reason(nursery: trio.Nursery) -> None:
    outcomes: list[object] = []

    async def caller(owner: trio.Nursery) -> None:
        outcomes.append(
            await dispatch(
                trio.sleep_forever, nursery=owner, holding=Ledger(), deadline=float("inf")
            )
        )

    async with trio.open_nursery() as owner:
        nursery.start_soon(caller, owner)
        await wait_all_tasks_blocked()
        owner.cancel_scope.cancel()
    await wait_all_tasks_blocked()
    (ended,) = outcomes
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, WorkCancelled)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_is_no_error_ends_the_nursery(grouped: bool) -> None:
    held = Ledger()
    leave: BaseException = SystemExit(3)
    if grouped:
        leave = BaseExceptionGroup("g", [leave, OSError()])

    async def main() -> None:
        async with trio.open_nursery() as owner:
            await dispatch(fail, leave, nursery=owner, holding=held, deadline=float("inf"))

    with pytest.RaisesGroup(SystemExit, flatten_subgroups=True):
        trio.run(main)
    assert held.steps == ["enter", "exit"]


@pytest.mark.parametrize("step", ["enter", "exit"])
async def test_a_holding_that_breaks_is_a_failure_of_this_request_only(
    nursery: trio.Nursery, step: str
) -> None:
    class Broken(Ledger):
        def __enter__(self) -> None:
            if step == "enter":
                raise OSError(step)

        def __exit__(self, *exc: object) -> None:
            raise OSError(step)

    ended = await dispatch(answer, "x", nursery=nursery, holding=Broken(), deadline=float("inf"))
    assert isinstance(ended, Failed)
    assert str(ended.error) == step
