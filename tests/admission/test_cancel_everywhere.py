"""Scenarios are cancelled at each of their scheduling points; then the books must balance."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest
import trio

from kvlanes.admission import AdmissionGate, DeadlinePassed, Permit
from kvlanes.engine.testing import (
    Victim,
    VirtualThreads,
    at_every_step,
    cancel_everywhere,
    checked_gate,
)
from kvlanes.nursery import dispatch, run_branches
from tests.support.schedule import scheduled

GRACE = 1.0


@contextlib.asynccontextmanager
async def scene(
    total: int, *lengths: float | None, queue_limit: int = 4
) -> AsyncIterator[tuple[AdmissionGate, trio.Nursery]]:
    """A checked gate with virtual threads, and a nursery that owns work."""
    async with trio.open_nursery() as threads, trio.open_nursery() as owner:
        runner = VirtualThreads(threads, iter(lengths))
        gate = AdmissionGate(total, queue_limit=queue_limit, preflight_slots=1, runner=runner)
        async with checked_gate(gate):
            yield gate, owner


async def admission(victim: Victim) -> None:
    """Immediate, and waiting behind a holder that leaves after a second."""
    async with scene(2) as (gate, owner):
        holder = gate.admit_nowait()

        async def leave() -> None:
            with holder:
                await trio.sleep(1)

        owner.start_soon(leave)
        with victim:
            with await gate.admit():
                await trio.sleep(0.5)
            with await gate.admit(2, deadline=trio.current_time() + 5):
                await trio.sleep(0.5)


async def preflight(victim: Victim) -> None:
    """Waiting for a slot, a thread, one that cannot start, and one that outlives its deadline."""
    async with scene(4, 1.0, 1.0, None, 3.0) as (gate, owner):
        other = gate.admit_nowait()

        async def occupy() -> None:
            with other:
                await other.run_blocking(int)

        owner.start_soon(occupy)
        with victim, await gate.admit(3) as permit:
            await permit.run_blocking(int)
            with contextlib.suppress(RuntimeError):
                await permit.run_blocking(int)
            with contextlib.suppress(DeadlinePassed):
                await permit.run_blocking(int, deadline=trio.current_time() + 1)


async def dispatching(victim: Victim) -> None:
    """Work in time, work that expires and drains, and several branches."""

    async def slow() -> None:
        try:
            await trio.sleep(9)
        finally:
            with trio.CancelScope(shield=True, relative_deadline=2):
                await trio.sleep(0.5)

    async def branches() -> None:
        await run_branches([partial(trio.sleep, 1)] * 3, at_once=2)

    async with scene(4) as (gate, owner):
        with victim, await gate.admit(4) as permit:
            for work in (slow, branches):
                await dispatch(
                    work,
                    nursery=owner,
                    holding=permit.hold(),
                    deadline=trio.current_time() + 4,
                    grace_seconds=GRACE,
                )


async def draining(victim: Victim) -> None:
    """Work that ignores its cancellation longer than the grace: the caller is never kept."""

    async def stubborn() -> None:
        with trio.CancelScope(shield=True, relative_deadline=9):
            await trio.sleep(4)

    async with scene(4) as (gate, owner):
        start = trio.current_time()
        with victim, await gate.admit(4) as permit:
            await dispatch(
                stubborn,
                nursery=owner,
                holding=permit.hold(),
                deadline=start + 2,
                grace_seconds=GRACE,
            )
        assert trio.current_time() <= start + 2 + GRACE
        if not victim.reached:
            assert gate.free == 0  # the work goes on with its hold


async def whole_request(victim: Victim) -> None:
    """Admission behind another, preflight, dispatch."""
    async with scene(2, 1.0) as (gate, owner):
        holder = gate.admit_nowait(2)

        async def leave() -> None:
            with holder:
                await trio.sleep(1)

        owner.start_soon(leave)
        with victim:
            deadline = trio.current_time() + 10
            with await gate.admit(2, deadline=deadline) as permit:
                await permit.run_blocking(int, deadline=deadline)
                await dispatch(
                    trio.sleep, 1, nursery=owner, holding=permit.hold(), deadline=deadline
                )


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("scenario", "least"),
    [(admission, 6), (preflight, 6), (dispatching, 12), (draining, 4), (whole_request, 9)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_cancel_everywhere(scenario: object, least: int) -> None:
    assert callable(scenario)
    for seed in range(5):
        with scheduled(seed):
            checkpoints = cancel_everywhere(scenario)
    print(f"{getattr(scenario, '__name__', '')}: {checkpoints} checkpoints")
    assert checkpoints >= least


def test_it_cancels_once_at_each_checkpoint_and_not_in_the_last_run() -> None:
    cancelled_after: list[int] = []

    async def scenario(victim: Victim) -> None:
        steps = 0
        with victim:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
                steps += 1
        cancelled_after.append(steps)

    # A checkpoint is cancelled where it yields, and a first one before it starts.
    assert cancel_everywhere(scenario) == 3
    assert cancelled_after == [0, 0, 1, 2, 3]


def test_it_says_where_a_scenario_broke() -> None:
    async def leaks(victim: Victim) -> None:
        async with checked_gate(AdmissionGate(1), settle_seconds=5) as gate:
            with victim:
                permit = gate.admit_nowait()
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                permit.close()
            if victim.reached:
                leaked.append(permit)

    leaked: list[Permit] = []
    with pytest.raises(AssertionError, match="held=1") as broken:
        cancel_everywhere(leaks)
    assert broken.value.__notes__ == ["cancelled at checkpoint 0"]
    (permit,) = leaked  # one run was enough
    permit.close()


def test_a_scenario_must_enter_its_victim_and_end() -> None:
    async def never(victim: Victim) -> None:
        await trio.lowlevel.checkpoint()

    async def long(victim: Victim) -> None:
        with victim:
            for _ in range(10):
                await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="never entered"):
        cancel_everywhere(never)
    with pytest.raises(AssertionError, match="more than 5 checkpoints"):
        cancel_everywhere(long, most=5)


async def test_at_every_step_raises_its_first_error_at_the_end() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) >= 2:
            raise ValueError(f"step {len(calls)}")

    watched = at_every_step(check)
    watched.__enter__()
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    with pytest.raises(ValueError, match="step 2"):
        watched.__exit__(None, None, None)
    assert len(calls) == 2
