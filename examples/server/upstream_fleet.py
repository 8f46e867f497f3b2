"""The real engines of one model: found at the start, or as soon as they answer."""
# flake8: noqa: ASYNC910 - what finds nothing to wait for does not wait

import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from examples.server.plans import Plan, Prepared
from examples.server.upstream import (
    Abilities,
    Upstream,
    WorkerBroke,
    WorkerUnreachable,
    open_blocking_client,
    open_client,
)
from examples.server.upstream_address import name_of
from examples.server.upstream_probe import ProbeFailed, Wanted, probe
from examples.server.upstream_tokens import Endpoint, EngineTokenizer, Tokenize, file_tokenizer
from kvlanes.engine import Engine, Prompt, Worker
from kvlanes.engine.decisions import (
    Branch,
    Decision,
    DecisionLimits,
    invalid_request,
    plan,
    render,
)

_log = logging.getLogger("examples.server")
_PROBE_SECONDS = 60.0  # a probe computes a long prompt a few times
_AGAIN_SECONDS = 5.0  # between two probes of an engine that does not answer


class Fleet:
    """Real engines that serve one model, and how its requests are prepared for them.

    Attributes:
        workers: By name; grows when an engine that was away answers. Written by `find`.
    """

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        self.workers: dict[str, Upstream] = {}
        self._engine = engine
        self._wanted = wanted
        self._engines_tokenizer = EngineTokenizer(wanted.blocking, self._endpoints)

    async def find(self, upstream: Upstream) -> bool:
        """Probe one engine and register it; whether it answered. Always a checkpoint.

        Raises:
            ProbeFailed: It answers, and cannot serve here.
        """
        try:
            with trio.fail_after(_PROBE_SECONDS):
                able = await probe(upstream, self._wanted)
        except (WorkerUnreachable, WorkerBroke, trio.TooSlowError) as error:
            _log.warning("worker %s does not answer yet: %s", upstream.name, type(error).__name__)
            return False
        self.workers[able.name] = able
        self._engine.register(Worker(able.name))
        return True

    async def keep_asking(self, upstream: Upstream) -> None:
        """Ask an engine that was away until it answers."""
        while True:
            await trio.sleep(_AGAIN_SECONDS)
            try:
                if await self.find(upstream):
                    return
            except ProbeFailed as error:
                _log.error("%s", error)
                return

    def prepare(
        self, decision: Decision, namespace: str, limits: DecisionLimits, body: bytes
    ) -> Plan:
        """Render, tokenise and hash. Blocking, and it asks engines: runs in a preflight thread.

        Where every engine answers decisions itself and no file tokenises, the prompt's identity
        is its text.

        Raises:
            DecisionError: See `plan`; `NOT_READY` when no engine tokenises.
        """
        fields = json.loads(body)
        tokenize = self._tokenize()
        if tokenize is None:
            return Plan((self._by_text(decision, namespace, limits),), False, fields)
        branches = plan(decision, tokenize, self._limits(limits))
        prompts = (self._engine.prompt(branch.tokens, namespace=namespace) for branch in branches)
        return Plan(tuple(map(Prepared, branches, prompts)), True, fields)

    def _tokenize(self) -> Tokenize | None:
        scored = any(upstream.abilities.scoring for upstream in self._now())
        return self._wanted.tokenizer or (self._engines_tokenizer if scored else None)

    def _endpoints(self) -> Sequence[Endpoint]:
        return [upstream.endpoint for upstream in self._now() if upstream.abilities.tokenizes]

    def _now(self) -> Sequence[Upstream]:
        """A copy: threads read while `find` adds."""
        return list(self.workers.values())

    def _by_text(self, decision: Decision, namespace: str, limits: DecisionLimits) -> Prepared:
        prompts = render(decision)
        if (asked := sum(len(prompt.encode()) for prompt in prompts)) > limits.text_bytes:
            raise invalid_request(
                f"prompt text in bytes: request needs {asked}; the limit is {limits.text_bytes}"
            )
        prompt = Prompt.from_text(prompts[0], self._engine.config.block_size, namespace=namespace)
        return Prepared(Branch(0, (), ()), prompt)

    def _limits(self, limits: DecisionLimits) -> DecisionLimits:
        lengths = [upstream.abilities.context_tokens for upstream in self._now()]
        known = [length for length in lengths if length is not None]
        return attrs.evolve(limits, context_tokens=min([limits.context_tokens, *known]))


@asynccontextmanager
async def open_fleet(
    urls: Sequence[str], engine: Engine, *, tokenizer: Path | None, isolate: bool
) -> AsyncIterator[Fleet]:
    """Probe engines and keep their clients open for as long as the block. Always a checkpoint.

    Args:
        urls: Their addresses; the path `/v1` of an API root is taken off.
        engine: Where they are registered.
        tokenizer: A `tokenizer.json`; without one the engines tokenise.
        isolate: Whether prefixes of different tenants must be kept apart.

    Raises:
        ProbeFailed: One of them answers and cannot serve here. One that does not answer is
            asked again until it does.
        ConfigError: An extra is not installed, or a file is no tokeniser.
    """
    async with AsyncExitStack() as clients:
        blocking = clients.enter_context(open_blocking_client(urls))
        wanted = Wanted(file_tokenizer(tokenizer) if tokenizer else None, isolate, blocking)
        fleet = Fleet(engine, wanted)
        upstreams = []
        for url in urls:
            client = await clients.enter_async_context(open_client(url))
            upstreams.append(Upstream(name_of(url), url, Abilities("unknown"), client))
        absent = await _absent(fleet, upstreams)
        async with trio.open_nursery() as nursery:
            for upstream in absent:
                nursery.start_soon(fleet.keep_asking, upstream)
            yield fleet
            nursery.cancel_scope.cancel()


async def _absent(fleet: Fleet, upstreams: Sequence[Upstream]) -> Sequence[Upstream]:
    """Probe all at once; those that did not answer."""
    absent: list[Upstream] = []
    failures: list[ProbeFailed] = []

    async def find(upstream: Upstream) -> None:
        try:
            if not await fleet.find(upstream):
                absent.append(upstream)
        except ProbeFailed as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for upstream in upstreams:
            nursery.start_soon(find, upstream)
    if failures:
        raise failures[0]
    return absent
