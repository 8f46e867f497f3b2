"""Every row of the error table on both routes, over a raw socket.

Asked of the process that a black-box check starts; rows that need other flags run in a server of
their own.
"""
# flake8: noqa: ASYNC910, ASYNC912 - every request is one

import gzip
import itertools
import json

import pytest
import trio
import trio.testing
import zstandard

from kvlanes.engine.decisions import Contract
from tests.decisions.bodies import changed
from tests.http.raw import head
from tests.server.process import Outside
from tests.server.rows import (
    INVALID,
    JSON,
    PATHS,
    ROUTES,
    SCHEMA,
    UNSUPPORTED,
    check,
    questions,
    refused,
)
from tests.server.running import nouls, post, predicates, running, send

LIMIT_BYTES = 65536
DEADLINE, GRACE = 2.0, 0.5
SLACK = 1.5  # for a busy machine


@pytest.mark.parametrize("path", PATHS)
async def test_408_a_body_that_does_not_come(process: Outside, path: str) -> None:
    async with process.server.client() as client:
        began = trio.current_time()
        await client.send(head("POST", path, JSON + "content-length: 9\r\n") + b"{")
        check(await client.response(), path, 408, INVALID)
        assert 2.0 <= trio.current_time() - began < 2.0 + SLACK


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        (f"content-length: {LIMIT_BYTES + 1}\r\n", b""),
        (f"content-length: {LIMIT_BYTES + 1}\r\nexpect: 100-continue\r\n", b""),
        ("transfer-encoding: chunked\r\n", b"10001\r\n" + b" " * 0x10001 + b"\r\n"),
        *(
            (f"content-encoding: {name}\r\ncontent-length: {len(sent)}\r\n", sent)
            for name, sent in (
                ("gzip", gzip.compress(b" " * (LIMIT_BYTES + 1))),
                ("zstd", zstandard.compress(b" " * (LIMIT_BYTES + 1))),
            )
        ),
    ],
    ids=["declared", "expected", "chunked", "gzip", "zstd"],
)
async def test_413_a_body_over_the_limit(
    process: Outside, path: str, headers: str, sent: bytes
) -> None:
    async with process.server.client() as client:
        await client.send(head("POST", path, JSON + headers) + sent)
        check(await client.response(), path, 413, INVALID)


@pytest.mark.parametrize("path", PATHS)
async def test_413_comes_though_the_client_goes_on_sending(process: Outside, path: str) -> None:
    async with process.server.client() as client:
        await client.send(head("POST", path, f"{JSON}content-length: 300000\r\n"))
        await client.send(b" " * 300_000)
        check(await client.response(), path, 413, INVALID)
        assert await client.closed() == b""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        "",
        "content-type: text/plain\r\n",
        "content-type: multipart/form-data; boundary=x\r\n",
        f"{JSON}content-encoding: br\r\n",
        f"{JSON}content-encoding: gzip, zstd\r\n",
    ],
)
async def test_415_another_type_or_encoding(process: Outside, path: str, headers: str) -> None:
    async with process.server.client() as client:
        await refused(client, path, json.dumps(ROUTES[path]()).encode(), 415, INVALID, headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a":1,"a":1}',
        b'[{"b":{"a":1,"a":1}}]',
        b"[NaN]",
        b"[Infinity]",
        b"[1e999]",
        rb'["\ud800"]',
        b"[" * 30_000 + b"]" * 30_000,
    ],
    ids=[
        "empty",
        "syntax",
        "utf8",
        "twice",
        "deep twice",
        "nan",
        "infinity",
        "big",
        "lone",
        "deep",
    ],
)
async def test_400_bad_json(process: Outside, path: str, data: bytes) -> None:
    async with process.server.client() as client:
        await refused(client, path, data, 400, "invalid_json")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("data", [b"[]", b'"a"', b"null", b"5", b"true"])
async def test_a_body_that_is_no_object(process: Outside, path: str, data: bytes) -> None:
    async with process.server.client() as client:
        await refused(client, path, data, SCHEMA[path], INVALID)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [{}, None, {"a": 1}])
async def test_nvext_is_refused_by_name(process: Outside, path: str, value: object) -> None:
    async with process.server.client() as client:
        body = json.dumps(changed(ROUTES[path](), "nvext", value)).encode()
        message = await refused(client, path, body, SCHEMA[path], INVALID)
        assert message == "nvext is not supported by decision APIs"


