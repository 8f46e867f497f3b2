"""Waiting: the order of service, overtaking, and waiters that leave."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import contextlib
import random

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.admission import (
    AdmissionGate,
    CapacityExhausted,
    DeadlinePassed,
    GateClosed,
    Permit,
    QueueFull,
)
from kvlanes.engine.testing import assert_idle, checked_gate
from tests.admission.scenes import Waiters
from tests.support.schedule import scheduled


async def test_waiters_are_served_in_their_order(nursery: trio.Nursery) -> None:
    async with checked_gate(AdmissionGate(2, queue_limit=8)) as gate:
        line = Waiters(gate, nursery)
        for name, weight in (("a", 2), ("b", 1), ("c", 2), ("d", 1)):
            await line.ask(name, weight)
        assert line.names == ["a"]
        await line.release("a")
        assert line.names == ["b"]  # c needs 2 and d stands behind it
        await line.release("b")
        assert line.names == ["c"]
        await line.release("c")
        assert line.names == ["d"]
        await line.release("d")


async def test_p02_a_cancelled_waiter_leaves_at_once_and_blocks_nobody(
    nursery: trio.Nursery,
) -> None:
    async with checked_gate(AdmissionGate(1, queue_limit=3)) as gate:
        line = Waiters(gate, nursery)
        for name in "abcd":
            await line.ask(name)
        with pytest.raises(QueueFull, match="3 requests wait, the queue limit is 3") as refusal:
            await gate.admit()
        assert (refusal.value.waiting, refusal.value.limit) == (3, 3)
        assert refusal.value.retry_after_seconds == 1.0
        line.scopes["b"].cancel()
        assert gate.statistics().waiting == 2  # before any task has run
        line.scopes["c"].cancel()
        assert gate.statistics().waiting == 1
        await line.ask("e")
        await line.release("a")
        assert line.names == ["d"]
        await line.release("d")
        assert line.names == ["e"]
        await line.release("e")


@pytest.mark.parametrize("first", ["release", "cancel"])
async def test_p48_released_and_cancelled_in_one_tick_goes_to_a_live_waiter(
    nursery: trio.Nursery, first: str
) -> None:
    async with checked_gate(AdmissionGate(1, queue_limit=3)) as gate:
        line = Waiters(gate, nursery)
        for name in "xab":
            await line.ask(name)
        if first == "release":
            line.granted.pop("x").close()
            line.scopes["a"].cancel()
            expected = "a"  # handed over already: the late cancellation is ignored
        else:
            line.scopes["a"].cancel()
            line.granted.pop("x").close()
            expected = "b"
        await wait_all_tasks_blocked()
        assert line.names == [expected]
        while line.granted:
            await line.release(line.names[0])


async def test_p48_a_deadline_in_the_tick_of_the_release(autojump_clock: MockClock) -> None:
    for seed in range(20):
        with scheduled(seed):
            await _release_at_the_deadline()


async def _release_at_the_deadline() -> None:
    async with (
        checked_gate(AdmissionGate(1, queue_limit=3)) as gate,
        trio.open_nursery() as nursery,
    ):
        line = Waiters(gate, nursery)
        await line.ask("x")
        at = trio.current_time() + 1

        async def wait() -> None:
            with contextlib.suppress(DeadlinePassed):
                (await gate.admit(deadline=at)).close()

        async def release() -> None:
            await trio.sleep_until(at)
            line.granted.pop("x").close()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        nursery.start_soon(release)
        await line.ask("b")
        await trio.sleep(2)
        assert line.names == ["b"]
        await line.release("b")


async def test_p49_nobody_slips_in_between_hand_over_and_resumption(
    nursery: trio.Nursery,
) -> None:
    async with checked_gate(AdmissionGate(1, queue_limit=3)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("x")
        await line.ask("w")
        line.granted.pop("x").close()
        assert gate.free == 0  # booked at the hand-over, before w has run
        with pytest.raises(CapacityExhausted, match="asked 1, free 0 of 1, 0 waiting"):
            gate.admit_nowait()
        await wait_all_tasks_blocked()
        assert line.names == ["w"]
        await line.release("w")


async def test_with_waiters_admit_nowait_refuses_what_would_fit(nursery: trio.Nursery) -> None:
    async with checked_gate(AdmissionGate(2, queue_limit=3)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("x")
        await line.ask("big", 2)
        with pytest.raises(CapacityExhausted, match="asked 1, free 1 of 2, 1 waiting"):
            gate.admit_nowait()
        await line.release("x")
        await line.release("big")


async def test_p16_without_a_queue_the_reason_is_capacity_and_not_size() -> None:
    gate = AdmissionGate(8)
    with gate.admit_nowait(6), pytest.raises(CapacityExhausted):
        await gate.admit(6)


async def test_p08_release_cancel_and_admit_in_one_tick(nursery: trio.Nursery) -> None:
    rng = random.Random(8)
    async with checked_gate(AdmissionGate(2, queue_limit=4)) as gate:
        for _ in range(1000):
            await _one_tick_of_everything(gate, nursery, rng)


async def _one_tick_of_everything(
    gate: AdmissionGate, nursery: trio.Nursery, rng: random.Random
) -> None:
    line = Waiters(gate, nursery)
    for name in "xyw":
        await line.ask(name)
    fresh: list[Permit] = []

    def admit() -> None:
        with contextlib.suppress(CapacityExhausted):
            fresh.append(gate.admit_nowait())

    steps = [line.granted.pop("x").close, line.scopes["w"].cancel, admit]
    rng.shuffle(steps)
    for step in steps:
        step()
    await wait_all_tasks_blocked()
    assert gate.free + len(fresh) + len(line.granted) == 2
    for permit in (*fresh, *line.granted.values()):
        permit.close()
    gate.admit_nowait(2).close()


async def test_p60_a_waiter_under_a_tiny_deadline_never_loses_what_it_was_handed(
    autojump_clock: MockClock,
) -> None:
    async with checked_gate(AdmissionGate(1, queue_limit=2)) as gate:
        served = 0

        async def turn_over() -> None:
            for _ in range(100):
                with await gate.admit():
                    await trio.sleep(0.003)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn_over)
            while served < 100:
                with trio.move_on_after(0.001):
                    with await gate.admit():
                        served += 1
                await trio.lowlevel.checkpoint()


async def test_deadline_of_a_waiter(autojump_clock: MockClock) -> None:
    async with checked_gate(AdmissionGate(1, queue_limit=2)) as gate:
        start = trio.current_time()
        with gate.admit_nowait(), pytest.raises(DeadlinePassed, match="during admission"):
            await gate.admit(deadline=start + 3)
        assert trio.current_time() == start + 3


async def test_a_paused_gate_serves_when_it_goes_on(nursery: trio.Nursery) -> None:
    async with checked_gate(AdmissionGate(2, queue_limit=4)) as gate:
        gate.set_total(0)
        line = Waiters(gate, nursery)
        await line.ask("a")
        await line.ask("b")
        await line.ask("c")
        assert line.names == []
        gate.set_total(2)
        await wait_all_tasks_blocked()
        assert line.names == ["a", "b"]
        await line.release("a")
        await line.release("b")
        await line.release("c")


async def test_closing_sends_the_waiters_away(nursery: trio.Nursery) -> None:
    gate = AdmissionGate(1, queue_limit=4, group_limit=1)
    refused: list[str] = []

    async def wait(group: str) -> None:
        with pytest.raises(GateClosed):
            await gate.admit(group=group)
        refused.append(group)

    with gate.admit_nowait():
        nursery.start_soon(wait, "a")
        nursery.start_soon(wait, "b")
        await wait_all_tasks_blocked()
        before = gate.closed
        gate.close()
        assert (before, gate.closed) == (False, True)
        assert gate.statistics().waiting == 0
        await wait_all_tasks_blocked()
        assert sorted(refused) == ["a", "b"]
    assert_idle(gate)


async def test_one_request_cannot_wait_twice(nursery: trio.Nursery) -> None:
    """Its second part would stand behind, or in front of, what only its first part can free."""
    async with checked_gate(AdmissionGate(2, queue_limit=4)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("x", 2)
        await line.ask("w")
        with pytest.raises(CapacityExhausted):
            await gate.admit(family="w")
        await line.release("x")
        await line.release("w")
