"""Permits and holds: the weight goes back once, with whoever is last."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import contextlib
import gc
import warnings
from collections import deque
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from kvlanes.admission import AdmissionGate, CapacityExhausted, Hold, Permit, PermitEnded
from kvlanes.engine.testing import assert_idle, checked_gate


async def test_the_weight_returns_with_the_last_hold_in_any_order() -> None:
    for last in range(3):
        gate = AdmissionGate(4)
        permit = gate.admit_nowait(3)
        holds: list[Permit | Hold] = [permit, permit.hold(), permit.hold()]
        for hold in holds[:last] + holds[last + 1 :]:
            hold.close()
            assert gate.free == 1
        holds[last].close()
        assert gate.free == 4
        assert_idle(gate)


async def test_ending_twice_returns_the_weight_once() -> None:
    gate = AdmissionGate(2)
    with gate.admit_nowait() as permit:
        hold = permit.hold()
        with hold:
            hold.close()
        hold.close()
        assert gate.free == 1
    permit.close()
    assert gate.free == 2
    assert_idle(gate)


async def test_a_late_close_is_no_op_after_the_weight_went_to_another() -> None:
    gate = AdmissionGate(1)
    first = gate.admit_nowait()
    first.close()
    with gate.admit_nowait():
        first.close()
        assert gate.free == 0
    assert_idle(gate)


async def test_a_permit_that_ended_can_be_neither_held_nor_entered() -> None:
    gate = AdmissionGate(2)
    permit = gate.admit_nowait(2, request_id="r1")
    permit.close()
    with pytest.raises(PermitEnded, match=r"permit of request r1 \(weight 2\) has ended"):
        permit.hold()
    with pytest.raises(PermitEnded), permit:
        pass
    with pytest.raises(PermitEnded):
        await permit.run_blocking(int)
    assert_idle(gate)


async def test_another_hold_may_be_taken_while_any_lives() -> None:
    gate = AdmissionGate(1)
    permit = gate.admit_nowait()
    with permit.hold():
        permit.close()
        with permit.hold(), pytest.raises(PermitEnded), permit:
            pass
    assert_idle(gate)


async def test_an_error_in_the_body_passes_through() -> None:
    gate = AdmissionGate(1)
    with pytest.raises(KeyError), gate.admit_nowait() as permit, permit.hold():
        raise KeyError
    assert_idle(gate)


async def test_names_and_weights_can_be_read() -> None:
    gate = AdmissionGate(4)
    with gate.admit_nowait(3, request_id="r") as permit, permit.hold() as hold:
        assert (permit.weight, permit.request_id, hold.request_id) == (3, "r", "r")
        assert repr(permit) == "<permit of request r (weight 3)>"
        assert repr(hold) == "<hold of request r (weight 3)>"


@pytest.mark.parametrize("lost", ["permit", "hold"])
async def test_the_collector_warns_and_never_releases(lost: str) -> None:
    gate = AdmissionGate(4)
    permit = gate.admit_nowait(3, request_id="r7")
    hold = permit.hold()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if lost == "permit":
            hold.close()
            del permit
        else:
            permit.close()
            del hold
        gc.collect()
    (warning,) = caught
    assert warning.category is ResourceWarning
    assert "request r7 (weight 3)" in str(warning.message)
    assert gate.free == 1


async def test_handles_that_were_closed_are_collected_in_silence() -> None:
    gate = AdmissionGate(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gate.admit_nowait() as permit, permit.hold():
            pass
        del permit
        gc.collect()


@pytest.mark.parametrize("error", [None, OSError])
async def test_p01_hang_ups_at_every_chunk_leave_nothing_behind(
    error: type[OSError] | None,
) -> None:
    gate = AdmissionGate(16)
    chunks = 100

    async def stream(hold: Hold, leaves_after: int, scope: trio.CancelScope) -> None:
        with hold:
            for chunk in range(chunks):
                if chunk == leaves_after:
                    scope.cancel()
                    if error is not None:
                        raise error
                await trio.lowlevel.checkpoint()

    for leaves_after in range(chunks):
        hung_up = trio.CancelScope()
        with contextlib.suppress(OSError), hung_up, gate.admit_nowait() as permit:
            await stream(permit.hold(), leaves_after, hung_up)
        assert hung_up.cancelled_caught == (error is None)
        assert_idle(gate)


async def test_p12_the_permit_follows_the_stream_and_not_the_handler() -> None:
    async with checked_gate(AdmissionGate(1)) as gate:

        def handler() -> Hold:
            with gate.admit_nowait() as permit:
                return permit.hold()

        stream = handler()
        with pytest.raises(CapacityExhausted):
            gate.admit_nowait()
        stream.close()
        with gate.admit_nowait():
            stream.close()
            assert gate.free == 0


@pytest.mark.parametrize(("awaits", "finished"), [(3, True), (9, False)])
async def test_p33_clean_up_that_waits_is_bounded_and_the_release_needs_none(
    autojump_clock: MockClock, awaits: int, finished: bool
) -> None:
    gate, start, steps = AdmissionGate(1), trio.current_time(), 0
    with trio.CancelScope() as scope, gate.admit_nowait():
        try:
            scope.cancel()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, relative_deadline=2):
                for _ in range(awaits):
                    await trio.sleep(0.5)
                    steps += 1
    assert (steps == awaits) == finished
    assert trio.current_time() <= start + 2
    assert_idle(gate)


def test_a_host_that_runs_trio_as_a_guest_may_call_without_a_task() -> None:
    """Admission, hold and release need a running loop in this thread, never a current task."""
    gate = AdmissionGate(2, queue_limit=1)
    ended: list[object] = []
    served: list[int] = []
    queue: deque[Callable[[], object]] = deque()

    async def main() -> None:
        with await gate.admit(2):  # waits for what the host holds
            served.append(gate.free)

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=queue.append,
        done_callback=ended.append,
        host_uses_signal_set_wakeup_fd=False,
    )
    with pytest.raises(RuntimeError, match="must be called from async context"):
        trio.lowlevel.current_task()
    permit = gate.admit_nowait()
    while not ended:
        if queue:
            queue.popleft()()
        if not ended and gate.statistics().waiting:
            with permit.hold():
                permit.close()
                assert gate.statistics().waiting == 1
    assert served == [0]
    assert gate.free == 2
