"""Many bad clients at once, against the server as a process: then all is as before.

The profile `deep` runs the numbers of a real storm and looks at the memory of the process.
"""
# flake8: noqa: ASYNC910, ASYNC912 - every wait below ends with its test

import json
import random
from contextlib import suppress
from pathlib import Path

import trio

from kvlanes.engine.http import HttpLimits
from tests.http.raw import Client, head
from tests.server.running import nouls, post, predicates
from tests.server.test_process import Process, started
from tests.support.profiles import budget

PERMITS = 16
FLAGS = ("--port", "0", "--permits", str(PERMITS), "--deadline", "0.5", "--grace", "0.1")
MOCKS = ("mock-fast", "slow:latency=0.05", "stuck:latency=60", "blocking:preflight=0.01")
MODELS = tuple(mock.partition(":")[0] for mock in MOCKS)
BODY_BYTES = 4 * 1024 * 1024
LIMITS = HttpLimits()
# Bodies in flight; of each connection what is read at once, waits, and is parsed; the program.
MOST_BYTES = LIMITS.bodies_bytes + 3 * LIMITS.pipelined_bytes * LIMITS.connections + 64 * 2**20
PATIENCE_SECONDS = 60.0


def flags(*more: str) -> tuple[str, ...]:
    return (*FLAGS, *(flag for mock in MOCKS for flag in ("--mock", mock)), *more)


def resident_bytes(server: Process) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def peak_bytes(server: Process) -> int:
    """The most that was ever resident."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


async def every_permit_is_granted(server: Process) -> None:
    async with server.client() as client:
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                answer = await post(client, "/v1/systemone", nouls("mock-fast", PERMITS))
                if answer.status == 200:
                    return
                assert answer.status in (429, 504)  # not now; on a busy machine, not in time


async def disconnect(server: Process, seed: int) -> None:
    """Send a request or a part of it, wait a moment or not, and go."""
    draw = random.Random(seed)
    data = json.dumps(nouls(draw.choice(MODELS), draw.randint(1, 4))).encode()
    sent = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
    whole = head("POST", "/v1/systemone", sent) + data
    async with server.client() as client:
        await client.send(whole[: draw.choice((len(whole), draw.randint(1, len(whole))))])
        await trio.sleep(draw.choice((0.0, 0.01, 0.05)))  # the moment is the subject


async def disconnects(server: Process, count: int) -> None:
    for start in range(0, count, 50):
        async with trio.open_nursery() as nursery:
            for seed in range(start, min(start + 50, count)):
                nursery.start_soon(disconnect, server, seed)


async def test_disconnects_at_random_moments_leave_nothing_behind() -> None:
    async with started(*flags()) as server:
        await disconnects(server, budget(ci=100, deep=1000))
        await every_permit_is_granted(server)


async def test_clients_at_four_times_the_permits_are_answered_or_refused() -> None:
    statuses: list[int] = []

    async def ask(server: Process, count: int) -> None:
        async with server.client() as client:
            for i in range(count):
                response = await post(client, "/v1/decisions", predicates(MODELS[i % 2], 1))
                statuses.append(response.status)

    clients, requests = budget(ci=4 * PERMITS, deep=200), budget(ci=2, deep=20)
    async with started(*flags("--deadline", "60")) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(ask, server, requests)
        assert len(statuses) == clients * requests
        assert set(statuses) == {200, 429}
        await every_permit_is_granted(server)


async def upload(server: Process, statuses: list[int]) -> None:
    """Send half of a body and stop; read the answer all the while, as it may come earlier."""
    sent = f"content-type: application/json\r\ncontent-length: {BODY_BYTES}\r\n"
    async with server.client() as client, trio.open_nursery() as nursery:
        await client.send(head("POST", "/v1/systemone", sent))
        nursery.start_soon(send_or_break, client, b" " * (BODY_BYTES // 2))
        statuses.append((await client.response()).status)
        nursery.cancel_scope.cancel()


async def send_or_break(client: Client, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # refused, and not read to the end
        await client.send(data)


async def uploads(server: Process, count: int) -> None:
    """All are answered by name: in time, or as the bodies' own bound is met."""
    statuses: list[int] = []
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(upload, server, statuses)
        await every_permit_is_granted(server)  # while they crawl
    assert len(statuses) == count
    assert set(statuses) <= {408, 429}


async def test_slow_uploads_hold_no_permit_and_end_in_time() -> None:
    """More than once, so that bodies which were not given back would exceed what may be held."""
    async with started(*flags("--body-timeout", "2", "--deadline", "30")) as server:
        for _ in range(budget(ci=1, deep=3)):
            await uploads(server, budget(ci=40, deep=1000))
            await every_permit_is_granted(server)
        assert peak_bytes(server) < MOST_BYTES


async def test_clients_that_stop_reading_do_not_stop_anybody() -> None:
    async with started(*flags()) as server, server.client() as stopped:
        ask = head("GET", "/v1/models", "")
        with trio.move_on_after(0.5):
            while True:  # never reads; sends until the server does not take more
                await stopped.send(ask * 1000)
        await every_permit_is_granted(server)


async def test_memory_is_flat() -> None:
    async with started(*flags()) as server:
        for seed in (0, 1):
            await disconnects(server, budget(ci=50, deep=1000))
            await every_permit_is_granted(server)
            if seed == 0:
                before = resident_bytes(server)
        grown = resident_bytes(server) - before
        assert grown <= max(0.02 * before, budget(ci=4, deep=2) * 1024 * 1024), (before, grown)
