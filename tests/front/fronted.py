"""A server in front of fake engines, which must end with balanced books."""
# flake8: noqa: ASYNC910 - every wait is in what is called

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import trio

from tests.front.fakes import FakeEngine, vllm
from tests.front.fakes import running as serving_fake
from tests.http.raw import Response
from tests.server.running import Body, Running, running

PATIENCE_SECONDS = 10.0


def native() -> FakeEngine:
    return vllm(natively=True)


@attrs.frozen
class Fronted:
    """A server in front of fakes."""

    server: Running
    fakes: Sequence[FakeEngine]

    async def ask(self, body: Body, headers: str = "", path: str = "/v1/decisions") -> Response:
        return await self.server.post(path, body, headers)

    async def status(self) -> Any:
        async with self.server.client() as client:
            local = f"host: 127.0.0.1:{self.server.port}\r\n"
            await client.send(f"GET /status HTTP/1.1\r\n{local}\r\n".encode())
            return json.loads((await client.response()).body)

    async def balanced(self) -> None:
        """Every permit, place and dispatch comes back."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not _balanced(status := await self.status()):
                pass
        assert status["permits"]["requests"] == []

    def by_name(self, worker: str) -> FakeEngine:
        return next(fake for fake in self.fakes if fake.name == worker)


def _balanced(status: Any) -> bool:
    (model,) = status["models"]
    running_now = sum(worker["requests"] for worker in model["workers"])
    held = (status["permits"]["held"], model["open_requests"], model["dispatched"], running_now)
    return held == (0, 0, 0, 0)


@asynccontextmanager
async def fronting(*fakes: FakeEngine, flags: Sequence[str] = ()) -> AsyncIterator[Fronted]:
    async with AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(serving_fake(fake))
        workers = [f"--worker=m={fake.url}" for fake in fakes]
        given = ("--permits=8", "--deadline=20", "--grace=0.25", *workers, *flags)
        server = await stack.enter_async_context(running(*given))
        for fake in fakes:
            fake.served.clear()
            fake.salts.clear()
        fronted = Fronted(server, fakes)
        yield fronted
        await fronted.balanced()


def context(number: int) -> str:
    return f"Case {number}. " + "A customer was charged twice and asks for a refund. " * 20


def worker_of(response: Response) -> str:
    assert response.status == 200, response
    return response.headers["x-kvlanes-route"].partition(";")[0]
