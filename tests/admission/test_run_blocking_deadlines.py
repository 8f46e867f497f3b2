"""Blocking calls and their deadlines: which end counts, and who is refused instead of waiting."""

import logging
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from kvlanes.admission import AdmissionGate, DeadlinePassed
from kvlanes.admission._threads import ThreadLimiter
from kvlanes.engine.testing import ThreadGate, assert_idle
from tests.admission.scenes import logged, virtual


async def test_p17_at_the_deadline_the_caller_leaves_at_once_and_the_thread_keeps_its_hold(
    autojump_clock: MockClock,
) -> None:
    async with virtual(1.0, total=2) as gate:
        start = trio.current_time()
        await trio.sleep(0.5)
        with gate.admit_nowait() as permit, pytest.raises(DeadlinePassed) as passed:
            await permit.run_blocking(int, deadline=start + 1)
        assert passed.value.phase == "preflight"
        assert trio.current_time() == start + 1
        assert gate.free == 1
        assert gate.statistics().requests[0].doing == ("overrun",)
        await trio.sleep_until(start + 1.499)
        assert gate.free == 1
        await trio.sleep_until(start + 1.501)
        assert gate.free == 2


async def test_waiting_for_a_thread_counts_within_the_deadline(
    autojump_clock: MockClock,
) -> None:
    async with virtual(5.0, slots=1) as gate:
        with gate.admit_nowait() as first, gate.admit_nowait() as second:
            with trio.move_on_after(0.5):
                await first.run_blocking(int)  # its thread goes on
            start = trio.current_time()
            with pytest.raises(DeadlinePassed, match="during preflight queue") as passed:
                await second.run_blocking(int, deadline=start + 2)
            assert passed.value.phase == "preflight queue"
            assert gate.statistics().requests[1].doing == ("admitted",)
            assert trio.current_time() == start + 2


async def test_a_past_deadline_starts_no_thread() -> None:
    gate = AdmissionGate(1)
    ran: list[int] = []
    with gate.admit_nowait() as permit:
        with pytest.raises(DeadlinePassed, match="preflight queue"):
            await permit.run_blocking(ran.append, 1, deadline=trio.current_time())
        assert gate.statistics().requests[0].doing == ("admitted",)
    assert ran == []
    assert_idle(gate)


async def test_a_thread_that_ends_between_the_cancellation_and_its_caller_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def ends_first(call: Callable[[], None], limiter: ThreadLimiter) -> None:
        await limiter.acquire_on_behalf_of("thread")
        call()
        limiter.release_on_behalf_of("thread")
        await trio.sleep_forever()

    gate = AdmissionGate(1, runner=ends_first)
    with trio.move_on_after(1), gate.admit_nowait(request_id="r4") as permit:
        await permit.run_blocking(int)
    text = "blocking call of request r4 ended with a result after its caller had left"
    assert logged(caplog) == [(logging.INFO, text)]
    assert_idle(gate)


async def test_a_result_counts_by_when_the_thread_ended(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Both are ready in one tick: an end at the deadline is too late, whoever wakes first."""
    caplog.set_level(logging.INFO)
    gate = AdmissionGate(1)
    blocking = ThreadGate[int]()
    deadline = trio.current_time() + 1

    def leave() -> int:
        value = blocking()
        mock_clock.jump(1)  # the loop learns of the end at the deadline
        return value

    async def let_go() -> None:
        await blocking.entered.wait()
        blocking.open(7)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_go)
        with gate.admit_nowait(request_id="r3") as permit, pytest.raises(DeadlinePassed):
            await permit.run_blocking(leave, deadline=deadline)
    await gate.wait_idle()
    assert [text for _, text in logged(caplog)] == [
        "blocking call of request r3 ended with a result after its caller had left"
    ]


async def test_an_end_before_the_deadline_counts_although_the_caller_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with virtual(1.0) as gate:
        with gate.admit_nowait() as permit:
            assert await permit.run_blocking(lambda: 7, deadline=trio.current_time() + 1.001) == 7
