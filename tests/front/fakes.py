"""Engines that speak their protocol to the letter and die, or stand still, where told to.

Each is an HTTP server of its own in the test's Trio run, written on bare streams: a test can end
or stop one at every stage of an answer.
"""
# flake8: noqa: ASYNC910 - a stage is a checkpoint where a test wants one

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from examples.server.behaviour import Behaviour
from examples.server.tokens import tokenize
from examples.server.workers import PrefixCache, Scored, SimulatedWorker
from kvlanes.engine.decisions import (
    Contract,
    DecisionError,
    DecisionLimits,
    Usage,
    answer,
    error_reply,
    parse_decision,
    plan,
    reply,
)

MODEL = "org/model-8b"
BLOCK = 16
STAGES = ("begun", "read", "head", "first", "last")
"""Where an answer can end: before the request is read, before the head, after it, after the first
piece of the body, before the last."""

SCORED = frozenset({"/v1/completions", "/generate", "/v1/decisions", "/v1/systemone"})


class Gone(Exception):
    """The fake closes the connection here."""


@attrs.define(eq=False)
class FakeEngine:
    """What the engines have in common: a model, a cache, a tokeniser, ways to fail.

    Attributes:
        served: Requests for scores or decisions that were computed, in order.
        die_at: Stage at which the next scored request loses its connection.
        tokenised: Texts that it was asked to tokenise.
        deaths: How often that has happened.
        stall_at: Stage at which requests stand still until the client leaves.
        failing: The paths on which they happen.
        stalled: Set when one does.
        left: Set when a client left while its request stood still.
        salted: Whether the cache honours salts.
        hides_usage: Whether cached tokens are left out.
    """

    routes: dict[str, Callable[["FakeEngine", Any], "Answer"]]
    salted: bool = True
    hides_usage: bool = False
    salt_fields: tuple[str, ...] = ("cache_salt",)
    most_labels: int = 128
    served: list[dict[str, Any]] = attrs.field(factory=list)
    salts: list[str] = attrs.field(factory=list)
    die_at: str | None = None
    stall_at: str | None = None
    failing: frozenset[str] = SCORED
    stalled: trio.Event = attrs.field(factory=trio.Event)
    left: trio.Event = attrs.field(factory=trio.Event)
    deaths: int = 0
    tokenised: int = 0
    port: int = 0
    _cache: PrefixCache = attrs.field(factory=lambda: PrefixCache(100_000, BLOCK))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def compute(self, tokens: list[int], labels: list[int], body: Any) -> Scored:
        salt = next((str(body[name]) for name in self.salt_fields if body.get(name)), "")
        self.salts.append(salt)
        chain = self._cache.chain(tokens, salt if self.salted else "")
        cached = self._cache.cached_tokens(chain)
        self._cache.keep(chain)
        worker = SimulatedWorker(MODEL, Behaviour(), self._cache)
        return Scored(worker._logprobs(tokens, labels), cached)


@attrs.frozen
class Answer:
    """A status and the pieces of a body."""

    status: int
    pieces: list[bytes]
    stream: bool = False


def plain(status: int, value: Any) -> Answer:
    return Answer(status, [json.dumps(value).encode()])


def stream(*events: Any) -> Answer:
    pieces = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return Answer(200, [*pieces, b"data: [DONE]\n\n"], stream=True)


# -- routes


def list_models(engine: FakeEngine, body: Any) -> Answer:
    return plain(200, {"object": "list", "data": [{"id": MODEL, "max_model_len": 32_768}]})


def tokenise(engine: FakeEngine, body: Any) -> Answer:
    engine.tokenised += 1
    tokens = tokenize(body["prompt"])
    if body["add_special_tokens"]:
        tokens = [1, *tokens]
    return plain(200, {"count": len(tokens), "max_model_len": 32_768, "tokens": tokens})


