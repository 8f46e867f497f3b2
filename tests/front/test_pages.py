"""Who sees the page, with which headers, and what is never on it."""
# flake8: noqa: ASYNC910 - every wait is in what is called

import json
import sys
from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from examples.server.pages import HEADERS
from examples.server.status_stream import StatusStreams
from tests.http.raw import PATIENCE_SECONDS, Response
from tests.server.running import FLAGS, Running, nouls, predicates, running

PATHS = ("/", "/page/page.css", "/page/page.js", "/page/icon.svg", "/docs", "/status")


async def get(server: Running, path: str, host: str = "127.0.0.1", headers: str = "") -> Response:
    async with server.client() as client:
        await client.send(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n".encode())
        return await client.response()


@pytest.mark.parametrize("path", PATHS)
async def test_loopback_sees_everything_with_strict_headers(path: str) -> None:
    async with running("--mock", "mock-fast") as server:
        for host in (
            "127.0.0.1",
            f"127.0.0.1:{server.port}",
            "localhost:1",
            "[::1]:8080",
            "127.9.9.9",
        ):
            response = await get(server, path, host)
            assert response.status == 200, response
            assert dict(HEADERS).items() <= response.headers.items()
            assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.", "[", "[x]", "10.0.0.1"]
)
@pytest.mark.parametrize("path", [*PATHS, "/status/stream"])
async def test_a_name_that_is_not_loopback_is_refused(path: str, host: str) -> None:
    async with running("--mock", "mock-fast") as server:
        response = await get(server, path, host)
        assert response.status == 421
        assert json.loads(response.body)["error"]["code"] == "host_not_allowed"


def basic(key: str) -> str:
    return f"authorization: Basic {b64encode(f'anybody:{key}'.encode()).decode()}\r\n"


async def test_an_admin_key_opens_the_page_and_an_api_key_does_not() -> None:
    flags = ("--mock=mock-fast", "--admin-key=adm", "--api-key=api")
    async with running(*flags) as server:
        for path in PATHS:
            for good in ("authorization: Bearer adm\r\n", basic("adm")):
                assert (await get(server, path, "any.example", good)).status == 200
            for bad in (
                "",
                "authorization: Bearer api\r\n",
                "authorization: Basic !\r\n",
                basic("api"),
                basic("adm "),
                "authorization: Digest adm\r\n",
            ):
                response = await get(server, path, headers=bad)
                assert response.status == 401
                assert response.headers["www-authenticate"] == 'Basic realm="kvlanes"'
        refused = await get(server, "/v1/models", headers="authorization: Bearer adm\r\n")
        assert refused.status == 401, "the operator's key asks no questions"


async def test_another_address_shows_nothing_without_a_key() -> None:
    async with running("--mock=mock-fast", "--host=0.0.0.0", "--insecure") as server:
        for path in (*PATHS, "/status/stream"):
            assert (await get(server, path)).status == 404
        assert (await get(server, "/healthz")).status == 200


async def test_pages_are_read_only() -> None:
    async with running("--mock=mock-fast") as server, server.client() as client:
        for method in ("POST", "PUT", "DELETE"):
            response = await client.request(method=method, path="/status", headers="")
            assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
        await client.send(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await client.response(bodiless=True)).status == 200


SECRETS = ("sk-very-secret", "The prompt nobody may see", "cache-key-of-a-tenant")


async def test_no_prompt_key_or_namespace_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    key, prompt, cache_key = SECRETS
    flags = ("--mock=mock-fast", f"--api-key={key}", f"--admin-key={key}-too", "--access-log")
    admin = f"authorization: Bearer {key}-too\r\n"
    async with running(*flags) as server:
        body = predicates("mock-fast", 2, prompt * 10) | {"prompt_cache_key": cache_key}
        asked = await server.post("/v1/decisions", body, f"authorization: Bearer {key}\r\n")
        assert asked.status == 200
        shown = b"".join([(await get(server, path, headers=admin)).body for path in PATHS])
        status = json.loads((await get(server, "/status", headers=admin)).body)
    assert len(status["decisions"]) == 1
    assert not [secret for secret in SECRETS if secret.encode() in shown]
    assert not [secret for secret in SECRETS if secret in caplog.text]


async def test_the_status_says_who_holds_what_and_why_it_went_there() -> None:
    async with running(*FLAGS) as server, server.client() as client:
        await server.occupy(client, "/v1/systemone", nouls("mock-stuck", 3))
        status = json.loads((await get(server, "/status")).body)
    permits = status["permits"]
    assert (permits["total"], permits["held"], permits["free"]) == (8, 3, 5)
    (holder,) = permits["requests"]
    assert (holder["weight"], holder["doing"]) == (3, ["admitted", "dispatched"])
    assert {model["name"] for model in status["models"]} >= {"mock-fast", "mock-down"}
    down = next(model for model in status["models"] if model["name"] == "mock-down")
    assert (down["ready"], down["workers"]) == (False, [])


async def test_the_explanation_of_a_decision_is_a_table() -> None:
    async with running("--mock=mock-fast") as server:
        for _ in range(2):
            await server.post("/v1/decisions", predicates("mock-fast", 1, "It rains. " * 40))
        status = json.loads((await get(server, "/status")).body)
    first, second = status["decisions"]
    assert second["rows"][0]["chosen"]
    assert second["rows"][0]["rank"] == second["worker"] == first["worker"]
    assert second["rows"][0]["held_blocks"] == second["overlap"] > 0
    assert {row["rank"] for row in second["rows"]} == {"w0", "w1", "w2", "w3"}
    (model,) = status["models"]
    (worker,) = [w for w in model["workers"] if w["rank"] == second["worker"]]
    assert worker["coverage_blocks"] >= second["overlap"]
    assert worker["predicted_tokens"] == worker["measured_tokens"] > 0


async def test_readiness_names_the_model_that_nobody_serves() -> None:
    async with running("--mock=mock-fast", "--mock=mock-down:down") as server:
        response = await get(server, "/readyz", host="anything")
        told: Any = json.loads(response.body)
        assert response.status == 503
        assert told["models"]["mock-fast"]["ready"]
        assert not told["models"]["mock-down"]["ready"]
    async with running("--mock=mock-fast") as server:
        assert (await get(server, "/readyz")).status == 200


# -- the stream


async def events(client: Any, number: int) -> list[Any]:
    seen = b""
    with trio.fail_after(PATIENCE_SECONDS):
        while seen.count(b"event: status") < number or not seen.endswith(b"\n\n\r\n"):
            data = await client.stream.receive_some()
            assert data
            seen += data
    lines = [line for line in seen.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line[6:]) for line in lines]


