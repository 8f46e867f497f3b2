"""A request from its arrival to its end: admission, deadlines, ids, and use after the end."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import contextlib
import math
from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.engine import (
    AdmissionGate,
    CapacityExhausted,
    DeadlinePassed,
    Engine,
    EngineClosed,
    GroupExhausted,
    PermitEnded,
    Request,
    RequestEnded,
    RequestExists,
    RequestTooLarge,
    ReservationEnded,
    WaitsForItself,
    current_request_id,
    open_engine,
)
from kvlanes.engine.testing import ThreadGate, assert_engine_idle
from tests.engine.scenes import ABC, answer, config, conversation, load, running


async def test_a_request_holds_its_weight_until_it_is_left() -> None:
    async with running(*ABC, permits=4) as engine:
        async with engine.request(weight=3) as request:
            assert (engine.gate.free, request.permit.weight) == (1, 3)
            assert engine.statistics().open_requests == 1
        assert engine.gate.free == 4


async def test_requests_of_one_family_never_wait_for_each_other() -> None:
    """P54: what would wait until its deadline for itself is told so at once."""
    async with (
        running(*ABC, permits=4, admission_queue=4) as engine,
        engine.request(weight=2, family="job"),
        engine.request(),
    ):
        with pytest.raises(CapacityExhausted):  # it could wait for the other request only
            async with engine.request(weight=2, family="job"):
                raise AssertionError("admitted")
        with pytest.raises(WaitsForItself), engine.request_nowait(weight=3, family="job"):
            raise AssertionError("admitted")


async def test_nowait_refuses_where_request_waits() -> None:
    async with (
        running(*ABC, permits=1, admission_queue=1) as engine,
        trio.open_nursery() as nursery,
    ):
        admitted = trio.Event()

        async def waiter() -> None:
            async with engine.request():
                admitted.set()

        with engine.request_nowait():
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
            assert not admitted.is_set()
            assert engine.statistics().open_requests == 2
            with pytest.raises(CapacityExhausted), engine.request_nowait():
                pass
        await admitted.wait()


@pytest.mark.parametrize(("weight", "error"), [(5, RequestTooLarge), (3, CapacityExhausted)])
async def test_a_refused_request_leaves_nothing(weight: int, error: type[Exception]) -> None:
    async with running(*ABC, permits=4) as engine:
        with engine.request_nowait(weight=2):
            with pytest.raises(error):
                async with engine.request(weight=weight):
                    pass
            assert engine.statistics().open_requests == 1


async def test_a_group_cannot_take_everything() -> None:
    async with running(*ABC, permits=4, group_limit=2) as engine:
        with engine.request_nowait(weight=2, group="tenant"):
            with pytest.raises(GroupExhausted), engine.request_nowait(group="tenant"):
                pass
            with engine.request_nowait(group="other"):
                assert engine.gate.free == 1


async def test_a_past_deadline_is_refused_before_anything_else() -> None:
    async with running(*ABC, permits=1) as engine, engine.request():
        now = trio.current_time()
        for past in (
            engine.request(seconds=0),
            engine.request(seconds=-1),
            engine.request(deadline=now),
        ):
            with pytest.raises(DeadlinePassed) as refused:
                async with past:
                    pass
            assert refused.value.phase == "admission"


async def test_nowait_refuses_a_past_deadline_too() -> None:
    async with running(*ABC) as engine:
        with pytest.raises(DeadlinePassed), engine.request_nowait(seconds=0):
            pass
        assert engine.gate.free == engine.gate.total


async def test_deadline_and_seconds_exclude_each_other_and_must_be_numbers() -> None:
    async with running(*ABC) as engine:
        with pytest.raises(ValueError, match=r"seconds \(1\) and deadline \(9\)"):
            async with engine.request(seconds=1, deadline=9):
                pass
        with pytest.raises(ValueError, match="NaN"), engine.request_nowait(seconds=math.nan):
            pass


async def test_waiting_for_permits_ends_at_the_deadline(autojump_clock: MockClock) -> None:
    async with running(*ABC, permits=1, admission_queue=4) as engine, engine.request():
        with pytest.raises(DeadlinePassed):
            async with engine.request(seconds=3):
                pass
        assert trio.current_time() == pytest.approx(3)


async def test_an_id_names_one_open_request() -> None:
    """P30: public ids stay strict; the id is free again when its request has been left."""
    async with running(*ABC) as engine:
        async with engine.request(request_id="mine"):
            with pytest.raises(RequestExists, match="'mine' is open already"):
                async with engine.request(request_id="mine"):
                    pass
        async with engine.request(request_id="mine"), engine.request() as made:
            assert made.request_id == "r1"


async def test_made_ids_avoid_those_that_callers_gave() -> None:
    async with running(*ABC) as engine, engine.request(request_id="r1"), engine.request() as made:
        assert made.request_id == "r2"


async def test_engines_that_share_a_gate_never_make_the_same_id() -> None:
    """One id is one request to a gate, so equal ids would count as waiting for themselves."""
    gate = AdmissionGate(2, queue_limit=2)
    async with (
        running(gate=gate) as one,
        running(gate=gate) as other,
        one.request() as first,
        other.request() as second,
    ):
        assert first.request_id != second.request_id
        with pytest.raises(CapacityExhausted), one.request_nowait():
            pass


async def test_the_id_is_the_context_of_all_that_runs_for_the_request() -> None:
    async with running(*ABC) as engine, engine.request(request_id="q") as request:

        async def work() -> str | None:
            return current_request_id.get()

        assert current_request_id.get() == "q"
        assert await request.preflight(current_request_id.get) == "q"
        assert (await request.route(conversation(1)).dispatch(work)).unwrap() == "q"
    assert current_request_id.get() is None


async def test_what_was_left_is_refused_by_name() -> None:
    async with running(*ABC) as engine:
        async with engine.request() as request:
            reservation = request.route(conversation(1))
        with pytest.raises(RequestEnded, match="'r1' has ended"):
            request.route(conversation(1))
        with pytest.raises(RequestEnded, match="'r1' has ended"):
            await request.preflight(len, "")
        with pytest.raises(ReservationEnded, match="was closed"):
            await reservation.dispatch(answer, reservation.route)


async def test_a_reservation_whose_permit_was_closed_stays_whole() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        reservation = request.route(conversation(1))
        request.permit.close()
        with pytest.raises(PermitEnded):
            await reservation.dispatch(answer, reservation.route)
        assert engine.statistics().dispatched == 0
        assert load(engine, reservation.route.worker) == 1


async def test_leaving_a_request_closes_every_reservation_of_it() -> None:
    async with running(*ABC) as engine:
        async with engine.request() as request:
            for number in range(5):
                request.route(conversation(number))
            assert sum(load(engine, worker) for worker in "abc") == 5
        assert sum(load(engine, worker) for worker in "abc") == 0


async def test_an_abandoned_preflight_keeps_the_permit_until_its_thread_ends() -> None:
    scope, left = trio.CancelScope(), trio.Event()
    thread = ThreadGate[int]()
    async with running(*ABC, permits=1) as engine, trio.open_nursery() as nursery:

        async def abandoned() -> None:
            with scope:
                async with engine.request() as request:
                    await request.preflight(thread)
            left.set()

        nursery.start_soon(abandoned)
        await thread.entered.wait()
        scope.cancel()
        await left.wait()
        assert engine.gate.free == 0
        with pytest.raises(CapacityExhausted), engine.request_nowait():
            pass
        thread.open(1)
        await engine.gate.wait_idle()
        assert engine.gate.free == 1


async def stream(engine: Engine, started: list[Request]) -> AsyncGenerator[str, None]:
    """A streaming response: it holds a request and a reservation across its yields."""
    async with engine.request(weight=2) as request:
        reservation = request.route(conversation(1))
        started.append(request)
        for word in "abcdefgh":
            yield word
            reservation.grow(1)


@pytest.mark.parametrize("chunks", range(9))
async def test_a_stream_that_is_dropped_at_any_chunk_leaves_no_load(chunks: int) -> None:
    """P01: 16 clients hang up mid-stream; load and permits are free at once, each time."""
    async with running(*ABC, permits=32) as engine:
        for _ in range(16):
            words = stream(engine, [])
            async with contextlib.aclosing(words):
                for _ in range(chunks):
                    await anext(words)
            assert (engine.gate.free, sum(load(engine, worker) for worker in "abc")) == (32, 0)
        async with engine.request(weight=32):
            pass


async def test_load_and_permit_last_until_the_stream_is_closed(autojump_clock: MockClock) -> None:
    """P12: not until the handler returns; closing twice gives back once."""
    async with running(*ABC, permits=2, admission_queue=1) as engine:
        words = stream(engine, [])
        await anext(words)
        await trio.sleep(10)
        with pytest.raises(CapacityExhausted), engine.request_nowait():
            pass
        await words.aclose()
        await words.aclose()
        with engine.request_nowait(weight=2):
            assert engine.gate.free == 0
        assert engine.gate.free == 2


async def test_a_stream_may_be_closed_by_another_task() -> None:
    """Its context is not the one that opened the request; nothing is lost for that."""
    async with running(*ABC, permits=2) as engine:
        words = stream(engine, [])

        async def first() -> None:
            await anext(words)
            assert current_request_id.get() == "r1"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
        await words.aclose()
        assert engine.gate.free == 2
        assert current_request_id.get() is None


async def test_requests_end_in_any_order_under_one_gate() -> None:
    async with running(*ABC, permits=8) as engine:
        stack = contextlib.ExitStack()
        requests = [stack.enter_context(engine.request_nowait()) for _ in range(8)]
        for request in requests[::2]:
            request.close()
        assert engine.gate.free == 4
        stack.close()


async def test_a_waiter_at_a_shared_gate_is_refused_when_its_engine_has_closed() -> None:
    gate = AdmissionGate(1, queue_limit=1)
    refused: list[Exception] = []
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            open_engine(config(close_seconds=0, grace_seconds=0), gate=gate)
        )
        blocker = gate.admit_nowait()

        async def waiter() -> None:
            try:
                async with engine.request():
                    raise AssertionError("admitted by a closed engine")
            except EngineClosed as error:
                refused.append(error)

        nursery.start_soon(waiter)
        await wait_all_tasks_blocked()
        await stack.aclose()
        blocker.close()
        await wait_all_tasks_blocked()
        assert len(refused) == 1
        assert gate.free == 1
    assert_engine_idle(engine)
