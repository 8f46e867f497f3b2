"""Both official clients, unmodified, sync and async, over TCP: each kind of question, typed."""
# flake8: noqa: ASYNC124, ASYNC910, ASYNC912 - asynchronous in order to run in a loop

import json
import logging
from typing import Any

import httpx2
import openai
import pytest
import trio
from openai.types import Decision
from typesafe_sdk import (
    Choice,
    Noul,
    RetryPolicy,
    Score,
    SystemOneResponse,
    TypeSafeAPIError,
)

from tests.decisions.bodies import TEXT, decisions
from tests.server.running import Running, nouls, running

# Long enough that the TypeSafe client compresses it: that is what it does from 1,024 bytes on.
LONG = TEXT * 40
QUESTIONS: dict[str, Any] = {
    "route": Choice(
        instructions="Choose the responsible team.",
        criteria={"billing": "Payments", "technical": "Software"},
    ),
    "urgent": Noul(instructions="Action is needed today."),
    "severity": Score(instructions="Rate the impact.", criteria=["Low", "Moderate", "High"]),
}


def create(client: openai.OpenAI, **given: Any) -> Decision:
    with client:
        return client.decisions.create(**{**decisions(), **given})


async def create_async(client: openai.AsyncOpenAI, **given: Any) -> Decision:
    async with client:
        return await client.decisions.create(**{**decisions(), **given})


def check_decision(found: Decision) -> None:
    choice, predicate, score = found.answers
    assert choice.type == "choice"
    assert choice.name == "route"
    assert choice.choice in {"billing", "technical"}
    assert sum(p.probability for p in choice.probabilities) == pytest.approx(1)
    assert predicate.type == "predicate"
    assert predicate.name is None
    assert 0 <= predicate.probability <= 1
    assert score.type == "score"
    assert [(p.value, p.label) for p in score.probabilities] == [
        (0, "Low"),
        (1, "Moderate"),
        (2, "High"),
    ]
    assert found.model == "mock-fast"
    assert found.usage.total_tokens == found.usage.input_tokens > 0
    assert found._request_id is not None


def check_system_one(found: SystemOneResponse) -> None:
    assert found.choices["route"].choice in {"billing", "technical"}
    assert 0 <= found.nouls["urgent"].noul <= 1
    assert found.scores["severity"].legend == {0: "Low", 1: "Moderate", 2: "High"}
    assert sum(found.scores["severity"].probabilities.values()) == pytest.approx(1)
    assert found.model == "mock-fast"
    assert found.usage.input_tokens
    assert found.request_id


@pytest.mark.parametrize("given", [TEXT, LONG], ids=["short", "long"])
async def test_openai_sync(given: str) -> None:
    async with running() as server:
        client = server.openai(_strict_response_validation=True)
        check_decision(await trio.to_thread.run_sync(lambda: create(client, input=given)))


@pytest.mark.parametrize("given", [TEXT, LONG], ids=["short", "long"])
async def test_openai_async_on_trio(given: str) -> None:
    async with running() as server:
        client = server.async_openai(_strict_response_validation=True)
        check_decision(await create_async(client, input=given))


@pytest.mark.parametrize("state", [TEXT, LONG, {"a": [LONG]}], ids=["short", "long", "object"])
async def test_typesafe_sync(state: Any) -> None:
    def ask(server: Running) -> SystemOneResponse:
        with server.typesafe() as client:
            return client.system_one(state, QUESTIONS)

    async with running() as server:
        check_system_one(await trio.to_thread.run_sync(ask, server))


@pytest.mark.parametrize("state", [TEXT, LONG, {"a": [LONG]}], ids=["short", "long", "object"])
async def test_typesafe_async_on_trio(state: Any) -> None:
    async with running() as server, server.async_typesafe() as client:
        check_system_one(await client.system_one(state, QUESTIONS))