def completions(engine: FakeEngine, body: Any) -> Answer:
    """vLLM: chunks with label log probabilities, then one with the usage."""
    assert body["max_tokens"] == 1
    assert body["stream"] is True, "a request that does not stream may go on when we leave"
    if body["model"] != MODEL:
        return plain(404, {"error": {"message": "The model does not exist."}})
    labels = body["logprob_token_ids"]
    if body.get("logprobs") is None:
        return plain(400, {"error": {"message": "logprob_token_ids requires logprobs"}})
    if body.get("cache_salt") == "":
        return plain(400, {"error": {"message": "cache_salt must be a non-empty string"}})
    if len(labels) > engine.most_labels:
        return plain(400, {"error": {"message": f"at most {engine.most_labels} token ids"}})
    scored = engine.compute(body["prompt"], labels, body)
    engine.served.append(body)
    key = "token_id:{}" if body.get("return_tokens_as_token_ids") else "{}"
    # The sampled token comes along, whether it was asked for or not.
    top = {key.format(0): -0.01, **dict(zip(map(key.format, labels), scored.logprobs))}
    details = None if engine.hides_usage else {"cached_tokens": scored.cached_tokens}
    usage = {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": details}
    chunk = {"text": "x", "index": 0, "logprobs": {"top_logprobs": [top]}, "finish_reason": None}
    done = {"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}
    return stream(
        {"choices": [chunk], "usage": None},
        {"choices": [done], "usage": None},
        {"choices": [], "usage": usage},
    )


def generate(engine: FakeEngine, body: Any) -> Answer:
    """SGLang: every event repeats the whole state."""
    assert body["sampling_params"]["max_new_tokens"] == 1
    assert body["stream"] is True
    labels = body["token_ids_logprob"]
    scored = engine.compute(body["input_ids"], labels, body)
    engine.served.append(body)
    rows = [[lp, label, None] for label, lp in zip(labels, scored.logprobs)]
    meta = {"cached_tokens": scored.cached_tokens, "output_token_ids_logprobs": [rows]}
    return stream({"text": "", "meta_info": meta}, {"text": "x", "meta_info": meta})


def native(contract: Contract) -> Callable[[FakeEngine, Any], Answer]:
    """An engine that answers a contract itself, with the field `cache_salt` besides."""

    def decide(engine: FakeEngine, body: Any) -> Answer:
        fields = {name: value for name, value in body.items() if name != "cache_salt"}
        try:
            decision = parse_decision(contract, json.dumps(fields).encode(), DecisionLimits())
            branches = plan(decision, tokenize, DecisionLimits())
        except DecisionError as error:
            given = error_reply(contract, error.fault)
            return Answer(given.status, [given.body])
        if decision.model != MODEL:
            return plain(404, {"error": {"code": "model_not_found"}})
        scored = [engine.compute(list(b.tokens), list(b.labels), body) for b in branches]
        engine.served.append(body)
        answers = [answer(q, s.logprobs) for q, s in zip(decision.questions, scored)]
        read = sum(len(branch.tokens) for branch in branches)
        usage = Usage(read, sum(s.cached_tokens for s in scored))
        text = reply(decision, MODEL, answers, usage).body
        return Answer(200, [text[:40], text[40:]])

    return decide


def vllm(*, natively: bool = False, **options: Any) -> FakeEngine:
    routes: dict[str, Callable[[FakeEngine, Any], Answer]] = {
        "/v1/models": list_models,
        "/tokenize": tokenise,
        "/v1/completions": completions,
    }
    if natively:
        routes |= {contract.value: native(contract) for contract in Contract}
    return FakeEngine(routes, **options)


def sglang(**options: Any) -> FakeEngine:
    routes: dict[str, Callable[[FakeEngine, Any], Answer]] = {
        "/v1/models": list_models,
        "/tokenize": tokenise,
        "/generate": generate,
    }
    return FakeEngine(routes, salt_fields=("extra_key",), **options)


# -- the wire


@asynccontextmanager
async def running(engine: FakeEngine) -> AsyncIterator[FakeEngine]:
    """Serve on a port of its own; leaving kills it, open connections included."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        engine.port = listeners[0].socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, partial(_connection, engine), listeners)
        yield engine
        nursery.cancel_scope.cancel()


async def _connection(engine: FakeEngine, wire: trio.SocketStream) -> None:
    async with wire:
        try:
            while await _exchange(engine, wire):
                pass
        except (Gone, trio.BrokenResourceError):
            return


async def _exchange(engine: FakeEngine, wire: trio.SocketStream) -> bool:
    data = await wire.receive_some()
    if not data:
        return False
    path = data.split(b" ", 2)[1].decode()
    await _stage(engine, wire, path, "begun")
    while b"\r\n\r\n" not in data:
        data += await wire.receive_some()
    head, _, body = data.partition(b"\r\n\r\n")
    _, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await wire.receive_some()
    await _stage(engine, wire, path, "read")
    route = engine.routes.get(path)
    given = route(engine, json.loads(body or b"{}")) if route else plain(404, {"detail": "no"})
    await _respond(engine, wire, path, given)
    return True


async def _respond(engine: FakeEngine, wire: trio.SocketStream, path: str, given: Answer) -> None:
    kind = "text/event-stream" if given.stream else "application/json"
    await wire.send_all(
        f"HTTP/1.1 {given.status} X\r\ncontent-type: {kind}\r\n"
        "transfer-encoding: chunked\r\n\r\n".encode()
    )
    await _stage(engine, wire, path, "head")
    for i, piece in enumerate(given.pieces):
        if i == len(given.pieces) - 1:
            await _stage(engine, wire, path, "last")
        await wire.send_all(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if i == 0:
            await _stage(engine, wire, path, "first")
    await wire.send_all(b"0\r\n\r\n")


async def _stage(engine: FakeEngine, wire: trio.SocketStream, path: str, stage: str) -> None:
    if path not in engine.failing:
        return
    if engine.die_at == stage:
        engine.die_at = None
        engine.deaths += 1
        raise Gone
    if engine.stall_at == stage:
        engine.stalled.set()
        # Only the end of the client's stream lets it go on: what else comes is its request.
        while await wire.receive_some():
            pass
        engine.left.set()
        raise Gone
