"""Every row of the error table on both routes, over a raw socket."""
# flake8: noqa: ASYNC910 - every request is one

import json
import re
from typing import Any

import pytest
import trio.testing

from kvlanes.engine.decisions import Contract
from tests.decisions.bodies import DELETE, changed, decisions, systemone
from tests.http.raw import Client, Response, head
from tests.server.running import nouls, post, predicates, running, send

ROUTES = {"/v1/decisions": decisions, "/v1/systemone": systemone}
PATHS = tuple(ROUTES)
INVALID, UNSUPPORTED = "invalid_request_error", "unsupported_capability"
JSON = "content-type: application/json\r\n"


def questions(path: str, model: str, count: int) -> dict[str, Any]:
    return (predicates if path == "/v1/decisions" else nouls)(model, count)


def check(response: Response, path: str, status: int, code: str) -> str:
    """The envelope, the headers; returns the message."""
    assert response.status == status, response
    assert response.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", response.headers["x-request-id"])
    assert response.headers["x-typesafe-request-id"] == response.headers["x-request-id"]
    assert response.headers.get("retry-after") == ("1" if status == 429 else None)
    assert (response.headers.get("x-should-retry") == "false") == (status in (500, 504))
    said = json.loads(response.body)
    if path == "/v1/decisions":
        message = said["error"].pop("message")
        assert said == {"error": {"type": code, "param": None, "code": code}}
    elif code in (INVALID, UNSUPPORTED):
        (detail,) = said["detail"]
        message = detail.pop("msg")
        assert said.keys() == {"detail"}
        assert detail == {"loc": ["body"], "type": code}
    else:
        message = said.pop("detail")
        assert said == {"code": code}
    assert isinstance(message, str)
    return message


async def refused(
    client: Client, path: str, data: bytes, status: int, code: str, headers: str = JSON
) -> str:
    return check(await client.request(data, path=path, headers=headers), path, status, code)


@pytest.mark.parametrize("path", PATHS)
async def test_rows_about_the_body(path: str) -> None:
    sound = json.dumps(ROUTES[path]()).encode()
    async with running() as server, server.client() as client:
        for media_type in (
            "",
            "content-type: text/plain\r\n",
            "content-type: multipart/form-data\r\n",
        ):
            await refused(client, path, sound, 415, INVALID, media_type)
        for media_type in ("application/json; charset=utf-8", "Application/JSON"):
            headers = f"content-type: {media_type}\r\n"
            assert (await client.request(sound, path=path, headers=headers)).status == 200
        for broken in (b"", b"{", b'{"a":1,"a":1}', b'{"a":NaN}', b'["\\ud800"]', b"\xff"):
            await refused(client, path, broken, 400, "invalid_json")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ("content-length: 65537\r\n", b""),
        ("transfer-encoding: chunked\r\n", b"10001\r\n" + b" " * 0x10001 + b"\r\n"),
    ],
    ids=["declared", "chunked"],
)
async def test_a_body_over_the_limit(path: str, headers: str, sent: bytes) -> None:
    async with running() as server, server.client() as client:
        await client.send(head("POST", path, JSON + headers) + sent)
        check(await client.response(), path, 413, INVALID)


@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_encoding(path: str) -> None:
    async with running() as server, server.client() as client:
        await refused(client, path, b"{}", 415, INVALID, JSON + "content-encoding: br\r\n")


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_does_not_come(path: str) -> None:
    async with running("--body-timeout", "0.1") as server, server.client() as client:
        await client.send(head("POST", path, JSON + "content-length: 9\r\n") + b"{")
        check(await client.response(), path, 408, INVALID)


@pytest.mark.parametrize("path", PATHS)
async def test_rows_about_the_schema(path: str) -> None:
    schema = 400 if path == "/v1/decisions" else 422
    async with running() as server, server.client() as client:
        for body in (b"[]", b'"a"', b"null"):
            await refused(client, path, body, schema, INVALID)
        for field, value in (("nvext", {}), ("nvext", None), ("model", "  "), ("x", 1)):
            body = json.dumps(changed(ROUTES[path](), field, value)).encode()
            message = await refused(client, path, body, schema, INVALID)
            assert (message == "nvext is not supported by decision APIs") == (field == "nvext")
        body = json.dumps(changed(ROUTES[path](), "questions", DELETE)).encode()
        await refused(client, path, body, schema, INVALID)
        too_many = json.dumps(questions(path, "mock-fast", 17)).encode()
        assert "at most 16" in await refused(client, path, too_many, schema, INVALID)


async def test_what_decisions_cannot_do() -> None:
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a"}]}]
    async with running() as server, server.client() as client:
        body = json.dumps(changed(decisions(), "input", image)).encode()
        await refused(client, "/v1/decisions", body, 400, UNSUPPORTED)
        for field, value in (
            ("assets", {}),
            ("questions.urgent", {"type": "box"}),
            ("chat_template_kwargs", {"thinking": True}),
        ):
            body = json.dumps(changed(systemone(), field, value)).encode()
            await refused(client, "/v1/systemone", body, 422, UNSUPPORTED)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("mock-down", 503, "server_error"),
        ("mock-unknown", 404, "model_not_found"),
        ("mock-busy", 429, "rate_limit_exceeded"),
        ("mock-bad", 500, "server_error"),
        ("mock-stuck", 504, "server_error"),
        ("mock-stubborn", 504, "server_error"),
        ("mock-blocking-long", 504, "server_error"),
    ],
)
async def test_rows_about_models_and_workers(path: str, model: str, status: int, code: str) -> None:
    async with running() as server:
        response = await server.post(path, questions(path, model, 2))
        check(response, path, status, code)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("model", ["mock-fast", "mock-slow", "mock-blocking", "mock-tie"])
