"""What a reservation holds, and that it comes back once, by its owner's scope alone."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import gc
import logging
import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.engine import (
    Completed,
    DeadlineExpired,
    Failed,
    NoEligibleWorker,
    Reservation,
    ReservationEnded,
    Route,
    Worker,
)
from kvlanes.engine.testing import WorkGate
from tests.engine.scenes import (
    ABC,
    answer,
    chosen,
    conversation,
    held,
    load,
    running,
    serve,
)

PROMPT = conversation(1)


async def fail(*_: object) -> None:
    raise ConnectionRefusedError("nobody listens")


async def test_success_posts_the_placement_and_frees_the_place() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        reservation = request.route(PROMPT)
        assert load(engine, "a") == 1
        assert (await reservation.dispatch(answer, reservation.route)) == Completed("a answered")
        assert load(engine, "a") == 0
        assert held(engine, PROMPT) == {"a": 4}


async def test_failure_records_no_coverage() -> None:
    """P70: neither an error, nor a deadline, nor a cancelled caller places anything."""
    async with running(*ABC) as engine:
        async with engine.request() as request:
            assert isinstance(await request.route(PROMPT).dispatch(fail), Failed)
        with trio.CancelScope() as scope:
            async with engine.request() as request, trio.open_nursery() as nursery:
                nursery.start_soon(request.route(PROMPT).dispatch, trio.sleep_forever)
                await wait_all_tasks_blocked()
                scope.cancel()
        assert held(engine, PROMPT) == {}
        assert await serve(engine, PROMPT) == "c"  # the least recently chosen of equals
        assert held(engine, PROMPT) == {"c": 4}


async def test_a_placement_lives_for_its_ttl_only(autojump_clock: MockClock) -> None:
    async with running(*ABC, ttl_seconds=30) as engine:
        await serve(engine, PROMPT)
        await trio.sleep(29.9)
        assert held(engine, PROMPT) == {"a": 4}
        await trio.sleep(0.3)
        assert held(engine, PROMPT) == {}


async def test_a_late_success_is_placed_although_nobody_waits(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """P57: the outcome is the deadline's; the late value is dropped, logged once with the id."""
    caplog.set_level(logging.INFO, logger="kvlanes.nursery")
    async with running(*ABC, permits=1, grace_seconds=1) as engine:
        gate = WorkGate[str](stubborn=True)
        async with engine.request(seconds=5, request_id="slow") as request:
            ended = await request.route(PROMPT).dispatch(gate)
            assert ended == DeadlineExpired(drained=False)
            assert trio.current_time() == pytest.approx(6)
        assert (engine.gate.free, load(engine, "a")) == (0, 1)
        assert held(engine, PROMPT) == {}
        gate.open("late")
        await gate.ended.wait()
        await wait_all_tasks_blocked()
        assert (engine.gate.free, load(engine, "a")) == (1, 0)
        assert held(engine, PROMPT) == {"a": 4}
    said = [record.getMessage() for record in caplog.records if "slow" in record.getMessage()]
    assert len([text for text in said if "ended with a result" in text]) == 1
    assert len([text for text in said if "keeps its holds" in text]) == 1


async def test_work_is_cancelled_once_at_its_deadline(autojump_clock: MockClock) -> None:
    async with running(*ABC) as engine, engine.request(seconds=1) as request:
        gate = WorkGate[None]()
        assert await request.route(PROMPT).dispatch(gate) == DeadlineExpired(drained=True)
        assert (trio.current_time(), gate.cancellations) == (1, 1)


async def test_nothing_is_ever_freed_by_age(autojump_clock: MockClock) -> None:
    """A permit, a place and running work outlive days; their owners end them, nobody else."""
    async with running(*ABC, permits=2) as engine, trio.open_nursery() as nursery:
        gate = WorkGate[None]()
        async with engine.request(seconds=math.inf) as request:
            idle = request.route(conversation(2))
            nursery.start_soon(request.route(PROMPT).dispatch, gate)
            await trio.sleep(7 * 24 * 3600)
            rows = {row.rank: row.requests for row in engine.statistics().ranks}
            assert rows == {"a": 1, "b": 1, "c": 0}
            assert engine.gate.free == 1
            idle.close()
            gate.open(None)


