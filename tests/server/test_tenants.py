"""Who may ask, and whose prefixes are shared."""
# flake8: noqa: ASYNC910 - every request is one

import json

import pytest

from examples.server.tenants import Tenants, bearer
from kvlanes.engine.decisions import Contract, Decision, Predicate
from tests.http.raw import head
from tests.server.running import Running, predicates, running

STATE = "A long state that every caller sends. " * 10


def decision(cache_key: str | None = None, *, reuse: bool = True) -> Decision:
    questions = (Predicate(None, "So?"),)
    return Decision(Contract.DECISIONS, "m", STATE, questions, cache_key, reuse)


async def cached(server: Running, key: str, cache_key: str | None = None) -> int:
    body = {**predicates("mock-fast", 1, STATE), "prompt_cache_key": cache_key}
    response = await server.post("/v1/decisions", body, f"authorization: Bearer {key}\r\n")
    assert response.status == 200
    details = json.loads(response.body)["usage"]["input_tokens_details"]
    assert isinstance(details["cached_tokens"], int)
    return details["cached_tokens"]


async def test_callers_do_not_share_prefixes_by_default() -> None:
    async with running() as server:
        assert await cached(server, "one") == 0
        assert await cached(server, "two") == 0
        assert await cached(server, "one") > 0
        assert await cached(server, "one", "part") == 0
        assert await cached(server, "one", "part") > 0


async def test_nobody_shares_anything_in_scope_request() -> None:
    async with running("--cache-scope", "request") as server:
        assert [await cached(server, "one") for _ in range(2)] == [0, 0]


async def test_everybody_shares_everything_in_scope_server() -> None:
    async with running("--cache-scope", "server") as server:
        assert await cached(server, "one") == 0
        assert await cached(server, "two", "part") > 0


async def test_a_wrong_key_is_refused_before_the_body_is_read() -> None:
    async with running("--api-key", "right", "--api-key", "other") as server:
        for key in ("", "wrong", "right ", "righ", "rightx"):
            async with server.client() as client:
                said = f"authorization: Bearer {key}x\r\ncontent-length: 99\r\n"
                await client.send(head("POST", "/v1/decisions", said))
                response = await client.response()
                assert response.status == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert json.loads(response.body)["error"]["code"] == "invalid_api_key"
        assert await cached(server, "right") == 0
        assert await cached(server, "other") == 0


async def test_health_needs_no_key_and_the_list_of_models_does() -> None:
    async with running("--api-key", "right") as server, server.client() as client:
        assert (await client.request(path="/healthz", method="GET")).status == 200
        assert (await client.request(path="/v1/models", method="GET")).status == 401
        headers = "authorization: bearer right\r\n"
        response = await client.request(path="/v1/models", method="GET", headers=headers)
        assert response.status == 200


def test_a_namespace_tells_no_key_and_differs_between_servers() -> None:
    one, two = Tenants.make("caller", ("secret",)), Tenants.make("caller", ("secret",))
    assert one.namespace("secret", decision()) == one.namespace("secret", decision())
    assert one.namespace("secret", decision()) != two.namespace("secret", decision())
    assert "secret" not in repr(one) + one.namespace("secret", decision("secret"))


def test_parts_of_a_namespace_cannot_be_shifted() -> None:
    tenants = Tenants.make("caller", ())
    assert tenants.namespace("ab", decision("c")) != tenants.namespace("a", decision("bc"))
    assert tenants.namespace("ab", decision("")) == tenants.namespace("ab", decision(None))


def test_who_wants_no_caching_gets_a_namespace_of_its_own() -> None:
    tenants = Tenants.make("server", ())
    unshared = decision(reuse=False)
    assert tenants.namespace("a", unshared) != tenants.namespace("a", unshared)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (None, ""),
        ("", ""),
        ("Bearer", ""),
        ("Bearer k", "k"),
        ("bearer  k ", "k"),
        ("Basic k", ""),
    ],
)
def test_bearer_reads_the_key(header: str | None, key: str) -> None:
    assert bearer(header) == key
