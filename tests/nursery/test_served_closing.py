"""How lanes over backends that wait end: callers within the drain, backends when they do."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, Rank
from kvlanes.nursery import (
    LaneClosed,
    LaneSet,
    LaneTask,
    TaskReceiver,
)
from tests.nursery.scenes import (
    A,
    B,
    Broken,
    checked_lanes,
    confirmed,
    prompt,
)
from tests.nursery.served import (
    Backends,
    GatedBackend,
    acknowledge_then_return,
    gated,
    scripted,
)


async def test_closing_never_waits_for_an_acknowledgement(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    ends: list[str] = []

    async def call(lanes: LaneSet, length: int) -> None:
        with pytest.raises(LaneClosed) as caught:
            await lanes.apply(confirmed(A, length))
        ends.append(str(caught.value))

    async with trio.open_nursery() as calls:
        started = trio.current_time()
        options = {"lanes": 1, "queue_capacity": 1, "drain_seconds": 3.0}
        await closing_with_calls(calls, call, options)
    assert trio.current_time() - started == pytest.approx(3.0)
    assert sorted(ends) == [
        "the lanes closed before the queue had room",
        "the lanes closed before this was acknowledged",
        "the lanes closed before this was applied",
    ]


async def closing_with_calls(
    calls: trio.Nursery,
    call: Callable[[LaneSet, int], Awaitable[None]],
    options: dict[str, Any],
) -> None:
    async with checked_lanes(Backends(gated), **options) as lanes:
        for length in (1, 2, 3):
            calls.start_soon(call, lanes, length)
        await wait_all_tasks_blocked(0.01)


async def test_closing_settles_what_is_acknowledged_but_not_asked_past() -> None:
    acknowledged = trio.Event()

    async def linger(backend: GatedBackend, tasks: TaskReceiver) -> None:
        await acknowledge_then_return(backend, tasks)
        acknowledged.set()
        await trio.sleep_forever()

    ends: list[Applied] = []

    async def call(lanes: LaneSet) -> None:
        ends.append(await lanes.apply(confirmed(A, 1)))

    async with trio.open_nursery() as calls:
        await closing_after(acknowledged, scripted(linger), calls, call)
    assert ends == [Applied(applied=1)]


async def closing_after(
    event: trio.Event,
    backends: Backends,
    calls: trio.Nursery,
    call: Callable[[LaneSet], Awaitable[None]],
) -> None:
    async with checked_lanes(backends, lanes=1, drain_seconds=0) as lanes:
        calls.start_soon(call, lanes)
        await event.wait()


async def test_a_lane_that_has_ended_tells_at_once(autojump_clock: MockClock) -> None:
    """While another lane still waits for its backend."""
    backends = Backends(lambda: GatedBackend(reads_in_caller=False, gated=True))
    told: list[float] = []

    async def read_later(lanes: LaneSet) -> None:
        await trio.sleep(1.0)
        with pytest.raises(LaneClosed):
            await lanes.read(prompt(1))
        told.append(trio.current_time())

    async def owner(calls: trio.Nursery) -> None:
        async with checked_lanes(backends, lanes=2, drain_seconds=5.0) as lanes:
            lanes.attach(A)
            assert lanes.post(confirmed(B, 1))
            await wait_all_tasks_blocked()
            calls.start_soon(read_later, lanes)

    started = trio.current_time()
    async with trio.open_nursery() as calls:
        await owner(calls)
    assert told == [started + 1.0]
    assert trio.current_time() == started + 5.0


class Stubborn(GatedBackend):
    """Ignores its cancellation for 26 seconds."""

    async def do(self, task: LaneTask) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(26.0)
        await super().do(task)


async def test_callers_of_closing_lanes_do_not_wait_for_a_backend_that_ignores_cancellation(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[float] = []

    async def call(lanes: LaneSet, rank: Rank) -> None:
        with pytest.raises(LaneClosed):
            await lanes.apply(confirmed(rank, 1))
        told.append(trio.current_time())

    async def flush(lanes: LaneSet) -> None:
        with pytest.raises(LaneClosed):
            await lanes.flush()
        told.append(trio.current_time())

    async def owner(calls: trio.Nursery) -> None:
        async with checked_lanes(Backends(Stubborn), lanes=1, drain_seconds=5.0) as lanes:
            for rank in (A, B):
                calls.start_soon(call, lanes, rank)
            await wait_all_tasks_blocked()
            calls.start_soon(flush, lanes)
            await wait_all_tasks_blocked()

    started = trio.current_time()
    async with trio.open_nursery() as calls:
        await owner(calls)
    assert told == [started + 5.0] * 3
    assert trio.current_time() == started + 26.0
    assert caplog.text.count("1 lanes wait for their backend to end") == 2


@pytest.mark.parametrize("nested", [False, True])
async def test_a_backend_that_fails_while_it_is_cancelled_does_not_end_its_owner(
    nested: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Broken

    async def serve(backend: GatedBackend, tasks: TaskReceiver) -> None:
        if not nested:
            await fail_at_the_end()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_at_the_end)
            await tasks.receive()
            await trio.sleep_forever()

    async with checked_lanes(scripted(serve), lanes=1, drain_seconds=0) as lanes:
        lanes.post(confirmed(A, 1))
        await wait_all_tasks_blocked()
    assert "a backend failed while its lane" in caplog.text
    assert "Broken" in caplog.text


class Leaving(BaseException):
    """No error, like `KeyboardInterrupt`."""


async def test_what_is_no_error_leaves_the_lanes_although_an_error_comes_along(
    autojump_clock: MockClock,
) -> None:
    async def serve(backend: GatedBackend, tasks: TaskReceiver) -> None:
        raise BaseExceptionGroup("together", [Broken(), Leaving()])

    with pytest.RaisesGroup(Leaving):
        async with checked_lanes(scripted(serve), lanes=1):
            await trio.sleep(60.0)