async def test_models_that_answer(path: str, model: str) -> None:
    async with running() as server:
        response = await server.post(path, questions(path, model, 8))
    assert response.status == 200
    said = json.loads(response.body)
    assert (said["model"], len(said["answers"])) == (model, 8)
    assert response.headers["x-kvlanes-decisions-version"] == "1"


async def test_a_tie_is_even() -> None:
    async with running() as server:
        response = await server.post("/v1/systemone", nouls("mock-tie", 1))
    assert json.loads(response.body)["answers"]["q0"]["noul"] == 0.5


async def test_a_refusal_is_an_answer_on_one_route_only() -> None:
    async with running() as server:
        theirs = await server.post("/v1/decisions", predicates("mock-refuse", 2))
        kinds = [answer["type"] for answer in json.loads(theirs.body)["answers"]]
        assert (theirs.status, kinds) == (200, ["refusal", "predicate"])
        ours = await server.post("/v1/systemone", nouls("mock-refuse", 2))
        check(ours, "/v1/systemone", 422, "decision_refused")


@pytest.mark.parametrize("path", PATHS)
async def test_rows_about_permits(path: str) -> None:
    schema = 400 if path == "/v1/decisions" else 422
    async with running() as server:
        response = await server.post(path, questions(path, "mock-fast", 9))
        message = check(response, path, schema, INVALID)
        assert message == "request needs 9 branches; the branch limit is 8"
        async with server.client() as holder:
            await server.occupy(holder, path, questions(path, "mock-slow", 8))
            response = await server.post(path, questions(path, "mock-fast", 1))
            check(response, path, 429, "rate_limit_exceeded")


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
    schema = 400 if path == "/v1/decisions" else 422
    flags = ("--max-input-tokens", "60", "--max-candidates", "2", "--mock", "mock-fast")
    async with running(*flags) as server, server.client() as client:
        body = json.dumps(changed(ROUTES[path](), "model", "mock-fast")).encode()
        await refused(client, path, body, schema, UNSUPPORTED)  # a score of three levels
        assert (await post(client, path, questions(path, "mock-fast", 1))).status == 200
        response = await post(client, path, questions(path, "mock-fast", 8))
        assert "input tokens" in check(response, path, schema, INVALID)


async def test_paths_and_methods() -> None:
    async with running() as server, server.client() as client:
        for path in ("/v1", "/v1/decisions/", "/v1/chat/completions"):
            response = await client.request(b"{}", path=path)
            check(response, "/v1/decisions", 404, "not_found")
        for path in PATHS:
            for method in ("GET", "PUT", "DELETE", "OPTIONS"):
                response = await client.request(path=path, method=method)
                check(response, path, 405, "method_not_allowed")
                assert response.headers["allow"] == "POST"
            response = await client.request(path=path, method="HEAD")
            assert (response.status, response.headers["allow"]) == (405, "POST")
        response = await client.request(path="/v1/models")
        assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
        for path in ("/v1/models", "/healthz"):
            assert (await client.request(path=path, method="HEAD")).status == 200


async def test_the_connection_goes_on_after_every_error_whose_body_was_read() -> None:
    async with running() as server, server.client() as client:
        for path in PATHS:
            for model in ("mock-down", "mock-unknown", "mock-busy", "mock-fast"):
                await post(client, path, questions(path, model, 1))
            await client.request(b"{", path=path, headers=JSON)


@pytest.mark.parametrize("given", ["a", "A-b_c.9", "x" * 128])
async def test_a_plain_request_id_is_reused(given: str) -> None:
    async with running() as server, server.client() as client:
        headers = f"x-request-id: {given}\r\n"
        response = await client.request(path="/healthz", method="GET", headers=headers)
        assert response.headers["x-request-id"] == given
        assert response.headers["x-typesafe-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "<script>", "a\xe9"])
async def test_another_request_id_is_replaced(given: str) -> None:
    async with running() as server, server.client() as client:
        headers = f"x-request-id: {given}\r\n"
        response = await client.request(path="/healthz", method="GET", headers=headers)
        assert response.headers["x-request-id"].startswith("req_")


async def test_one_request_id_for_many_requests_does_not_join_their_permits() -> None:
    headers = "x-request-id: same\r\n"
    async with running() as server, server.client() as holder:
        await send(holder, "/v1/systemone", nouls("mock-stuck", 4), headers)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for count, status in ((4, 200), (5, 429)):
            response = await server.post("/v1/systemone", nouls("mock-fast", count), headers)
            assert response.status == status


async def test_what_the_http_part_refuses_speaks_json_too() -> None:
    async with running() as server, server.client() as client:
        await client.send(b"nonsense\r\n\r\n")
        check(await client.response(), "/v1/decisions", 400, INVALID)


def test_the_routes_are_those_of_the_contracts() -> None:
    assert {contract.value for contract in Contract} == set(PATHS)