STREAM = b"GET /status/stream HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_the_stream_follows_what_happens_and_seventeen_are_too_many() -> None:
    async with running("--mock=mock-fast") as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(server.client()) for _ in range(16)]
        for client in clients:
            await client.send(STREAM)
            (told,) = await events(client, 1)
            assert told["decisions"] == []
        busy = await get(server, "/status/stream")
        assert busy.status == 503
        await server.post("/v1/decisions", predicates("mock-fast", 1))
        (told,) = await events(clients[0], 1)
        assert len(told["decisions"]) == 1
        await clients[0].stream.aclose()
        with trio.fail_after(PATIENCE_SECONDS):
            while (await get_stream(server)) == 503:
                pass


async def get_stream(server: Running) -> int:
    async with server.client() as client:
        await client.send(STREAM)
        seen = b""
        with trio.fail_after(PATIENCE_SECONDS):
            while b"\r\n\r\n" not in seen:
                seen += await client.stream.receive_some()
        return int(seen.split(b" ")[1])


async def test_a_place_that_is_taken_between_asking_and_sending_is_not_given_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sent: list[bytes] = []

    async def send(piece: bytes) -> None:
        sent.append(piece)

    streams = StatusStreams(lambda: b"{}", limit=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streams.run, send)
        await trio.testing.wait_all_tasks_blocked()
        assert streams.full
        await streams.run(send)  # ends at once
        assert sent == [b"retry: 2000\n\n", b"event: status\ndata: {}\n\n"]
        await trio.sleep(100)  # nothing changes, and the stream says that it lives
        assert set(sent[2:]) == {b": still here\n\n"}
        assert len(sent[2:]) == 6
        nursery.cancel_scope.cancel()
    assert not streams.full


def test_the_page_takes_nothing_from_elsewhere_and_makes_no_markup_of_text() -> None:
    folder = Path(__file__).parents[2] / "examples" / "server" / "page"
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file
        assert "https://" not in text, file
    script = (folder / "page.js").read_text()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in script
    page = (folder / "page.html").read_text()
    assert "style=" not in page
    assert "onclick" not in page


# -- metrics


async def test_metrics_tell_models_apart_and_count_the_gate_once() -> None:
    async with running("--permits=8", "--mock=mock-fast", "--mock=mock-tie:tie") as server:
        await server.post("/v1/decisions", predicates("mock-fast", 1, "It rains. " * 40))
        response = await get(server, "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.body.decode().splitlines()
    assert [line for line in lines if line.startswith("kvlanes_permits ")] == [
        "kvlanes_permits 8.0"
    ]
    applied = {line for line in lines if line.startswith("kvlanes_lane_mutations_total")}
    assert any('model="mock-fast"' in line and not line.endswith(" 0.0") for line in applied)
    assert all(line.endswith(" 0.0") for line in applied if 'model="mock-tie"' in line)
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(families)) == len(families)
    assert len(list(text_string_to_metric_families(response.body.decode()))) == len(families)


async def test_metrics_are_the_operators_and_say_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running("--mock=mock-fast") as server:
        assert (await get(server, "/metrics", host="evil.example")).status == 421
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
        response = await get(server, "/metrics")
        assert response.status == 404
        assert b"kvlanes[metrics]" in response.body


async def test_all_streams_share_one_look(autojump_clock: trio.testing.MockClock) -> None:
    looks = 0

    def told() -> bytes:
        nonlocal looks
        looks += 1
        return b"%d" % looks

    async def send(piece: bytes) -> None:
        pass

    streams = StatusStreams(told)
    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(streams.run, send)
        await trio.sleep(9.9)
        assert looks == 20
        nursery.cancel_scope.cancel()