async def test_a_retry_goes_elsewhere_after_the_first_place_was_given_back() -> None:
    """P30: load(a) is 0 before load(b) is 1, and the request keeps its id and its permit."""
    async with running(*ABC, permits=1) as engine, engine.request(request_id="r") as request:
        first = request.route(PROMPT)
        assert (first.route.worker, load(engine, "a")) == ("a", 1)
        assert isinstance(await first.dispatch(fail), Failed)
        assert load(engine, "a") == 0
        second = request.route(PROMPT, exclude=[first.route.worker])
        assert (second.route.worker, load(engine, "a"), load(engine, "b")) == ("b", 0, 1)
        assert (await second.dispatch(answer, second.route)).unwrap() == "b answered"
        first.close()
        assert held(engine, PROMPT) == {"b": 4}


async def test_a_retry_that_has_nowhere_to_go_names_its_reasons() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        with pytest.raises(NoEligibleWorker, match="none of 3 ranks") as refused:
            request.route(PROMPT, exclude=["a", "b", "c"])
        assert set(refused.value.reasons.values()) == {"excluded by the request"}


async def test_a_reservation_serves_one_dispatch() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        reservation = request.route(PROMPT)
        gate = WorkGate[int]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reservation.dispatch, gate)
            await gate.entered.wait()
            with pytest.raises(ReservationEnded, match="is dispatched already"):
                await reservation.dispatch(answer, reservation.route)
            gate.open(1)
        with pytest.raises(ReservationEnded, match="was closed"):
            await reservation.dispatch(answer, reservation.route)
        assert engine.statistics().dispatched == 0


async def test_closing_while_work_runs_waits_for_its_end() -> None:
    async with running(*ABC, permits=1) as engine:
        gate = WorkGate[int]()
        async with trio.open_nursery() as nursery:
            async with engine.request() as request:
                reservation = request.route(PROMPT)
                nursery.start_soon(reservation.dispatch, gate)
                await gate.entered.wait()
                reservation.close()
                assert load(engine, "a") == 1
            assert (engine.gate.free, load(engine, "a")) == (0, 1)
            gate.open(1)
        assert (engine.gate.free, load(engine, "a")) == (1, 0)


async def test_late_and_foreign_closes_touch_nobody_else() -> None:
    """The late cleanup of one attempt never touches another, not even on the same prompt."""
    async with running(Worker("a")) as engine, engine.request() as request:
        first, second = request.route(PROMPT), request.route(PROMPT)
        first.close()
        for _ in range(3):
            first.close()
            first.first_output()
            first.grow(9)
        row = engine.statistics().ranks[0]
        assert (row.requests, row.prefill_tokens, row.decode_blocks) == (1, 64, 4)
        second.close()
        assert engine.statistics().ranks[0].decode_blocks == 0


async def test_identical_prompts_count_their_blocks_once() -> None:
    async with running(Worker("a")) as engine, engine.request() as request:
        places = [request.route(PROMPT) for _ in range(3)]
        assert engine.statistics().ranks[0].decode_blocks == 4
        places[0].first_output()
        places[0].grow(2)
        row = engine.statistics().ranks[0]
        assert (row.requests, row.prefill_tokens, row.decode_blocks) == (3, 128, 6)


async def test_growth_backwards_is_refused() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        with request.route(PROMPT) as reservation, pytest.raises(ValueError, match="got -1"):
            reservation.grow(-1)


@pytest.mark.parametrize("cached", [-1, 65])
async def test_measured_tokens_must_fit_the_prompt(cached: int) -> None:
    async with running(*ABC) as engine, engine.request() as request:
        reservation = request.route(PROMPT)
        with pytest.raises(ValueError, match=f"within 0..64, got {cached}"):
            reservation.succeeded(cached_tokens=cached)
        assert held(engine, PROMPT) == {}


