"""An engine is known by what it did when it was asked, and found again when it was away."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from examples.server.upstream import Abilities, Upstream, open_blocking_client, open_client
from examples.server.upstream_fleet import Fleet, open_fleet
from examples.server.upstream_probe import ProbeFailed
from examples.server.upstream_tokens import Endpoint, EngineTokenizer
from kvlanes.engine import EngineConfig, open_engine
from kvlanes.engine.decisions import Contract, DecisionError
from tests.front.fakes import MODEL, FakeEngine, running, sglang, vllm

BOTH = {Contract.DECISIONS: True, Contract.SYSTEMONE: True}


@asynccontextmanager
async def fleet_of(
    *fakes: FakeEngine, isolate: bool = False, tokenizer: Any = None
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(running(fake))
        engine = await stack.enter_async_context(open_engine(EngineConfig(block_size=16)))
        urls = [fake.url for fake in fakes]
        yield await stack.enter_async_context(
            open_fleet(urls, engine, tokenizer=tokenizer, isolate=isolate)
        )


async def abilities(fake: FakeEngine, isolate: bool) -> Abilities:
    async with fleet_of(fake, isolate=isolate) as fleet:
        return fleet.workers[fake.name].abilities


@pytest.mark.parametrize(
    ("make", "isolate", "native", "path"),
    [
        (vllm, False, {}, "/v1/completions"),
        (vllm, True, {}, "/v1/completions"),
        (sglang, False, {}, "/generate"),
        (sglang, True, {}, "/generate"),
        (lambda: vllm(natively=True), False, BOTH, "/v1/completions"),
        # System One does not say what was cached, so isolation cannot be seen there.
        (lambda: vllm(natively=True), True, {Contract.DECISIONS: True}, "/v1/completions"),
        (lambda: vllm(salted=False), False, {}, "/v1/completions"),
    ],
)
async def test_a_probe_finds_what_an_engine_does(
    make: Callable[[], FakeEngine], isolate: bool, native: Any, path: str
) -> None:
    found = await abilities(make(), isolate)
    assert found.native == native
    assert found.scoring is not None
    assert found.scoring.path == path
    assert (found.model, found.tokenizes, found.context_tokens) == (MODEL, True, 32_768)


async def refusal(fake: FakeEngine, isolate: bool = False) -> str:
    """Why an engine is not let in."""
    async with running(fake), open_engine(EngineConfig(block_size=16)) as engine:
        with pytest.raises(ProbeFailed) as info:
            async with open_fleet([fake.url], engine, tokenizer=None, isolate=isolate):
                pass
    return str(info.value)


@pytest.mark.parametrize("natively", [False, True])
async def test_tenants_are_not_let_on_an_engine_that_mixes_their_prefixes(natively: bool) -> None:
    why = await refusal(vllm(natively=natively, salted=False), isolate=True)
    assert "salt that keeps tenants apart" in why


async def test_an_engine_that_hides_its_cache_is_refused() -> None:
    assert "does not report cached tokens" in await refusal(vllm(hides_usage=True))


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("/v1/completions", "neither answers decisions nor reads"),
        ("/tokenize", "neither answers decisions nor reads"),
        ("/v1/models", "lists no model"),
    ],
)
async def test_an_engine_that_can_do_nothing_here_is_refused(route: str, why: str) -> None:
    fake = vllm()
    del fake.routes[route]
    assert why in await refusal(fake)


def test_an_engine_that_was_away_is_found_when_it_comes() -> None:
    async def main() -> None:
        fake = vllm(failing=frozenset({"/v1/models"}))
        async with fleet_of() as fleet, running(fake), open_client(fake.url) as client:
            upstream = Upstream(fake.name, fake.url, Abilities("unknown"), client)
            fake.die_at = "read"
            assert not await fleet.find(upstream)
            assert fleet.workers == {}
            fake.die_at = "head"
            await fleet.keep_asking(upstream)
            assert list(fleet.workers) == [fake.name]

    # Real sockets and a clock that runs fast: nothing here is decided by how long it takes.
    trio.run(main, clock=trio.testing.MockClock(rate=50))


async def test_tokenising_goes_on_with_the_next_engine_and_stays_there() -> None:
    first, second = vllm(failing=frozenset({"/tokenize"})), vllm()
    with open_blocking_client([]) as client:
        async with running(first), running(second):
            endpoints = [Endpoint(fake.url, MODEL) for fake in (first, second)]
            tokenizer = EngineTokenizer(client, lambda: endpoints)
            first.die_at = "read"
            for _ in range(3):
                await trio.to_thread.run_sync(tokenizer, "Input:\nIt rains.")
            assert (first.deaths, first.tokenised, second.tokenised) == (1, 0, 3)


async def test_labels_are_asked_for_once_and_without_special_tokens() -> None:
    with open_blocking_client([]) as client:
        await tokenising(client, "http://127.0.0.1:9", vllm())


async def tokenising(client: httpx2.Client, dead: str, fake: FakeEngine) -> None:
    async with running(fake):
        endpoints = [Endpoint(dead, MODEL), Endpoint(fake.url, MODEL)]
        tokenizer = EngineTokenizer(client, lambda: endpoints)
        tokens = await trio.to_thread.run_sync(tokenizer, "Input:\nIt rains.")
        label = await trio.to_thread.run_sync(tokenizer, "yes")
        assert tokens[0] == 1, "a prompt begins with the model's special token"
        assert len(label) == 1, "a label does not"
    # Labels are remembered; a prompt is not.
    assert tokenizer("yes") == label
    with pytest.raises(DecisionError, match="no worker can serve"):
        await trio.to_thread.run_sync(tokenizer, "Input:\nIt rains.")
