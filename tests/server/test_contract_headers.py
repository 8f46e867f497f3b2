"""What the contracts say of headers and connections, asked of the process, on both routes."""
# flake8: noqa: ASYNC910, ASYNC912 - every request is one

import json

import pytest

from tests.http.raw import Client, Response, head
from tests.server.process import Outside
from tests.server.rows import JSON, PATHS, ROUTES
from tests.server.running import nouls, predicates


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", ["a", "x" * 128, "!~", "<a:b/c=d>"])
async def test_a_plain_request_id_is_reused(process: Outside, path: str, given: str) -> None:
    async with process.server.client() as client:
        headers = f"{JSON}x-request-id: {given}\r\n"
        for body in (b"{", json.dumps(ROUTES[path]()).encode()):
            response = await client.request(body, path=path, headers=headers)
            assert ids(response) == (given, given)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\x7f", "a\xe9"])
async def test_another_request_id_is_replaced(process: Outside, path: str, given: str) -> None:
    async with process.server.client() as client:
        seen = set()
        for _ in range(2):
            headers = f"{JSON}x-request-id: ".encode() + given.encode("latin-1") + b"\r\n"
            await client.send(b"POST %b HTTP/1.1\r\nhost: a\r\n" % path.encode() + headers)
            await client.send(b"content-length: 2\r\n\r\n{}")
            first, second = ids(await client.response())
            assert first == second != given
            seen.add(first)
        assert len(seen) == 2


def ids(response: Response) -> tuple[str, str]:
    return response.headers["x-request-id"], response.headers["x-typesafe-request-id"]


@pytest.mark.parametrize("path", PATHS)
async def test_headers_of_an_answer(process: Outside, path: str) -> None:
    response = await process.server.post(path, ROUTES[path]())
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-kvlanes-decisions-version"] == "1"
    assert ids(response)[0] == ids(response)[1]
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_outlives_errors_chunks_and_expectations(
    process: Outside, path: str
) -> None:
    body = json.dumps(ROUTES[path]()).encode()
    async with process.server.client() as client:
        for data in (b"{", b"[]", body):
            await client.request(data, path=path, headers=JSON)
        await chunked(client, path, body)
        assert (await client.response()).status == 200
        expecting = f"{JSON}content-length: {len(body)}\r\nexpect: 100-continue\r\n"
        await client.send(head("POST", path, expecting))
        assert (await client.response()).status == 100
        await client.send(body)
        assert (await client.response()).status == 200


async def chunked(client: Client, path: str, body: bytes) -> None:
    await client.send(head("POST", path, f"{JSON}transfer-encoding: chunked\r\n"))
    for start in range(0, len(body), 100):
        piece = body[start : start + 100]
        await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    await client.send(b"0\r\n\r\n")


async def test_prompts_keys_and_model_names_are_in_no_log(process: Outside) -> None:
    secret = "correct horse battery staple"
    headers = f"authorization: Bearer {secret.replace(' ', '-')}\r\n"
    for model in ("mock-fast", "mock-bad", "mock-crash", "mock-impossible", secret):
        await process.server.post("/v1/decisions", predicates(model, 2, secret), headers)
        await process.server.post("/v1/systemone", nouls(model, 2, secret), headers)
    await process.logged("POST /v1/systemone 404")
    assert "horse" not in process.said()
