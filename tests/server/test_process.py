"""The server as a process: it starts without arguments, says where, and ends on a signal."""
# flake8: noqa: ASYNC910 - one process each

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.http.raw import Client
from tests.server.running import PATIENCE_SECONDS, nouls, post, send

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0  # imports alone take seconds on a busy machine


@attrs.frozen
class Process:
    process: trio.Process
    said: str

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)\n", self.said)
        assert found, self.said
        return int(found[1])

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def ended(self) -> int:
        with trio.fail_after(PATIENCE_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def started(*flags: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "examples.server", *flags]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        yield Process(process, await said_by(process))
    finally:
        process.kill()
        await process.wait()
        assert process.stdout is not None
        await process.stdout.aclose()


async def said_by(process: trio.Process) -> str:
    said = b""
    assert process.stdout is not None
    with trio.fail_after(START_SECONDS):
        while not said.endswith(b"}'\n"):
            data = await process.stdout.receive_some()
            assert data, said
            said += data
    return said.decode()


async def test_it_says_where_it_listens_and_a_curl_line_that_works() -> None:
    async with started("--port", "0") as server, server.client() as client:
        found = re.search(r"-d '(.*)'\n", server.said)
        assert found
        body = json.loads(found[1])
        seen = [await post(client, "/v1/decisions", body) for _ in range(2)]
        first, second = (json.loads(response.body)["usage"] for response in seen)
        assert first["input_tokens_details"]["cached_tokens"] == 0
        assert second["input_tokens_details"]["cached_tokens"] > 0
        server.process.send_signal(signal.SIGINT)
        assert await server.ended() == 0


async def test_sigterm_under_load_ends_within_its_bound_with_every_request_answered() -> None:
    flags = ("--port", "0", "--permits", "16", "--stop-seconds", "0.5", "--grace", "0.2")
    mocks = ("--mock", "fast:latency=0.2", "--mock", "stuck:latency=60,stubborn=0.1")
    async with started(*flags, *mocks) as server:
        statuses: list[int] = []

        async def ask(model: str, sent: trio.Event) -> None:
            async with server.client() as client:
                await send(client, "/v1/systemone", nouls(model, 2))
                sent.set()
                statuses.append((await client.response()).status)

        async with trio.open_nursery() as nursery:
            sent = [trio.Event() for _ in range(12)]
            for i, event in enumerate(sent):
                nursery.start_soon(ask, ("fast", "stuck")[i % 2], event)
            for event in sent:
                await event.wait()
            async with server.client() as client:  # all of them are being served by now
                assert (await client.request(path="/healthz", method="GET")).status == 200
            server.process.send_signal(signal.SIGTERM)
            began = trio.current_time()
            assert await server.ended() == 0
            assert trio.current_time() - began < 0.5 + 2 * 0.2 + 2.0
        assert len(statuses) == 12
        assert set(statuses) <= {200, 429, 503}
        assert 503 in statuses


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--host", "0.0.0.0"), "needs --api-key, or --insecure"),
        (("--permits", "4097"), "at most 4096"),
        (("--permits", "0"), "invalid"),
        (("--mock", "m:slow"), "invalid"),
        (("--mock", "m", "--alias", "a=x"), "no such model"),
        (("--unknown",), "unrecognized arguments"),
    ],
)
async def test_what_is_refused_is_refused_before_anything_starts(
    flags: tuple[str, ...], said: str
) -> None:
    command = [sys.executable, "-m", "examples.server", *flags]
    ended = await trio.run_process(command, capture_stderr=True, check=False, cwd=ROOT)
    assert ended.returncode == 2
    assert said in ended.stderr.decode()