@pytest.mark.parametrize("path", PATHS)
async def test_counts_and_their_limits(process: Outside, path: str) -> None:
    async with process.server.client() as client:
        for count, message in ((17, "at most 16"), (9, "needs 9 branches; the branch limit is 8")):
            body = json.dumps(questions(path, "mock-fast", count)).encode()
            assert message in await refused(client, path, body, SCHEMA[path], INVALID)
        assert (await post(client, path, questions(path, "mock-fast", 8))).status == 200


IMAGE = {"type": "input_image", "image_url": "http://a"}


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/decisions", "input", [{"role": "user", "content": [IMAGE]}]),
        ("/v1/decisions", "questions.1.instructions", [IMAGE]),
        ("/v1/systemone", "assets", {}),
        ("/v1/systemone", "images", []),
        ("/v1/systemone", "questions.urgent", {"type": "box"}),
        ("/v1/systemone", "chat_template_kwargs", {"thinking": True}),
        ("/v1/systemone", "chat_template_kwargs", {"enable_thinking": True}),
    ],
)
async def test_what_decisions_cannot_do(
    process: Outside, path: str, field: str, value: object
) -> None:
    body = json.dumps(changed(ROUTES[path](), field, value)).encode()
    async with process.server.client() as client:
        await refused(client, path, body, SCHEMA[path], UNSUPPORTED)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("mock-down", 503, "server_error"),
        ("mock-unknown", 404, "model_not_found"),
        ("jev-lates", 404, "model_not_found"),
        ("mock-mute", 400, INVALID),
        ("mock-busy", 429, "rate_limit_exceeded"),
        ("mock-bad", 500, "server_error"),
        ("mock-impossible", 502, "invalid_executor_result"),
        ("mock-crash", 500, "server_error"),
    ],
)
async def test_models_that_cannot_answer(
    process: Outside, path: str, model: str, status: int, code: str
) -> None:
    response = await process.server.post(path, questions(path, model, 2))
    message = check(response, path, status, code)
    assert (message == "internal server error") == (model == "mock-crash")
    assert model not in response.body.decode()
    await process.server.until_free(8)


@pytest.mark.parametrize("path", PATHS)
async def test_a_crash_is_logged_by_its_place_and_the_next_request_is_served(
    process: Outside, path: str
) -> None:
    headers = f"x-request-id: crash{path.replace('/', '-')}\r\n"
    async with process.server.client() as client:
        await post(client, path, questions(path, "mock-crash", 1), headers)
        assert (await post(client, path, questions(path, "mock-fast", 1))).status == 200
    line = await process.logged(f"request crash{path.replace('/', '-')} crashed")
    assert line.endswith("RuntimeError")
    assert 'examples/server/workers.py", line' in process.said()
    assert "mock-crash crashed" not in process.said()  # what the worker itself said


@pytest.mark.parametrize("path", PATHS)
async def test_429_while_the_permits_are_held(process: Outside, path: str) -> None:
    async with process.server.client() as holder:
        await process.server.until_free(8)
        await send(holder, path, questions(path, "mock-stuck", 8))
        while await process.server.permits_free(1):
            pass  # not admitted yet
        response = await process.server.post(path, questions(path, "mock-fast", 1))
        message = check(response, path, 429, "rate_limit_exceeded")
        assert message == "decision request capacity is exhausted"
    await process.server.until_free(8)


@pytest.mark.parametrize("path", PATHS)
async def test_expanded_tokens_over_the_limit(process: Outside, path: str) -> None:
    field = "input" if path == "/v1/decisions" else "state"
    body = {**questions(path, "mock-fast", 8), field: "a " * 10_000}
    response = await process.server.post(path, body)
    assert "the limit is 65536" in check(response, path, SCHEMA[path], INVALID)


async def test_a_refusal_is_an_answer_on_one_route_only(process: Outside) -> None:
    theirs = await process.server.post("/v1/decisions", predicates("mock-refuse", 2))
    answers = json.loads(theirs.body)["answers"]
    assert theirs.status == 200
    assert answers[0] == {"type": "refusal", "name": None}
    assert answers[1]["type"] == "predicate"
    ours = await process.server.post("/v1/systemone", nouls("mock-refuse", 2))
    check(ours, "/v1/systemone", 422, "decision_refused")


