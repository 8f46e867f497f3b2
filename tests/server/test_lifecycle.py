"""Permits come back whatever clients do, and answers come in time whatever workers do."""
# flake8: noqa: ASYNC113, ASYNC910 - every wait below ends with its test

import json
import logging

import pytest
import trio

from tests.http.raw import head
from tests.server.running import (
    PATIENCE_SECONDS,
    Running,
    nouls,
    post,
    predicates,
    running,
)

ALL = 8  # the permits of `FLAGS`
DEADLINE, GRACE = 0.5, 0.25
SLACK = 1.0  # for a busy machine; the work that is cut short would take a minute


@pytest.mark.parametrize("leave", ["close", "half-close", "after a kept request"])
async def test_a_client_that_leaves_frees_its_permits(leave: str) -> None:
    """P58: seen from outside, a request for every permit is granted within a second."""
    flags = ("--permits", "8", "--mock", "mock-fast", "--mock", "stuck:latency=60")
    async with running(*flags) as server, server.client() as client:
        if leave == "after a kept request":
            assert (await post(client, "/v1/systemone", nouls("mock-fast", 1))).status == 200
        await server.occupy(client, "/v1/systemone", nouls("stuck", ALL))
        assert not await server.permits_free(1)
        if leave == "half-close":
            await client.stream.send_eof()
        else:
            await client.stream.aclose()
        await server.until_free(ALL, seconds=1.0)


async def test_a_client_that_leaves_during_preflight_frees_its_permits_with_the_thread() -> None:
    flags = ("--permits", "8", "--mock", "mock-fast", "--mock", "slow:preflight=0.3")
    async with running(*flags) as server:
        async with server.client() as client:
            await server.occupy(client, "/v1/systemone", nouls("slow", ALL))
            assert not await server.permits_free(1)
        assert not await server.permits_free(ALL)  # the thread goes on and keeps its hold
        await server.until_free(ALL)


async def test_a_stubborn_worker_keeps_its_permits_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flags = ("--permits", "8", "--deadline", "0.3", "--grace", "0.1")
    mocks = ("--mock", "mock-fast", "--mock", "stubborn:latency=60,stubborn=0.5")
    async with running(*flags, *mocks) as server:
        began = trio.current_time()
        response = await server.post("/v1/systemone", nouls("stubborn", ALL))
        took = trio.current_time() - began
        assert response.status == 504
        assert 0.3 <= took < 0.3 + 0.1 + SLACK
        assert not await server.permits_free(1)
        await server.until_free(ALL)
    warned = [r for r in caplog.records if r.levelno == logging.WARNING]
    request_id = response.headers["x-request-id"]
    assert sum(request_id in record.getMessage() for record in warned) >= 1


@pytest.mark.parametrize("model", ["mock-stuck", "mock-blocking-long"])
async def test_a_late_answer_is_504_within_deadline_and_grace(model: str) -> None:
    async with running() as server:
        began = trio.current_time()
        response = await server.post("/v1/decisions", predicates(model, 2))
        took = trio.current_time() - began
        assert response.status == 504
        assert DEADLINE <= took < DEADLINE + GRACE + SLACK
        await server.until_free(ALL)


@pytest.mark.parametrize("model", ["mock-bad", "mock-busy", "mock-refuse", "mock-fast"])
async def test_every_way_to_end_gives_every_permit_back(model: str) -> None:
    async with running() as server:
        for body, path in (
            (nouls(model, ALL), "/v1/systemone"),
            (predicates(model, ALL), "/v1/decisions"),
        ):
            await server.post(path, body)
            assert await server.permits_free(ALL)


async def test_a_slow_upload_holds_no_permit() -> None:
    async with running() as server, server.client() as client:
        await client.send(
            head(
                "POST", "/v1/systemone", "content-type: application/json\r\ncontent-length: 99\r\n"
            )
        )
        assert await server.permits_free(ALL)
        assert (await client.response()).status == 408


async def test_the_first_branch_fixes_the_worker_and_siblings_follow() -> None:
    """All branches read the prefix that the first one left on its worker."""
    state = "A long state that all questions share. " * 20
    async with running() as server:
        response = await server.post("/v1/decisions", predicates("mock-fast", ALL, state))
        usage = json.loads(response.body)["usage"]
        prefix_blocks = len(state.split()) // 16
        assert usage["input_tokens_details"]["cached_tokens"] >= (ALL - 1) * prefix_blocks * 16


