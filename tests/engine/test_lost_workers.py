"""What a departure ends: everything on the life of the rank that ended, and nothing else."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import pytest
import trio
from trio.testing import MockClock

from kvlanes.engine import Completed, Engine, Failed, Rank, Reservation, Worker, WorkerLost
from kvlanes.engine.testing import WorkGate
from tests.engine.scenes import ABC, conversation, held, load, running

PROMPT = conversation(1)


async def lose(
    engine: Engine, change: str, reservation: Reservation, gate: WorkGate[None]
) -> Failed:
    """Dispatch, change the fleet while the work runs, and return how it ended."""
    ended: list[object] = []

    async def caller() -> None:
        ended.append(await reservation.dispatch(gate))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await gate.entered.wait()
        if change == "remove":
            await engine.remove("a")
        elif change == "restart":
            engine.restarted(Rank("a"))
        else:
            await engine.reconcile([Worker("b")])
    (result,) = ended
    assert isinstance(result, Failed)
    return result


@pytest.mark.parametrize("change", ["remove", "restart", "reconcile"])
async def test_a_departure_ends_what_runs_there_on_every_path(change: str) -> None:
    workers = (Worker("a"), Worker("b"))
    async with running(*workers, permits=1) as engine, engine.request() as request:
        reservation = request.route(PROMPT, allowed=["a"])
        gate = WorkGate[None]()
        failed = await lose(engine, change, reservation, gate)
        assert isinstance(failed.error, WorkerLost)
        assert (failed.error.worker_id, failed.error.retryable) == ("a", True)
        assert reservation.lost
        assert gate.cancellations == 1
        assert load(engine, "a") == 0
        assert engine.gate.free == 0  # the permit is the caller's, whatever workers do
        assert request.route(PROMPT, exclude=["a"]).route.worker == "b"


async def test_losing_one_rank_ends_only_what_runs_on_it() -> None:
    async with running(Worker("a", dp_size=2)) as engine, engine.request() as request:
        gates = [WorkGate[str](), WorkGate[str]()]
        ended: dict[int, object] = {}

        async def caller(dp_rank: int) -> None:
            reservation = request.route(PROMPT, allowed=[Rank("a", dp_rank)])
            ended[dp_rank] = await reservation.dispatch(gates[dp_rank])

        async with trio.open_nursery() as nursery:
            for dp_rank in (0, 1):
                nursery.start_soon(caller, dp_rank)
                await gates[dp_rank].entered.wait()
            await engine.update(Worker("a", dp_size=1))
            gates[0].open("served")
        assert ended[0] == Completed("served")
        assert isinstance(ended[1], Failed)


async def test_a_place_on_a_departed_worker_is_out_of_the_books_at_once() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        reservation = request.route(PROMPT, allowed=["a"])
        await engine.remove("a")
        engine.register(Worker("a"))
        assert load(engine, "a") == 0
        for late in (reservation.first_output, reservation.succeeded, reservation.close):
            late()
        assert (load(engine, "a"), held(engine, PROMPT)) == (0, {})


async def test_dispatch_to_a_worker_that_left_is_lost_without_running() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        reservation = request.route(PROMPT, allowed=["a"])
        await engine.remove("a")
        gate = WorkGate[None]()
        ended = await reservation.dispatch(gate)
        assert isinstance(ended, Failed)
        assert isinstance(ended.error, WorkerLost)
        assert not gate.entered.is_set()
        assert engine.statistics().dispatched == 0


async def test_work_that_ignores_its_worker_s_departure_keeps_the_permit_only(
    autojump_clock: MockClock,
) -> None:
    async with running(*ABC, permits=1, grace_seconds=2) as engine:
        gate = WorkGate[None](stubborn=True)
        async with engine.request() as request:
            await lose(engine, "remove", request.route(PROMPT, allowed=["a"]), gate)
        assert (engine.gate.free, engine.statistics().dispatched) == (0, 1)
        engine.register(Worker("a"))
        assert load(engine, "a") == 0
        gate.open(None)
        await engine.gate.wait_idle()
        assert held(engine, PROMPT) == {}  # what the old life served says nothing of the new one
