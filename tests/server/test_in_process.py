"""The official async clients against the server's routes in one Trio run, without a socket."""
# flake8: noqa: ASYNC910 - what is asked decides

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
import trio
import trio.testing
from openai import AsyncOpenAI, RateLimitError
from typesafe_sdk import AsyncTypeSafeClient, Noul

from examples.server.app import App
from examples.server.serving import open_app
from examples.server.settings import parse_settings
from kvlanes.engine import AdmissionGate
from kvlanes.engine.http import HttpRequest
from kvlanes.engine.http._decoding import decoder
from tests.decisions.bodies import TEXT, decisions
from tests.server.running import FLAGS

MEBIBYTE = 1024 * 1024


class InProcess(httpx2.AsyncBaseTransport):
    """Hands requests to the routes; what `engine.http` does to bodies is done here."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        async def read() -> bytes:
            encoding = request.headers.get("content-encoding")
            decoding = decoder(encoding, MEBIBYTE, MEBIBYTE)
            body = decoding.feed(await request.aread())
            decoding.finish()
            return body

        headers = tuple((name.lower(), value) for name, value in request.headers.raw)
        asked = HttpRequest(request.method, request.url.path, "", headers, read)
        found = await self._app.handle(asked)
        said = [("content-type", found.content_type), *found.headers]
        return httpx2.Response(found.status, headers=said, content=found.body)


@asynccontextmanager
async def clients() -> AsyncIterator[tuple[AsyncOpenAI, AsyncTypeSafeClient, AdmissionGate]]:
    async with open_app(parse_settings(FLAGS)) as (app, gate):
        theirs = AsyncOpenAI(
            base_url="http://server/v1",
            api_key="k",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=InProcess(app)),
        )
        ours = AsyncTypeSafeClient(base_url="http://server", api_key="k", transport=InProcess(app))
        async with theirs, ours:
            yield theirs, ours, gate
        assert gate.free == gate.total


@pytest.mark.parametrize("text", [TEXT, TEXT * 40], ids=["plain", "zstd"])
async def test_both_clients_get_the_same_numbers(text: str) -> None:
    async with clients() as (theirs, ours, _):
        found = await theirs.decisions.create(**{**decisions(), "input": text})
        same = await ours.system_one(text, {"q": Noul(instructions="Action is needed today.")})
    predicate = found.answers[1]
    assert predicate.type == "predicate"
    assert predicate.probability == same.nouls["q"].noul
    assert same.request_id


async def test_a_cancelled_caller_gives_everything_back() -> None:
    async with clients() as (theirs, _, gate):
        async with trio.open_nursery() as nursery:
            stuck = {**decisions(), "model": "mock-stuck"}
            nursery.start_soon(lambda: theirs.decisions.create(**stuck))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert gate.free == gate.total - len(stuck["questions"])
            nursery.cancel_scope.cancel()
        assert gate.free == gate.total


async def test_callers_beyond_the_permits_are_refused() -> None:
    async with clients() as (theirs, _, gate):
        with gate.admit_nowait(gate.total - 2), pytest.raises(RateLimitError):
            await theirs.decisions.create(**decisions())  # three questions
        await theirs.decisions.create(**decisions())