async def test_typesafe_really_sends_zstd() -> None:
    sent: list[str | None] = []

    async def note(request: httpx2.Request) -> None:
        sent.append(request.headers.get("content-encoding"))

    http_client = httpx2.AsyncClient(event_hooks={"request": [note]})
    async with running() as server, server.async_typesafe(http_client=http_client) as client:
        await client.system_one(LONG, QUESTIONS)
        await client.system_one("short", {"q": Noul(instructions="So?")})
    assert sent == ["zstd", None]


async def test_the_same_words_get_the_same_numbers_from_both_contracts() -> None:
    async with running() as server, server.async_typesafe() as client:
        theirs = await create_async(server.async_openai())
        ours = await client.system_one(TEXT, QUESTIONS)
    choice, predicate, score = theirs.answers
    assert choice.type == "choice"
    assert [p.probability for p in choice.probabilities] == list(
        ours.choices["route"].probabilities.values()
    )
    assert predicate.type == "predicate"
    assert predicate.probability == ours.nouls["urgent"].noul
    assert score.type == "score"
    assert score.score == ours.scores["severity"].score


async def test_one_list_of_models_serves_both_clients() -> None:
    async with running() as server:
        async with server.async_openai() as theirs:
            ids = [model.id async for model in theirs.models.list()]
        async with server.async_typesafe() as ours:
            names = [model.name for model in (await ours.models.list()).models]
    assert ids == names
    assert {"mock-fast", "jev-latest"} <= set(ids)


@pytest.mark.parametrize(
    ("model", "error", "status"),
    [
        ("unknown", openai.NotFoundError, 404),
        ("mock-down", openai.InternalServerError, 503),
        ("mock-busy", openai.RateLimitError, 429),
        ("mock-bad", openai.InternalServerError, 500),
        ("mock-stuck", openai.InternalServerError, 504),
        (" ", openai.BadRequestError, 400),
    ],
)
async def test_openai_raises_its_typed_errors(
    model: str, error: type[openai.APIStatusError], status: int
) -> None:
    async with running() as server:
        with pytest.raises(error) as caught:
            await create_async(server.async_openai(), model=model)
    assert caught.value.status_code == status
    assert caught.value.request_id
    assert caught.value.code == caught.value.type


@pytest.mark.parametrize(
    ("model", "status"),
    [("unknown", 404), ("mock-down", 503), ("mock-busy", 429), ("mock-refuse", 422)],
)
async def test_typesafe_raises_its_typed_errors(model: str, status: int) -> None:
    async with running() as server, server.async_typesafe() as client:
        with pytest.raises(TypeSafeAPIError) as caught:
            await client.system_one(TEXT, QUESTIONS, model=model)
    assert caught.value.status == status
    assert caught.value.request_id


async def test_openai_reads_a_refusal_as_such() -> None:
    async with running() as server:
        found = await create_async(server.async_openai(), model="mock-refuse")
    assert [answer.type for answer in found.answers] == ["refusal", "predicate", "refusal"]
    assert found.answers[0].name == "route"


async def test_a_client_told_to_come_back_in_a_second_succeeds_then() -> None:
    flags = ("--permits", "3", "--mock", "mock-fast", "--mock", "mock-slow:latency=0.5")
    async with running(*flags) as server, server.client() as holder:
        await server.occupy(holder, "/v1/systemone", nouls("mock-slow", 3))
        began = trio.current_time()
        async with server.async_typesafe(retry=RetryPolicy(max_retries=1)) as client:
            check_system_one(await client.system_one(TEXT, QUESTIONS, model="mock-fast"))
        assert trio.current_time() - began >= 1.0


async def test_prompts_and_keys_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = "correct horse battery staple"
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("openai").setLevel(logging.ERROR)
        async with running() as server:
            for model in ("mock-fast", "mock-bad", "mock-stubborn", "unknown"):
                body = {**decisions(), "model": model, "input": secret}
                headers = f"authorization: Bearer {secret}\r\n"
                response = await server.post("/v1/decisions", body, headers)
                assert secret not in json.dumps(response.headers)
    assert secret not in caplog.text
