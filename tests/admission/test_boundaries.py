"""The very moment of a deadline is too late, for asking as for ending."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from kvlanes.admission import AdmissionGate, DeadlinePassed
from kvlanes.admission._threads import ThreadLimiter
from kvlanes.engine.testing import assert_idle


@pytest.mark.parametrize("queue_limit", [0, 1])
async def test_who_asks_at_the_deadline_is_refused_although_all_is_free(
    mock_clock: MockClock, queue_limit: int
) -> None:
    gate = AdmissionGate(1, queue_limit=queue_limit)
    deadline = trio.current_time() + 1.0
    mock_clock.jump(0.5)
    with await gate.admit(deadline=deadline):
        pass
    mock_clock.jump(0.5)
    with pytest.raises(DeadlinePassed) as passed:
        await gate.admit(deadline=deadline)
    assert passed.value.phase == "admission"
    assert_idle(gate)


@pytest.mark.parametrize(("seconds", "in_time"), [(0.5, True), (1.0, False)])
async def test_a_call_that_ends_at_the_deadline_is_late_although_nothing_cancelled_it(
    mock_clock: MockClock, seconds: float, in_time: bool
) -> None:
    """Its caller goes on in the same step: the time of the end decides, not a cancellation."""

    async def takes_time(call: Callable[[], None], limiter: ThreadLimiter) -> None:
        await trio.lowlevel.checkpoint()
        await limiter.acquire_on_behalf_of("thread")
        call()
        mock_clock.jump(seconds)
        limiter.release_on_behalf_of("thread")

    gate = AdmissionGate(1, runner=takes_time)
    with gate.admit_nowait() as permit:
        deadline = trio.current_time() + 1.0
        if in_time:
            assert await permit.run_blocking(lambda: 7, deadline=deadline) == 7
        else:
            with pytest.raises(DeadlinePassed) as passed:
                await permit.run_blocking(lambda: 7, deadline=deadline)
            assert passed.value.phase == "preflight"
    assert_idle(gate)