async def test_the_same_prompt_goes_where_it_was() -> None:
    state = "A long state that both requests share. " * 20
    async with running() as server:
        seen = []
        for _ in range(3):
            response = await server.post("/v1/decisions", predicates("mock-fast", 1, state))
            details = json.loads(response.body)["usage"]["input_tokens_details"]
            worker, blocks, source = response.headers["x-kvlanes-route"].split("; ")
            seen.append((worker, blocks, source, details["cached_tokens"]))
    full = seen[1][1].removeprefix("blocks=").split("/")
    assert seen[0][1:] == (f"blocks=0/{full[1]}", "source=none", 0)
    assert seen[1] == seen[2]
    assert seen[1][0] == seen[0][0]
    assert full[0] == full[1]
    assert seen[1][2:] == ("source=modelled", int(full[0]) * 16)


async def test_different_prompts_are_spread_over_workers() -> None:
    async with running() as server:
        workers = set()
        async with trio.open_nursery() as nursery:

            async def ask(i: int) -> None:
                response = await server.post(
                    "/v1/decisions", predicates("mock-slow", 1, f"{i} is a number. " * 30)
                )
                workers.add(response.headers["x-kvlanes-route"].split(";")[0])

            for i in range(ALL):
                nursery.start_soon(ask, i)
    assert len(workers) > 1


async def test_stopping_lets_running_requests_end_and_refuses_new_ones() -> None:
    flags = ("--permits", "8", "--mock", "mock-fast", "--mock", "slow:latency=0.3")
    async with running(*flags) as server, server.client() as runs, server.client() as idle:
        await post(idle, "/v1/systemone", nouls("mock-fast", 1))
        await server.occupy(runs, "/v1/systemone", nouls("slow", ALL))
        assert not await server.permits_free(1)
        server.stopping.set()
        assert await idle.closed() == b""
        assert (await runs.response()).status == 200
        assert await runs.closed() == b""


async def test_stopping_refuses_by_name_what_does_not_end_in_time() -> None:
    flags = ("--permits", "8", "--stop-seconds", "0.1", "--grace", "0.1", "--mock", "mock-fast")
    async with running(*flags, "--mock", "stuck:latency=60") as server, server.client() as client:
        await server.occupy(client, "/v1/decisions", predicates("stuck", ALL))
        assert not await server.permits_free(1)
        server.stopping.set()
        response = await client.response()
        assert (response.status, json.loads(response.body)["error"]["code"]) == (
            503,
            "server_error",
        )


async def flood(server: Running, model: str, statuses: dict[int, int]) -> None:
    response = await server.post("/v1/systemone", nouls(model, 2))
    statuses[response.status] = statuses.get(response.status, 0) + 1


async def test_many_clients_at_once_are_answered_or_refused_and_all_comes_back() -> None:
    statuses: dict[int, int] = {}
    async with running() as server:
        async with trio.open_nursery() as nursery:
            for i in range(60):
                model = ("mock-fast", "mock-slow", "mock-blocking", "mock-bad", "mock-busy")[i % 5]
                nursery.start_soon(flood, server, model, statuses)
        assert sum(statuses.values()) == 60
        assert statuses.keys() <= {200, 429, 500}
        await server.until_free(ALL, seconds=1.0)


async def leave_after(server: Running, model: str, sent_bytes: int) -> None:
    data = json.dumps(nouls(model, 2)).encode()
    sent = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
    whole = head("POST", "/v1/systemone", sent) + data
    async with server.client() as client:
        await client.send(whole[: sent_bytes % (len(whole) + 1)])


async def test_clients_that_leave_at_any_byte_leave_nothing_behind() -> None:
    async with running() as server:
        for start in range(0, 400, 40):
            async with trio.open_nursery() as nursery:
                for sent_bytes in range(start, start + 40, 4):
                    model = ("mock-stuck", "mock-blocking", "mock-fast")[sent_bytes // 4 % 3]
                    nursery.start_soon(leave_after, server, model, sent_bytes)
        await server.until_free(ALL, seconds=PATIENCE_SECONDS)