async def test_success_is_told_once_however_often_it_is_said() -> None:
    async with running(Worker("a")) as engine:
        await serve(engine, PROMPT)
        async with engine.request() as request:
            reservation = request.route(PROMPT)
            for cached in (48, 16):
                reservation.succeeded(cached_tokens=cached)
            (await reservation.dispatch(answer, reservation.route)).unwrap()
        row = engine.statistics().ranks[0]
        assert (row.predicted_tokens, row.measured_tokens) == (64, 48)


async def test_a_cancelled_caller_drains_for_its_grace_and_gives_everything_back(
    autojump_clock: MockClock,
) -> None:
    """P33: the clean-up of the work awaits three times, bounded, and the release follows it."""
    steps: list[float] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, relative_deadline=2):
                for _ in range(3):
                    await trio.sleep(0.5)
                    steps.append(trio.current_time())

    async with running(*ABC, permits=1, grace_seconds=3) as engine:
        with trio.move_on_after(1):
            async with engine.request() as request:
                await request.route(PROMPT).dispatch(work)
        assert steps == [1.5, 2.0, 2.5]
        assert trio.current_time() == pytest.approx(2.5)
        assert (engine.gate.free, load(engine, "a")) == (1, 0)


async def test_the_release_happens_although_the_clean_up_exceeds_its_bound(
    autojump_clock: MockClock,
) -> None:
    """P33: the caller is back at the grace, the hold follows the real end."""
    async with running(*ABC, permits=1, grace_seconds=1) as engine:
        gate = WorkGate[None](stubborn=True)
        with trio.move_on_after(1):
            async with engine.request() as request:
                await request.route(PROMPT).dispatch(gate)
        assert trio.current_time() == pytest.approx(2)
        assert engine.gate.free == 0
        gate.fail(RuntimeError("close failed"))
        await engine.gate.wait_idle()
        assert (engine.gate.free, load(engine, "a")) == (1, 0)


async def test_errors_of_work_never_cancel_other_requests() -> None:
    async def broken(*_: object) -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(fail)
            inner.start_soon(trio.sleep_forever)

    async with running(*ABC) as engine, engine.request() as one, engine.request() as other:
        gate = WorkGate[str]()
        reservation = one.route(PROMPT)
        async with trio.open_nursery() as nursery:

            async def survivor() -> None:
                assert await reservation.dispatch(gate) == Completed("fine")

            nursery.start_soon(survivor)
            await gate.entered.wait()
            ended = await other.route(PROMPT).dispatch(broken)
            assert isinstance(ended, Failed)
            assert isinstance(ended.error, ExceptionGroup)
            gate.open("fine")


async def test_the_route_is_a_value_that_outlives_its_reservation() -> None:
    async with running(*ABC) as engine:
        async with engine.request() as request:
            with request.route(PROMPT) as reservation:
                route: Route = reservation.route
        assert (route.worker, route.overlap, route.blocks) == ("a", 0, 4)
        assert "=>" in str(route.explanation)
        assert chosen(engine, PROMPT) == "b"


async def test_an_identical_prompt_would_add_no_blocks_where_it_runs() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        for worker in "abc":
            request.route(conversation(7, 12), allowed=[worker])
        request.route(PROMPT, allowed=["c"]).first_output()
        rows = {str(row.rank): row for row in engine.probe(PROMPT).explanation.rows}
        assert (rows["a"].decode, rows["c"].decode) == (12 + 4, 12 + 4)
        assert rows["c"].cost == rows["a"].cost


async def test_a_long_request_remembers_no_reservation_that_has_ended() -> None:

    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, Reservation) for thing in gc.get_objects())

    async with running(*ABC) as engine, engine.request() as request:
        before = alive()
        for number in range(50):
            request.route(conversation(number)).close()
        assert alive() == before
