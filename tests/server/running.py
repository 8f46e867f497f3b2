"""The example server in this run, its four official clients, and requests made by hand."""
# flake8: noqa: ASYNC113, ASYNC910, ASYNC912 - every wait below ends with its test

import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing
from openai import AsyncOpenAI, OpenAI
from typesafe_sdk import AsyncTypeSafeClient, RetryPolicy, TypeSafeClient

from examples.server.serving import serve
from examples.server.settings import parse_settings
from tests.http.raw import Client, Response, head

PATIENCE_SECONDS = 60.0  # only a broken test waits as long
Body = dict[str, Any]

# The flags of a black-box check, with shorter times.
FLAGS = shlex.split(
    "--permits 8 --max-questions 16 --deadline 0.5 --grace 0.25 --max-body 65536 "
    "--body-timeout 0.5 --alias jev-latest=mock-fast --mock mock-fast --mock mock-slow:latency=0.1 "
    "--mock mock-stuck:latency=60 --mock mock-stubborn:latency=60,stubborn=0.5 "
    "--mock mock-blocking:preflight=0.1 --mock mock-blocking-long:preflight=1 "
    "--mock mock-down:down --mock mock-bad:bad --mock mock-busy:busy --mock mock-refuse:refuse "
    "--mock mock-tie:tie"
)


@attrs.frozen
class Running:
    """A server that listens; the events are those of one in this run."""

    port: int
    stopping: trio.Event = attrs.field(factory=trio.Event)
    stopped: trio.Event = attrs.field(factory=trio.Event)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, **options: Any) -> OpenAI:
        given = {"api_key": "k", "max_retries": 0, **options}
        return OpenAI(base_url=f"{self.origin}/v1", **given)

    def async_openai(self, **options: Any) -> AsyncOpenAI:
        given = {"api_key": "k", "max_retries": 0, **options}
        return AsyncOpenAI(base_url=f"{self.origin}/v1", **given)

    def typesafe(self, **options: Any) -> TypeSafeClient:
        given = {"api_key": "k", "retry": RetryPolicy(max_retries=0), **options}
        return TypeSafeClient(base_url=self.origin, **given)

    def async_typesafe(self, **options: Any) -> AsyncTypeSafeClient:
        given = {"api_key": "k", "retry": RetryPolicy(max_retries=0), **options}
        return AsyncTypeSafeClient(base_url=self.origin, **given)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def post(self, path: str, body: Body, headers: str = "") -> Response:
        """One request on a connection of its own."""
        async with self.client() as client:
            return await post(client, path, body, headers)

    async def permits_free(self, count: int) -> bool:
        """Whether a request for that many permits is granted now: what a client can see."""
        response = await self.post("/v1/systemone", nouls("mock-fast", count))
        assert response.status in (200, 429), response
        return response.status == 200

    async def until_free(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        with trio.fail_after(seconds):
            while not await self.permits_free(count):
                pass

    async def occupy(self, client: Client, path: str, body: Body) -> None:
        """Send a request, and return when it holds its permits and waits for its worker."""
        await send(client, path, body)
        await trio.testing.wait_all_tasks_blocked(0.01)


async def post(client: Client, path: str, body: Body, headers: str = "") -> Response:
    await send(client, path, body, headers)
    return await client.response()


async def send(client: Client, path: str, body: Body, headers: str = "") -> None:
    data = json.dumps(body).encode()
    sent = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n{headers}"
    await client.send(head("POST", path, sent) + data)


def nouls(model: str, count: int, state: str = "It rains.") -> Body:
    questions = {f"q{i}": {"type": "noul", "instructions": f"Is it {i}?"} for i in range(count)}
    return {"model": model, "state": state, "questions": questions}


def predicates(model: str, count: int, given: str = "It rains.") -> Body:
    questions = [{"type": "predicate", "instructions": f"Is it {i}?"} for i in range(count)]
    return {"model": model, "input": given, "questions": questions}


@asynccontextmanager
async def running(*flags: str) -> AsyncIterator[Running]:
    """Serve until the block ends; then the server must stop by itself."""
    stopping, stopped = trio.Event(), trio.Event()
    settings = parse_settings(["--port", "0", *(flags or FLAGS)])

    async def run(task_status: trio.TaskStatus[int]) -> None:
        async with trio.open_nursery() as inner:
            listeners = await inner.start(serve, settings, stopping)
            task_status.started(listeners[0].socket.getsockname()[1])
        stopped.set()

    async with trio.open_nursery() as nursery:
        port = await nursery.start(run)
        yield Running(port, stopping, stopped)
        stopping.set()
        with trio.fail_after(PATIENCE_SECONDS):
            await stopped.wait()
