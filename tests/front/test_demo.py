"""One command, a page that lives, and every permit back at the end."""
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

from examples.server.demo import Demo
from kvlanes.engine.http import HttpRequest, HttpResponse
from tests.http.raw import Client, serving

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 30.0
END = re.compile(r"permits free = (\d+), total = (\d+)\n$")


@attrs.define(eq=False)
class Running:
    process: trio.Process
    said: str = ""

    async def until(self, text: str) -> None:
        assert self.process.stdout is not None
        with trio.fail_after(PATIENCE_SECONDS):
            while text not in self.said:
                data = await self.process.stdout.receive_some()
                assert data, self.said
                self.said += data.decode()

    async def rest(self) -> int:
        """Read to the end; the exit code."""
        assert self.process.stdout is not None
        with trio.fail_after(PATIENCE_SECONDS):
            async for data in self.process.stdout:
                self.said += data.decode()
            return await self.process.wait()

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.said)
        assert found, self.said
        return int(found[1])

    async def status(self) -> dict[str, int]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            client = Client(stream)
            await client.send(b"GET /status HTTP/1.1\r\nhost: localhost\r\n\r\n")
            permits: dict[str, int] = json.loads((await client.response()).body)["permits"]
            return permits


@asynccontextmanager
async def demo(*flags: str) -> AsyncIterator[Running]:
    command = [sys.executable, "-m", "examples.server", "--port", "0", *flags]
    process = await trio.lowlevel.open_process(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        await process.wait()
        assert process.stdout is not None
        await process.stdout.aclose()


async def test_the_figures_move_and_every_permit_comes_back() -> None:
    async with demo("--demo", "4") as running:
        await running.until("curl")
        with trio.fail_after(PATIENCE_SECONDS):
            while (await running.status())["held"] == 0:
                pass
        assert await running.rest() == 0
    ended = END.search(running.said)
    assert ended, running.said
    assert ended[1] == ended[2] == "12"
    assert " answered" in running.said
    assert " hung up" in running.said


async def test_a_signal_ends_it_early_in_the_same_words() -> None:
    async with demo("--demo", "1000", "--api-key", "k", "--admin-key", "a") as running:
        await running.until("curl")
        running.process.send_signal(signal.SIGINT)
        assert await running.rest() == 0
    assert END.search(running.said), running.said


async def test_permits_that_do_not_come_back_are_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def handle(request: HttpRequest) -> HttpResponse:
        if request.path == "/status":
            return HttpResponse(200, json.dumps({"permits": {"free": 11, "total": 12}}).encode())
        return HttpResponse(200, b"{}")

    enough = trio.Event()
    enough.set()
    async with serving(handle) as served:
        assert not await Demo(served.port, None, None, settle_seconds=0.3).run(1.0, enough)
    assert "permits free = 11, total = 12" in capsys.readouterr().out
