"""Branches of one request: the first error wins, and the holding lasts until the last has ended."""
# flake8: noqa: ASYNC112 - the nursery makes the group

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from kvlanes.admission import AdmissionGate
from kvlanes.engine.testing import WorkGate, assert_idle
from kvlanes.nursery import Completed, DeadlineExpired, Ending, Failed, dispatch, run_branches

Branch = Callable[[], Awaitable[int]]


def branch(value: int, seconds: float) -> Branch:
    async def run() -> int:
        await trio.sleep(seconds)
        if value < 0:
            raise ValueError(f"branch {value}")
        return value

    return run


async def test_results_are_paired_by_ordinal(autojump_clock: MockClock) -> None:
    branches = [branch(number, 5 - number) for number in range(5)]
    assert await run_branches(branches) == [0, 1, 2, 3, 4]
    assert await run_branches([]) == []


async def test_at_most_so_many_run_at_once_and_start_in_order(autojump_clock: MockClock) -> None:
    running, most, started = 0, 0, list[int]()

    def counted(number: int) -> Branch:
        async def run() -> int:
            nonlocal running, most
            started.append(number)
            running += 1
            most = max(most, running)
            await trio.sleep(1 + number / 10)
            running -= 1
            return number

        return run

    assert await run_branches([counted(n) for n in range(9)], at_once=3) == list(range(9))
    assert most == 3
    assert sorted(started[:3]) == [0, 1, 2]
    assert started[3:] == sorted(started[3:])


async def test_the_first_error_cancels_the_others_and_comes_bare(
    autojump_clock: MockClock,
) -> None:
    sibling, start = WorkGate[int](), trio.current_time()
    branches: list[Branch] = [branch(1, 0.5), sibling, branch(-3, 3), branch(-2, 2)]
    with pytest.raises(ValueError, match="branch -2"):
        await run_branches(branches)
    assert trio.current_time() == start + 2
    assert sibling.cancellations == 1


async def test_what_did_not_start_never_starts(autojump_clock: MockClock) -> None:
    late = WorkGate[int]()
    branches: list[Branch] = [branch(-1, 1), late]
    with pytest.raises(ValueError, match="branch -1"):
        await run_branches(branches, at_once=1)
    assert not late.entered.is_set()


async def test_a_second_error_is_only_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def breaks_when_cancelled() -> int:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("the prompt was: secret")

    with pytest.raises(ValueError, match="branch -1"):
        await run_branches([breaks_when_cancelled, branch(-1, 1)])
    assert [record.getMessage() for record in caplog.records] == [
        "branch 0 failed too, with OSError"
    ]


async def test_an_error_in_a_group_with_a_cancellation_is_an_error(
    autojump_clock: MockClock,
) -> None:
    async def nested() -> int:
        async with trio.open_nursery() as inner:
            inner.start_soon(branch(-1, 1))
        return 0

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="branch -1")):
        await run_branches([nested, branch(1, 9)])


async def test_an_error_beside_its_own_cancellation_is_a_second_error(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def breaks() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError

    async def nested() -> int:
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            inner.start_soon(breaks)
        return 0

    with pytest.raises(ValueError, match="branch -1"):
        await run_branches([nested, branch(-1, 1)])
    assert "branch 0 failed too, with ExceptionGroup" in caplog.text


async def test_what_is_no_error_goes_on_without_the_error_beside_it() -> None:
    async def leaves() -> int:
        raise BaseExceptionGroup("g", [SystemExit(3), OSError()])

    with pytest.RaisesGroup(SystemExit, flatten_subgroups=True):
        await run_branches([leaves])


async def test_a_cancelled_caller_cancels_all(autojump_clock: MockClock) -> None:
    gates = [WorkGate[int]() for _ in range(6)]
    with trio.move_on_after(1) as scope:
        await run_branches(gates)
    assert scope.cancelled_caught
    assert [gate.cancellations for gate in gates] == [1, 1, 1, 1, 0, 0]


async def test_at_once_is_checked() -> None:
    with pytest.raises(ValueError, match="at_once must be >= 1, got 0"):
        await run_branches([], at_once=0)


async def test_one_holding_lasts_until_the_last_branch_has_ended(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    gate, stubborn = AdmissionGate(3), WorkGate[int](stubborn=True)
    ending, start = Ending(), trio.current_time()

    async def work() -> list[int]:
        return await run_branches([stubborn, branch(-1, 1)], ending=ending)

    with gate.admit_nowait(3) as permit:
        ended = await dispatch(
            work,
            nursery=nursery,
            holding=permit.hold(),
            deadline=start + 60,
            endings=(ending,),
        )
    assert isinstance(ended, Failed)
    assert str(ended.error) == "branch -1"
    assert trio.current_time() == start + 2  # the error, then the grace
    assert gate.free == 0
    stubborn.open(1)
    await gate.wait_idle()
    assert_idle(gate)


async def test_branches_within_one_dispatch(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    gate, start = AdmissionGate(4), trio.current_time()
    branches = [branch(number, 1) for number in range(4)]
    for deadline, expected in (
        (start + 5, Completed([0, 1, 2, 3])),
        (start + 1.5, DeadlineExpired(drained=True)),
    ):
        with gate.admit_nowait(4) as permit:
            ended = await dispatch(
                run_branches,
                branches,
                nursery=nursery,
                holding=permit.hold(),
                deadline=deadline,
            )
        assert ended == expected
        assert_idle(gate)
