"""Blocking calls under a permit. Real threads stand behind gates; lengths of calls are virtual."""

import ast
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.admission import AdmissionGate, CapacityExhausted, Permit, WaitsForItself
from kvlanes.admission._threads import ThreadLimiter
from kvlanes.engine.testing import ThreadGate, assert_idle
from tests.admission.scenes import logged, virtual

TESTS = Path(__file__).parent.parent


async def test_the_result_and_the_error_of_a_thread_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    gate = AdmissionGate(2)
    with gate.admit_nowait(2) as permit:
        assert await permit.run_blocking(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await permit.run_blocking(divmod, 7, 0)
        assert gate.statistics().requests[0].doing == ("admitted",)
    assert_idle(gate)
    assert logged(caplog) == []  # both were taken


async def test_an_asynchronous_function_is_refused() -> None:
    gate = AdmissionGate(1)

    async def wrong() -> None:
        """Never run."""

    with gate.admit_nowait() as permit, pytest.raises(TypeError, match="returned a coroutine"):
        await permit.run_blocking(wrong)  # type: ignore[unused-coroutine]
    assert_idle(gate)


async def test_a_thread_abandoned_by_its_caller_keeps_the_weight_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    gate = AdmissionGate(4)
    blocking = ThreadGate[str]()
    with trio.CancelScope() as scope, gate.admit_nowait(3, request_id="r1") as permit:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(permit.run_blocking, blocking)
            await blocking.entered.wait()
            assert gate.statistics().requests[0].doing == ("admitted", "preflight")
            scope.cancel()
    assert (gate.free, gate.statistics().threads) == (1, 1)
    assert gate.statistics().requests[0].doing == ("preflight",)
    blocking.open("late")
    await gate.wait_idle()
    assert_idle(gate)
    text = "blocking call of request r1 ended with a result after its caller had left"
    assert logged(caplog) == [(logging.INFO, text)]


async def test_the_error_of_an_abandoned_thread_is_logged_by_kind_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = AdmissionGate(4)
    blocking = ThreadGate[str]()
    with trio.CancelScope() as scope, gate.admit_nowait(request_id="r2") as permit:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(permit.run_blocking, blocking)
            await blocking.entered.wait()
            scope.cancel()
    blocking.fail(ValueError("the prompt was: secret"))
    await gate.wait_idle()
    ((level, text),) = logged(caplog)
    assert level == logging.WARNING
    assert "request r2 ended with ValueError" in text
    assert "secret" not in caplog.text


async def test_cancelled_on_entry_the_function_never_runs() -> None:
    gate = AdmissionGate(1)
    ran: list[int] = []
    with gate.admit_nowait() as permit:
        with trio.CancelScope() as scope:
            scope.cancel()
            await permit.run_blocking(ran.append, 1)
        assert scope.cancelled_caught
        assert gate.statistics().requests[0].doing == ("admitted",)
    assert ran == []
    assert_idle(gate)


async def test_cancelled_while_it_waits_for_a_thread() -> None:
    gate = AdmissionGate(2, preflight_slots=1)
    blocking = ThreadGate[None]()
    ran: list[int] = []
    with gate.admit_nowait() as first, gate.admit_nowait() as second:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run_blocking, blocking)
            await blocking.entered.wait()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(second.run_blocking, ran.append, 1)
                    await wait_all_tasks_blocked()
                    assert gate.statistics().waiting_for_thread == 1
                    scope.cancel()
            assert gate.statistics().waiting_for_thread == 0
            assert gate.statistics().requests[1].doing == ("admitted",)
            blocking.open(None)
    assert ran == []
    assert_idle(gate)


async def test_a_thread_that_cannot_start_gives_everything_back(
    autojump_clock: MockClock,
) -> None:
    async with virtual(None, 1.0) as gate:
        with gate.admit_nowait(4) as permit:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await permit.run_blocking(int)
            assert gate.statistics().threads == 0
            assert await permit.run_blocking(int) == 0


async def test_a_release_that_finds_its_caller_gone_does_not_raise() -> None:
    """Trio swallows what a limiter's release raises, or lets it replace the result."""
    raised: list[Exception] = []

    async def watching(call: Callable[[], None], limiter: ThreadLimiter) -> None:
        await limiter.acquire_on_behalf_of("thread")
        call()
        try:
            limiter.release_on_behalf_of("thread")
        except Exception as error:
            raised.append(error)

    gate = AdmissionGate(1, runner=watching)
    with gate.admit_nowait() as permit:
        assert await permit.run_blocking(int) == 0
    assert raised == []
    assert_idle(gate)


async def test_busy_slots_are_counted_until_their_threads_have_ended(
    autojump_clock: MockClock,
) -> None:
    """A server refuses what would wait for a thread, without a look at every permit."""

    async def run() -> None:
        with gate.admit_nowait() as permit:
            await permit.run_blocking(int)

    async with virtual(5.0, 1.0, 1.0, slots=2) as gate:
        assert (gate.busy_preflight_slots, gate.preflight_slots) == (0, 2)
        with trio.move_on_after(0.5):
            await run()
        assert gate.busy_preflight_slots == 1  # its caller has left
        async with trio.open_nursery() as callers:
            callers.start_soon(run)
            callers.start_soon(run)
            await wait_all_tasks_blocked()
            assert gate.busy_preflight_slots == gate.preflight_slots  # and one call waits
        assert gate.busy_preflight_slots == 1
        await gate.wait_idle()
        assert gate.busy_preflight_slots == 0


