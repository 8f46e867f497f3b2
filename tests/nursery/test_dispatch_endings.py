"""Endings: whoever learns that work is in vain ends it before its deadline."""
# flake8: noqa: ASYNC124, ASYNC910 - work that comes to no checkpoint

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.admission import AdmissionGate
from kvlanes.engine.testing import WorkGate, assert_idle
from kvlanes.nursery import Completed, DeadlineExpired, Ending, Failed, dispatch
from tests.nursery.dispatched import LATE_RESULT, Ledger, answer, logged

pytestmark = pytest.mark.usefixtures("nothing_is_logged_unheard")


class Gone(RuntimeError):
    """What an owner says when it ends its dispatches."""


async def test_an_ending_ends_what_runs_and_refuses_what_comes(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    ending, other = Ending(), Ending()
    held = [Ledger() for _ in range(3)]
    works = [WorkGate[None]() for _ in range(3)]
    outcomes: list[object] = []

    async def caller(number: int) -> None:
        outcomes.append(
            await dispatch(
                works[number],
                nursery=nursery,
                holding=held[number],
                deadline=float("inf"),
                endings=(other, ending),
            )
        )

    nursery.start_soon(caller, 0)
    nursery.start_soon(caller, 1)
    await wait_all_tasks_blocked()
    ending.end(Gone)
    ending.end(ValueError)
    await wait_all_tasks_blocked()
    await caller(2)
    assert [type(ended.error) for ended in outcomes if isinstance(ended, Failed)] == [Gone] * 3
    assert len({id(ended.error) for ended in outcomes if isinstance(ended, Failed)}) == 3
    assert [ledger.steps for ledger in held] == [["enter", "exit"]] * 3
    assert [work.cancellations for work in works] == [1, 1, 0]
    assert not works[2].entered.is_set()
    assert (ending.ended, other.ended) == (True, False)


async def test_an_ending_drains_within_the_grace(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ending, held, work = Ending(), Ledger(), WorkGate[int](stubborn=True)

    async def end() -> None:
        await trio.sleep(2)
        ending.end(Gone)

    nursery.start_soon(end)
    start = trio.current_time()
    ended = await dispatch(
        work, nursery=nursery, holding=held, deadline=start + 9, request_id="r", endings=(ending,)
    )
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, Gone)
    assert trio.current_time() == start + 3
    work.open(1)
    await wait_all_tasks_blocked()
    assert held.steps == ["enter", "exit"]
    assert [level for level, _ in logged(caplog)] == [logging.WARNING, logging.INFO]
    caplog.clear()


async def test_work_that_finished_before_the_ending_keeps_its_outcome(
    nursery: trio.Nursery,
) -> None:
    ending = Ending()

    async def finish() -> int:
        await trio.lowlevel.checkpoint()
        nursery.start_soon(end)
        return 1

    async def end() -> None:
        ending.end(Gone)

    ended = await dispatch(
        finish, nursery=nursery, holding=Ledger(), deadline=float("inf"), endings=(ending,)
    )
    assert ended == Completed(1)


async def test_work_that_ends_its_own_ending_is_ended_by_it(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending()

    async def end_itself() -> int:
        ending.end(Gone)
        return 1

    ended = await dispatch(
        end_itself,
        nursery=nursery,
        holding=Ledger(),
        deadline=float("inf"),
        request_id="r",
        endings=(ending,),
    )
    assert isinstance(ended, Failed)
    assert logged(caplog) == [(logging.INFO, LATE_RESULT)]
    caplog.clear()


async def test_giving_back_what_finished_work_held_cannot_end_it_any_more(
    nursery: trio.Nursery,
) -> None:
    ending = Ending()

    class LastOne(Ledger):
        def __exit__(self, *exc: object) -> None:
            ending.end(Gone)

    ended = await dispatch(
        answer, "x", nursery=nursery, holding=LastOne(), deadline=float("inf"), endings=(ending,)
    )
    assert ended == Completed("x")


async def test_of_two_endings_in_one_tick_the_first_counts(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    endings, work = (Ending(), Ending()), WorkGate[None]()

    async def end() -> None:
        await trio.sleep(1)
        endings[1].end(Gone)
        endings[0].end(ValueError)

    nursery.start_soon(end)
    ended = await dispatch(
        work, nursery=nursery, holding=Ledger(), deadline=float("inf"), endings=endings
    )
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, Gone)


async def test_an_ending_after_the_deadline_changes_nothing(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ending, work, start = Ending(), WorkGate[int](stubborn=True), trio.current_time()

    async def end() -> None:
        await trio.sleep(1.5)
        ending.end(Gone)
        work.open(1)

    nursery.start_soon(end)
    ended = await dispatch(
        work, nursery=nursery, holding=Ledger(), deadline=start + 1, endings=(ending,)
    )
    assert ended == DeadlineExpired(drained=True)
    assert trio.current_time() == start + 1.5
    caplog.clear()


async def test_an_ending_forgets_what_has_finished(nursery: trio.Nursery) -> None:
    ending, made = Ending(), list[Gone]()
    for _ in range(3):
        await dispatch(
            answer, "x", nursery=nursery, holding=Ledger(), deadline=float("inf"), endings=(ending,)
        )

    def make() -> Gone:
        made.append(Gone())
        return made[-1]

    ending.end(make)
    assert made == []


async def test_of_a_deadline_and_an_ending_the_first_counts_whenever_the_caller_wakes(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    """In a loop that was late both are news at once, and the deadline is the older one."""
    start, outcomes = trio.current_time(), dict[float, object]()

    async def caller(ending: Ending, deadline: float) -> None:
        work, held = WorkGate[int](), Ledger()
        outcomes[deadline - start] = await dispatch(
            work, nursery=nursery, holding=held, deadline=deadline, endings=(ending,)
        )

    ending = Ending()
    for seconds in (1, 2, 3):
        nursery.start_soon(caller, ending, start + seconds)
    await wait_all_tasks_blocked()
    mock_clock.jump(2)
    ending.end(Gone)
    await wait_all_tasks_blocked()
    assert outcomes[1] == outcomes[2] == DeadlineExpired(drained=True)
    assert isinstance(last := outcomes[3], Failed)
    assert isinstance(last.error, Gone)


async def test_an_ending_that_cannot_make_its_errors_ends_nothing(nursery: trio.Nursery) -> None:
    ending, works, made = Ending(), [WorkGate[int]() for _ in range(3)], list[Gone]()
    outcomes: list[object] = []

    async def caller(work: WorkGate[int]) -> None:
        outcomes.append(
            await dispatch(
                work,
                nursery=nursery,
                holding=Ledger(),
                deadline=float("inf"),
                endings=(ending,),
            )
        )

    def breaks_at_the_second() -> Gone:
        if made:
            raise KeyError("made one")
        made.append(Gone())
        return made[-1]

    for work in works:
        nursery.start_soon(caller, work)
    await wait_all_tasks_blocked()
    with pytest.raises(KeyError, match="made one"):
        ending.end(breaks_at_the_second)
    await wait_all_tasks_blocked()
    assert (ending.ended, outcomes) == (False, [])
    for work in works:
        work.open(1)
    await wait_all_tasks_blocked()
    assert outcomes == [Completed(1)] * 3


async def test_a_refusal_that_cannot_be_made_gives_the_hold_back(nursery: trio.Nursery) -> None:
    gate, ending = AdmissionGate(1), Ending()

    def breaks() -> Gone:
        raise KeyError("later")

    ending.end(breaks)
    with gate.admit_nowait() as permit, pytest.raises(KeyError, match="later"):
        await dispatch(
            answer,
            "never",
            nursery=nursery,
            holding=permit.hold(),
            deadline=float("inf"),
            endings=(ending,),
        )
    assert_idle(gate)