async def test_504_within_deadline_and_grace(process: Outside) -> None:
    models = ("mock-stuck", "mock-stubborn", "mock-blocking-long")

    async def late(path: str, model: str) -> None:
        began = trio.current_time()
        response = await process.server.post(path, questions(path, model, 1))
        took = trio.current_time() - began
        message = check(response, path, 504, "server_error")
        assert message == "decision request deadline exceeded"
        assert DEADLINE <= took < DEADLINE + GRACE + SLACK

    await process.server.until_free(8)
    async with trio.open_nursery() as nursery:
        for path, model in itertools.product(PATHS, models):
            nursery.start_soon(late, path, model)
    await process.server.until_free(8)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("model", ["mock-fast", "mock-slow", "mock-blocking", "mock-tie"])
async def test_models_that_answer(process: Outside, path: str, model: str) -> None:
    response = await process.server.post(path, questions(path, model, 8))
    said = json.loads(response.body)
    assert (response.status, said["model"], len(said["answers"])) == (200, model, 8)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("leave", ["close", "half-close"])
async def test_499_a_client_that_leaves_is_seen_in_the_log_only(
    process: Outside, path: str, leave: str
) -> None:
    name = f"left{path.replace('/', '-')}-{leave}"
    async with process.server.client() as client:
        await process.server.until_free(8)
        stuck = questions(path, "mock-stuck", 8)
        await send(client, path, stuck, f"x-request-id: {name}\r\n")
        while await process.server.permits_free(1):
            pass  # not admitted yet
        if leave == "close":
            await client.stream.aclose()
        else:
            await client.stream.send_eof()
            assert await client.closed() == b""  # nobody is told
        await process.server.until_free(8, seconds=1.0)
    line = await process.logged(f"{name} POST {path} 499")
    assert float(line.split()[-2]) < DEADLINE


@pytest.mark.parametrize("path", PATHS)
async def test_404_and_405(process: Outside, path: str) -> None:
    async with process.server.client() as client:
        for unknown in (path + "/", path.upper(), path + "/x", "/v1", "/v1/chat/completions"):
            response = await client.request(b"{}", path=unknown)
            check(response, "/v1/decisions", 404, "not_found")
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
            response = await client.request(path=path, method=method)
            check(response, path, 405, "method_not_allowed")
            assert response.headers["allow"] == "POST"
        response = await client.request(path=path, method="HEAD")
        assert (response.status, response.headers["allow"], response.body) == (405, "POST", b"")


async def test_a_tie_is_even(process: Outside) -> None:
    response = await process.server.post("/v1/systemone", nouls("mock-tie", 1))
    assert json.loads(response.body)["answers"]["q0"]["noul"] == 0.5


@pytest.mark.parametrize("path", PATHS)
async def test_busy_preflight_slots(path: str) -> None:
    flags = ("--preflight-slots", "1", "--deadline", "1", "--mock", "slow:preflight=0.3")
    async with running(*flags) as server, server.client() as holder:
        await server.occupy(holder, path, questions(path, "slow", 1))
        response = await server.post(path, questions(path, "slow", 1))
        message = check(response, path, 429, "rate_limit_exceeded")
        assert message == "decision preparation capacity is exhausted"
        assert (await holder.response()).status == 200


@pytest.mark.parametrize("path", PATHS)
async def test_rows_about_size_and_capability(path: str) -> None:
    schema = SCHEMA[path]
    flags = ("--max-input-tokens", "60", "--max-candidates", "2", "--mock", "mock-fast")
    async with running(*flags) as server, server.client() as client:
        body = json.dumps(changed(ROUTES[path](), "model", "mock-fast")).encode()
        await refused(client, path, body, schema, UNSUPPORTED)  # a score of three levels
        assert (await post(client, path, questions(path, "mock-fast", 1))).status == 200
        response = await post(client, path, questions(path, "mock-fast", 8))
        assert "input tokens" in check(response, path, schema, INVALID)


async def test_one_request_id_for_many_requests_does_not_join_their_permits() -> None:
    headers = "x-request-id: same\r\n"
    async with running() as server, server.client() as holder:
        await send(holder, "/v1/systemone", nouls("mock-stuck", 4), headers)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for count, status in ((4, 200), (5, 429)):
            response = await server.post("/v1/systemone", nouls("mock-fast", count), headers)
            assert response.status == status


async def test_what_the_http_part_refuses_speaks_json_too(process: Outside) -> None:
    async with process.server.client() as client:
        await client.send(b"nonsense\r\n\r\n")
        check(await client.response(), "/v1/decisions", 400, INVALID)


def test_the_routes_are_those_of_the_contracts() -> None:
    assert {contract.value for contract in Contract} == set(PATHS)
