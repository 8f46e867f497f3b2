"""Whole lives under any order of tasks: after every step all books add up, at the end to zero."""

import random

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from kvlanes.engine import Worker
from tests.engine.scenes import running
from tests.engine.traffic import Traffic, traffic_gate
from tests.support.profiles import budget
from tests.support.schedule import scheduled

FLEET = (
    Worker("plain"),
    Worker("pool", capacity_blocks=40),
    Worker("fed"),
    Worker("wide", dp_size=2),
)


async def life(seed: int, requests: int) -> tuple[str, dict[str, int]]:
    """One engine's life; its digest and what became of the requests."""
    rng = random.Random(seed)
    traffic = Traffic(rng, FLEET)
    async with trio.open_nursery() as threads:
        gate = traffic_gate(threads, rng, total=8, queue_limit=2)
        settings_ = {"ttl_seconds": 4, "predicted_ttl_seconds": 1, "grace_seconds": 0.2}
        async with running(
            *FLEET, gate=gate, make_index=traffic.make_index, seed=seed, lanes=2, **settings_
        ) as engine:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(traffic.troubles, engine, 25.0)
                await traffic.clients(engine, requests, at_once=8)
                nursery.cancel_scope.cancel()
            await gate.wait_idle()
    assert traffic.done == requests
    return engine.digest(), dict(traffic.told)


def run(seed: int, order: int, requests: int) -> tuple[str, dict[str, int], tuple[int, ...]]:
    with scheduled(order) as schedule:
        told = trio.run(life, seed, requests, clock=MockClock(autojump_threshold=0))
    return *told, tuple(schedule.trace)


@settings(max_examples=budget(ci=12, deep=400))
@given(seed=st.integers(0, 2**64 - 1), order=st.integers(0, 2**64 - 1))
def test_every_book_adds_up_after_every_step_and_ends_at_zero(seed: int, order: int) -> None:
    """Departures, restarts, crashes, cancels, deadlines, retries and streams, in any order."""
    run(seed, order, requests=40)


def test_the_same_seed_is_the_same_life() -> None:
    assert run(1, 2, 120) == run(1, 2, 120)


def test_orders_differ_and_so_do_seeds() -> None:
    traces = {run(3, order, 20)[2] for order in range(8)}
    assert len(traces) == 8
    assert len({run(seed, 1, 30)[0] for seed in range(4)}) == 4


def test_every_kind_of_ending_is_reached() -> None:
    """The scenario is worth its time: nothing above passes for want of trouble."""
    told = run(5, 6, 1500)[1]
    for kind in (
        "answered",
        "streamed",
        "expired",
        "cancelled",
        "ConnectionResetError",
        "WorkerLost",
        "DeadlinePassed",
        "QueueFull",
    ):
        assert told.get(kind), (kind, told)
