"""Finding out what an engine can do, by asking it to do it.

What it says about itself is not believed: a route may exist and refuse this model, and an unknown
field (a salt, a list of labels) may be ignored in silence. So each ability is used once.
"""
# flake8: noqa: ASYNC910 - what there is nothing to ask for is not asked

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import trio

from examples.server.upstream import Abilities, Upstream
from examples.server.upstream_scoring import SCORINGS, UsageHidden
from examples.server.upstream_tokens import EngineTokenizer, Tokenize
from examples.server.workers import WorkerBusy
from kvlanes.engine import ConfigError
from kvlanes.engine.decisions import (
    Contract,
    DecisionError,
    DecisionLimits,
    Json,
    parse_decision,
)

_ASKED: dict[Contract, tuple[str, Json]] = {
    Contract.DECISIONS: ("input", [{"type": "predicate", "instructions": "Is this a probe?"}]),
    Contract.SYSTEMONE: ("state", {"probe": {"type": "noul", "instructions": "Is this a probe?"}}),
}
# Enough to fill whole blocks of any engine, so that a second look finds some of it cached.
_WORDS = 1200

if TYPE_CHECKING:
    import httpx2

Measure = Callable[[str, str], Awaitable[int | None]]  # (text, salt) -> cached tokens, if said


class ProbeFailed(ConfigError):
    """An engine that this server cannot use; the message says why."""


@attrs.frozen
class Wanted:
    """What an engine must offer here.

    Attributes:
        tokenizer: The model's tokeniser, where a file gives it.
        isolate: Tenants must not share prefixes: an ability that was not seen to keep salts
            apart is not used.
        blocking: Asks tokenise endpoints, from threads.
    """

    tokenizer: Tokenize | None
    isolate: bool
    blocking: "httpx2.Client" = attrs.field(repr=False)


async def probe(upstream: Upstream, wanted: Wanted) -> Upstream:
    """Try everything that an engine might do. Always a checkpoint, a dozen requests.

    Args:
        upstream: An engine of which only the address is known.
        wanted: What it must offer.

    Returns:
        The same engine, with its abilities.

    Raises:
        WorkerUnreachable, WorkerBroke: It does not answer, or dies.
        ProbeFailed: It can do nothing that this server needs.
    """
    model, context_tokens = await _model(upstream)
    upstream = attrs.evolve(upstream, abilities=Abilities(model, context_tokens=context_tokens))
    upstream = await _try_tokenizing(upstream, wanted)
    for contract in Contract:
        upstream = await _try_native(upstream, contract, wanted)
    upstream = await _try_scoring(upstream, wanted)
    if not upstream.abilities.native and upstream.abilities.scoring is None:
        salted = ""
        if wanted.isolate:
            salted = ", under a salt that keeps tenants apart (--cache-scope server asks for none)"
        raise ProbeFailed(
            f"worker {upstream.name!r} neither answers decisions nor reads label log "
            f"probabilities{salted}"
        )
    return upstream


async def _model(upstream: Upstream) -> tuple[str, int | None]:
    try:
        listed = json.loads(await upstream.get("/v1/models"))["data"][0]
        return str(listed["id"]), listed.get("max_model_len")
    except (DecisionError, ValueError, LookupError, TypeError) as error:
        raise ProbeFailed(f"worker {upstream.name!r} lists no model at /v1/models") from error


async def _try_tokenizing(upstream: Upstream, wanted: Wanted) -> Upstream:
    able = attrs.evolve(upstream.abilities, tokenizes=True)
    candidate = attrs.evolve(upstream, abilities=able)
    tokenizer = EngineTokenizer(wanted.blocking, lambda: [candidate.endpoint])
    try:
        await trio.to_thread.run_sync(tokenizer, "yes")
    except DecisionError:
        return upstream
    return candidate


async def _try_native(upstream: Upstream, contract: Contract, wanted: Wanted) -> Upstream:
    async def measure(text: str, salt: str) -> int | None:
        field, questions = _ASKED[contract]
        body: dict[str, Json] = {"model": "probe", field: text, "questions": questions}
        decision = parse_decision(contract, json.dumps(body).encode(), DecisionLimits())
        answer = await upstream.decide(decision, "probe", body, salt)
        share = answer.cached_share
        return None if share is None else round(share * _WORDS)

    found = await _found(measure, wanted.isolate)
    if found is None:
        return upstream
    return attrs.evolve(upstream, abilities=upstream.abilities.answering(contract, salted=found))


async def _try_scoring(upstream: Upstream, wanted: Wanted) -> Upstream:
    tokenize = wanted.tokenizer
    if tokenize is None and upstream.abilities.tokenizes:
        tokenize = EngineTokenizer(wanted.blocking, lambda: [upstream.endpoint])
    if tokenize is None:
        return upstream
    for scoring in SCORINGS:
        able = attrs.evolve(upstream, abilities=attrs.evolve(upstream.abilities, scoring=scoring))
        if await _found(_scorer(able, tokenize), wanted.isolate):
            return able
    return upstream


def _scorer(upstream: Upstream, tokenize: Tokenize) -> Measure:
    async def measure(text: str, salt: str) -> int:
        tokens = await trio.to_thread.run_sync(tokenize, text)
        labels = [(await trio.to_thread.run_sync(tokenize, word))[0] for word in ("yes", "no")]
        return (await upstream.score(0, tokens, labels, salt)).cached_tokens

    return measure


async def _found(measure: Measure, isolate: bool) -> bool | None:
    """Whether it works with a salt (`True`) or only without (`False`); `None`: not at all.

    Raises:
        ProbeFailed: It works, but hides its usage.
    """
    text = f"{secrets.token_hex(8)} " + "probe " * _WORDS
    if isolate:
        return True if await _separates(measure, text) else None
    for salt in ("a", ""):
        if await _cached(measure, text, salt) is not None:
            return bool(salt)
    return None


async def _separates(measure: Measure, text: str) -> bool:
    """Whether the same salt finds a prompt again, and another one does not."""
    cold = await _cached(measure, text, "a")
    again = await _cached(measure, text, "a")
    other = await _cached(measure, text, "b")
    return cold == 0 and other == 0 and bool(again)


async def _cached(measure: Measure, text: str, salt: str) -> int | None:
    try:
        return await measure(text, salt) or 0
    except DecisionError as error:
        if isinstance(error.__cause__, UsageHidden):
            raise ProbeFailed(str(error.__cause__)) from error
        return None
    except WorkerBusy as error:
        raise ProbeFailed("the engine is too busy to be probed") from error