async def test_p54_one_slot_and_one_permit_serve_fifty_requests_in_turn(
    autojump_clock: MockClock,
) -> None:
    async with virtual(*itertools.repeat(1.0, 50), total=1, slots=1, queue_limit=50) as gate:
        done: list[int] = []

        async def request(number: int) -> None:
            with await gate.admit() as permit:
                await permit.run_blocking(done.append, number)

        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(request, number)
        assert sorted(done) == list(range(50))


async def test_p54_a_call_back_from_the_thread_is_refused_by_name(mock_clock: MockClock) -> None:
    """It would wait for the permit of the very request that it works for."""
    gate = AdmissionGate(1, queue_limit=4, preflight_slots=1)

    def calls_back(family: object | None) -> None:
        async def ask_again() -> None:
            await gate.admit(family=family)

        with pytest.raises(WaitsForItself, match="asked 1 while this request holds 1 of at most 1"):
            trio.from_thread.run(ask_again)

    for outer in ("r1", None):
        for inner in ("r1", "another", None):
            with gate.admit_nowait(family=outer) as permit:
                await permit.run_blocking(calls_back, inner)
    assert_idle(gate)


async def test_p54_a_call_back_never_waits_even_where_it_could_be_served(
    mock_clock: MockClock,
) -> None:
    gate = AdmissionGate(2, queue_limit=4)

    def calls_back() -> None:
        async def ask_again() -> None:
            await gate.admit()

        with pytest.raises(CapacityExhausted):
            trio.from_thread.run(ask_again)

    with gate.admit_nowait(), gate.admit_nowait() as permit:
        await permit.run_blocking(calls_back)
    assert_idle(gate)


@pytest.mark.parametrize("slots", [1, 2])
async def test_p54_a_call_back_never_waits_for_a_thread(mock_clock: MockClock, slots: int) -> None:
    """Each would hold the slot that the other one waits for."""
    gate = AdmissionGate(2, preflight_slots=slots)
    inside, goes_on = trio.Event(), ThreadGate[int]()

    def calls_back(permit: Permit) -> int:
        async def ask_again() -> int:
            return await permit.run_blocking(int)

        trio.from_thread.run_sync(inside.set)
        return trio.from_thread.run(ask_again)

    with gate.admit_nowait() as permit, gate.admit_nowait() as other:
        async with trio.open_nursery() as nursery:
            if slots == 2:
                nursery.start_soon(other.run_blocking, goes_on)
                await goes_on.entered.wait()
            with pytest.raises(WaitsForItself, match=f"holds 1 of at most {slots} preflight slots"):
                await permit.run_blocking(calls_back, permit)
            goes_on.open(0)
        assert inside.is_set()
        assert gate.busy_preflight_slots == 0
    with gate.admit_nowait() as permit:  # a slot that is free may be taken
        if slots == 2:
            assert await permit.run_blocking(calls_back, permit) == 0
    assert_idle(gate)


async def test_the_caller_is_known_only_while_its_call_runs() -> None:
    """Afterwards the same task may ask for another request, which is refused as any other."""
    gate = AdmissionGate(1, queue_limit=4)
    with gate.admit_nowait() as permit:
        await permit.run_blocking(int)
        with pytest.raises(CapacityExhausted):
            gate.admit_nowait(family="another")
    assert_idle(gate)


async def test_p56_cancelling_after_the_thread_has_finished_costs_no_thread(
    autojump_clock: MockClock,
) -> None:
    lengths: Iterator[float] = itertools.repeat(1.0)
    async with virtual(*itertools.islice(lengths, 101), slots=1) as gate:
        for _ in range(100):
            with trio.move_on_after(1.1), gate.admit_nowait() as permit:
                await permit.run_blocking(int)
                await trio.sleep(5)
            assert gate.statistics().threads == 0
        with gate.admit_nowait() as permit:
            before = trio.current_time()
            await permit.run_blocking(int)
            assert trio.current_time() == before + 1


async def test_a_cancelled_thread_may_leave_early(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gate = AdmissionGate(1)
    entered = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def polls() -> None:
        token.run_sync_soon(entered.set)
        while True:
            trio.from_thread.check_cancelled()

    with trio.CancelScope() as scope, gate.admit_nowait() as permit:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(permit.run_blocking, polls)
            await entered.wait()
            scope.cancel()
    await gate.wait_idle()
    assert_idle(gate)
    text = "blocking call of request None ended with Cancelled after its caller had left"
    assert logged(caplog) == [(logging.INFO, text)]


def test_p75_no_test_combines_the_jumping_clock_with_a_thread() -> None:
    """The clock cannot see threads: a deadline of 300 s passes while one works for 1 ms."""
    threads = {"ThreadGate", "to_thread", "from_thread"}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
                arguments = {argument.arg for argument in node.args.args}
                jumps = "autojump_clock" in arguments or "autojump_threshold" in names
                assert not (jumps and names & threads), f"{path}: {node.name}"
