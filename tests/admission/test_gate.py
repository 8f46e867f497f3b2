"""Admission without waiting: all or none, refusals with numbers, totals, groups."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import math

import pytest
import trio
from trio.testing import MockClock

from kvlanes.admission import (
    AdmissionError,
    AdmissionGate,
    AdmissionRefused,
    CapacityExhausted,
    DeadlinePassed,
    GateClosed,
    GroupExhausted,
    RequestTooLarge,
    WaitsForItself,
)
from kvlanes.engine.testing import assert_idle


async def test_weight_is_taken_as_a_whole_or_not_at_all() -> None:
    gate = AdmissionGate(4)
    with gate.admit_nowait(3):
        with pytest.raises(CapacityExhausted, match="asked 2, free 1 of 4, 0 waiting") as refusal:
            gate.admit_nowait(2)
        assert gate.free == 1
        with gate.admit_nowait(1):
            assert gate.free == 0
    assert refusal.value.retryable
    assert refusal.value.retry_after_seconds == 1.0
    assert (refusal.value.asked, refusal.value.free, refusal.value.total) == (2, 1, 4)
    assert_idle(gate)


async def test_never_fits_is_told_apart_from_not_now() -> None:
    gate = AdmissionGate(4)
    with pytest.raises(RequestTooLarge, match="asked 5, but at most 4") as refusal:
        gate.admit_nowait(5)
    assert not refusal.value.retryable
    assert refusal.value.retry_after_seconds is None
    assert isinstance(refusal.value, ValueError)


async def test_too_large_is_judged_against_the_highest_total_ever_set() -> None:
    gate = AdmissionGate(4)
    gate.set_total(8)
    gate.set_total(2)
    with pytest.raises(CapacityExhausted, match="asked 8, free 2 of 2"):
        gate.admit_nowait(8)
    with pytest.raises(RequestTooLarge, match="asked 9, but at most 8"):
        gate.admit_nowait(9)


async def test_a_total_of_zero_pauses() -> None:
    gate = AdmissionGate(2)
    gate.set_total(0)
    with pytest.raises(CapacityExhausted, match="asked 1, free 0 of 0"):
        gate.admit_nowait()
    gate.set_total(2)
    gate.admit_nowait().close()
    assert_idle(gate)


async def test_shrinking_under_load_takes_nothing_away_and_admits_nobody() -> None:
    gate = AdmissionGate(4)
    first, second = gate.admit_nowait(2), gate.admit_nowait(2)
    gate.set_total(3)
    assert gate.free == -1
    with pytest.raises(CapacityExhausted, match="free -1 of 3"):
        gate.admit_nowait()
    first.close()
    assert gate.free == 1
    with gate.admit_nowait():
        pass
    second.close()
    assert (gate.free, gate.total) == (3, 3)
    assert_idle(gate)


async def test_waiting_is_off_unless_asked_for() -> None:
    gate = AdmissionGate(1)
    with await gate.admit(), pytest.raises(CapacityExhausted):
        await gate.admit(deadline=trio.current_time() + 10)
    assert_idle(gate)


async def test_a_past_deadline_is_refused_before_anything_else() -> None:
    gate = AdmissionGate(1)
    gate.close()
    for deadline in (trio.current_time(), -math.inf):
        with pytest.raises(DeadlinePassed) as refusal:
            await gate.admit(99, deadline=deadline)
        assert refusal.value.phase == "admission"
    assert isinstance(refusal.value, TimeoutError)


async def test_a_deadline_that_is_no_number_is_refused_by_name() -> None:
    gate = AdmissionGate(1)
    with pytest.raises(ValueError, match="a deadline must be a number, got nan"):
        await gate.admit(deadline=math.nan)
    with gate.admit_nowait() as permit:
        with pytest.raises(ValueError, match="a deadline must be a number, got nan"):
            permit.hold(deadline=math.nan)
        with pytest.raises(ValueError, match="a deadline must be a number, got nan"):
            await permit.run_blocking(print, deadline=math.nan)
    assert_idle(gate)


async def test_admit_is_always_a_checkpoint() -> None:
    gate = AdmissionGate(1)
    with trio.testing.assert_checkpoints():
        permit = await gate.admit()
    permit.close()
    with trio.testing.assert_no_checkpoints():
        gate.admit_nowait().close()


async def test_admit_by_a_cancelled_caller_takes_nothing() -> None:
    gate = AdmissionGate(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await gate.admit()
    assert scope.cancelled_caught
    assert_idle(gate)


async def test_a_group_has_a_limit_of_its_own() -> None:
    gate = AdmissionGate(8, group_limit=3)
    with gate.admit_nowait(2, group="a"):
        with pytest.raises(GroupExhausted, match="group 'a' asked 2, has taken 2 of its 3") as no:
            gate.admit_nowait(2, group="a")
        assert no.value.retryable
        assert no.value.retry_after_seconds == 1.0
        assert (no.value.asked, no.value.taken, no.value.limit) == (2, 2, 3)
        with gate.admit_nowait(2, group="b"), gate.admit_nowait(3), gate.admit_nowait(group="a"):
            assert gate.free == 0
    with pytest.raises(RequestTooLarge, match="at most 3 can ever be held by group 'a'"):
        gate.admit_nowait(4, group="a")
    assert_idle(gate)


async def test_a_group_that_is_no_name_is_refused_before_anything_is_counted() -> None:
    gate = AdmissionGate(2, group_limit=2)
    with pytest.raises(TypeError, match="a group is a string, got \\['a'\\]"):
        gate.admit_nowait(group=["a"])  # type: ignore[arg-type]
    assert_idle(gate)


async def test_a_group_cannot_fill_the_queue_either(nursery: trio.Nursery) -> None:
    gate = AdmissionGate(2, queue_limit=10, group_limit=2)
    blocker = gate.admit_nowait(2)

    async def wait() -> None:
        (await gate.admit(2, group="a")).close()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(GroupExhausted, match="has taken 2 of its 2"):
        await gate.admit(1, group="a")
    blocker.close()
    await trio.testing.wait_all_tasks_blocked()
    assert_idle(gate)


async def test_asking_again_beyond_what_can_ever_be_free_names_the_request_as_the_cause() -> None:
    gate = AdmissionGate(4, queue_limit=4)
    family = object()
    with gate.admit_nowait(3, family=family):
        with pytest.raises(WaitsForItself, match="asked 2 while this request holds 3") as refusal:
            await gate.admit(2, family=family)
        assert (refusal.value.asked, refusal.value.held, refusal.value.limit) == (2, 3, 4)
        assert not refusal.value.retryable
        with gate.admit_nowait(1, family=family):
            assert gate.free == 0
            with pytest.raises(WaitsForItself, match="asked 1 while this request holds 4"):
                gate.admit_nowait(1, family=family)
    assert_idle(gate)


async def test_a_request_that_holds_never_waits() -> None:
    """Two requests that hold half each and wait for the other half would never end."""
    gate = AdmissionGate(2, queue_limit=4)
    families = object(), object()
    with gate.admit_nowait(family=families[0]), gate.admit_nowait(family=families[1]):
        for family in families:
            with pytest.raises(CapacityExhausted, match="asked 1, free 0 of 2"):
                await gate.admit(family=family)
    assert_idle(gate)


async def test_an_id_that_two_requests_share_joins_nothing(nursery: trio.Nursery) -> None:
    """Clients choose ids: the second tenant waits for the first as under any other id."""
    gate = AdmissionGate(4, queue_limit=1)
    first = gate.admit_nowait(3, group="tenant-1", request_id="req-1")
    served = trio.Event()

    async def second() -> None:
        with await gate.admit(3, group="tenant-2", request_id="req-1"):
            served.set()

    nursery.start_soon(second)
    await trio.testing.wait_all_tasks_blocked()
    assert gate.statistics().waiting == 1
    first.close()
    await served.wait()
    assert_idle(gate)


async def test_a_family_without_live_permits_may_wait(autojump_clock: MockClock) -> None:
    gate = AdmissionGate(1, queue_limit=1)
    gate.admit_nowait(family="r").close()
    with gate.admit_nowait(), pytest.raises(DeadlinePassed):
        await gate.admit(deadline=trio.current_time() + 1, family="r")
    assert_idle(gate)


async def test_a_family_must_be_hashable() -> None:
    gate = AdmissionGate(1)
    with pytest.raises(TypeError, match="unhashable"):
        gate.admit_nowait(family=[])
    assert_idle(gate)


async def test_close_admits_nobody_and_leaves_permits_good() -> None:
    gate = AdmissionGate(2)
    permit = gate.admit_nowait()
    gate.close()
    gate.close()
    with pytest.raises(GateClosed) as refusal:
        gate.admit_nowait()
    with pytest.raises(GateClosed):
        await gate.admit()
    assert isinstance(refusal.value, trio.ClosedResourceError)
    assert not refusal.value.retryable
    with permit, permit.hold():
        assert gate.free == 1
    assert_idle(gate)


async def test_wait_idle_returns_when_the_last_hold_ends(autojump_clock: MockClock) -> None:
    gate = AdmissionGate(2)
    with trio.testing.assert_checkpoints():
        await gate.wait_idle()
    permit = gate.admit_nowait()
    hold = permit.hold()
    permit.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait_idle)
        await trio.sleep(5)
        assert nursery.child_tasks
        hold.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_wait_idle_goes_on_waiting_for_one_who_came_in_between(
    autojump_clock: MockClock,
) -> None:
    gate = AdmissionGate(1)
    permit = gate.admit_nowait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait_idle)
        await trio.testing.wait_all_tasks_blocked()
        permit.close()
        permit = gate.admit_nowait()  # before the waiter has run
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        permit.close()


@pytest.mark.parametrize("total", [0, -1, True, 2.5, "4"])
def test_a_total_must_be_a_positive_integer(total: object) -> None:
    with pytest.raises((TypeError, ValueError), match="total must be"):
        AdmissionGate(total)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"queue_limit": -1},
        {"overtake": -1},
        {"preflight_slots": 0},
        {"group_limit": 0},
        {"retry_after_seconds": -1.0},
        {"retry_after_seconds": math.inf},
    ],
)
def test_limits_are_checked_at_construction(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name):
        AdmissionGate(1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0, -3, True, 1.0, None])
async def test_a_weight_must_be_a_positive_integer(weight: object) -> None:
    gate = AdmissionGate(4)
    with pytest.raises((TypeError, ValueError), match="weight must be"):
        gate.admit_nowait(weight)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="weight must be"):
        await gate.admit(weight)  # type: ignore[arg-type]
    assert_idle(gate)


async def test_a_negative_total_changes_nothing() -> None:
    gate = AdmissionGate(4)
    with pytest.raises(ValueError, match="total must be >= 0, got -1"):
        gate.set_total(-1)
    assert gate.total == 4


def test_every_error_has_the_base_of_the_folder() -> None:
    for error in (CapacityExhausted, GateClosed, GroupExhausted, RequestTooLarge, WaitsForItself):
        assert issubclass(error, AdmissionRefused)
    assert issubclass(AdmissionRefused, AdmissionError)
    assert issubclass(DeadlinePassed, AdmissionError)
    for error in (CapacityExhausted, GroupExhausted):
        assert issubclass(error, trio.WouldBlock)


async def test_statistics_say_who_holds_what_since_when_doing_what(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    gate = AdmissionGate(4, queue_limit=2, group_limit=4)
    start = trio.current_time()
    permit = gate.admit_nowait(3, group="t", request_id="a")
    mock_clock.jump(1)
    hold = permit.hold(deadline=start + 5)

    async def wait() -> None:
        (await gate.admit(2, request_id="b")).close()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    now = gate.statistics()
    assert (now.total, now.held, now.free, now.waiting) == (4, 3, 1, 1)
    first, second = now.requests
    assert (first.request_id, first.group, first.weight, first.since) == ("a", "t", 3, start)
    assert first.doing == ("admitted", "dispatched")
    assert (second.request_id, second.since, second.doing) == ("b", start + 1, ("waiting",))
    permit.close()
    mock_clock.jump(4)
    assert gate.statistics().requests[0].doing == ("overrun",)
    hold.close()
    await trio.testing.wait_all_tasks_blocked()
    assert_idle(gate)


@pytest.mark.parametrize("counter", ["_held", "_charges.groups", "_charges.families", "_grants"])
async def test_check_notices_a_counter_that_is_off(counter: str) -> None:
    gate = AdmissionGate(4)
    with gate.admit_nowait(2, group="a"):
        gate.check()
        owner = gate._charges if "." in counter else gate
        name = counter.rpartition(".")[2]
        true = getattr(owner, name)
        setattr(owner, name, 3 if counter == "_held" else {})
        with pytest.raises(AssertionError):
            gate.check()
        setattr(owner, name, true)
    assert_idle(gate)
