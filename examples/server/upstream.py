"""One real engine: what it can do, and the calls to it. Needs the extra `client` (httpx2).

Failures are told apart by whether the engine had begun to answer: before that, another worker may
be asked instead; after it, the request ends with a name.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from examples.server.upstream_native import NativeAnswer, checked, forwarded
from examples.server.upstream_scoring import Scoring, UpstreamMalformed
from examples.server.upstream_tokens import Endpoint
from examples.server.workers import Scored, WorkerBusy
from kvlanes.engine import ConfigError
from kvlanes.engine.decisions import (
    IMPOSSIBLE_RESULT,
    MALFORMED_RESULT,
    NOT_READY,
    Contract,
    Decision,
    DecisionError,
    Json,
    parse_json,
    unsupported,
)

if TYPE_CHECKING:
    import httpx2

_ANSWER_BYTES = 4 * 1024 * 1024  # of one engine's answer; a bigger one is malformed
_JSON = {"content-type": "application/json"}
_CONNECT_SECONDS = 5.0
_BLOCKING_SECONDS = 10.0
_BUSY = (429, 503)  # what engines answer when they have no room


class WorkerUnreachable(ConnectionError):
    """The engine did not begin to answer: it was not reached, or it died first."""

    def __init__(self, worker: str, cause: Exception) -> None:
        super().__init__(f"worker {worker!r} did not answer: {type(cause).__name__}")
        self.worker = worker


class WorkerBroke(ConnectionError):
    """The engine died in the middle of its answer."""

    def __init__(self, worker: str, cause: Exception) -> None:
        super().__init__(f"worker {worker!r} broke off its answer: {type(cause).__name__}")
        self.worker = worker


@attrs.frozen
class Abilities:
    """What a probe found an engine to do.

    Attributes:
        model: Its own name of the model.
        native: Contracts that it answers itself, and whether its route takes a salt.
        scoring: How it is asked for label log probabilities, if it can be.
        tokenizes: Whether it has a tokenise endpoint.
        context_tokens: The longest prompt and output together, when it says so.
    """

    model: str
    native: Mapping[Contract, bool] = attrs.field(factory=dict)
    scoring: Scoring | None = None
    tokenizes: bool = False
    context_tokens: int | None = None

    def answering(self, contract: Contract, *, salted: bool) -> "Abilities":
        """The same, and it answers one contract more."""
        return attrs.evolve(self, native={**self.native, contract: salted})

    def misfit(self, contract: Contract, labels: int, *, tokenized: bool) -> str | None:
        """Why this engine cannot take a request with questions of up to `labels` candidates."""
        if contract in self.native:
            return None
        if self.scoring is None or not tokenized:
            return "the engine cannot score decisions of this contract"
        most = self.scoring.most_labels
        if most is not None and labels > most:
            return f"a question has {labels} candidates; the engine reads {most} at once"
        return None


@attrs.frozen(eq=False)
class Upstream:
    """One engine behind this server.

    Attributes:
        name: Host and port; also its name as a worker.
        url: Where it is, without a path.
        abilities: What a probe found.
    """

    name: str
    url: str
    abilities: Abilities
    _client: "httpx2.AsyncClient" = attrs.field(repr=False)

    async def score(
        self, ordinal: int, tokens: Sequence[int], labels: Sequence[int], salt: str
    ) -> Scored:
        """Read the labels of one branch from one streamed token. Always a checkpoint.

        Cancelling closes the stream, and with it ends the engine's work.

        Raises:
            WorkerUnreachable: It did not begin to answer; another worker may be asked.
            WorkerBroke: It ended in the middle of its answer.
            WorkerBusy: It has no room.
            DecisionError: It refused the request, or what it said makes no sense.
        """
        scoring = self.abilities.scoring
        assert scoring is not None, "the request was routed past `misfit`"
        body = scoring.body(self.abilities.model, tokens, labels, salt)
        answer = await self._answer(scoring.path, json.dumps(body).encode())
        try:
            scored = scoring.read(_events(answer), labels)
        except UpstreamMalformed as error:
            raise DecisionError(MALFORMED_RESULT) from error
        if not 0 <= scored.cached_tokens <= len(tokens):
            raise DecisionError(IMPOSSIBLE_RESULT)
        return scored

    async def decide(
        self, decision: Decision, model: str, fields: Mapping[str, Json], salt: str
    ) -> NativeAnswer:
        """Let the engine answer a whole request. Always a checkpoint.

        Args:
            decision: What is asked, to check the answer against.
            model: Our name of the model, for the answer.
            fields: The request's body.
            salt: Of the caller; goes along if this route takes one.

        Raises:
            As `score`.
        """
        # A route that is being probed counts as one that takes a salt.
        takes_salt = self.abilities.native.get(decision.contract, True)
        body = forwarded(fields, self.abilities.model, salt if takes_salt else "")
        return checked(decision, model, await self._answer(decision.contract.value, body))

    async def get(self, path: str) -> bytes:
        """What the engine answers to a plain GET. Always a checkpoint. Raises as `score`."""
        return await self._answer(path, None)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.abilities.model)

    async def _answer(self, path: str, body: bytes | None) -> bytes:
        """Post (or get, without a body) and take the whole body of a 200, streamed or not."""
        import httpx2

        begun = False
        method, headers = ("POST", _JSON) if body is not None else ("GET", {})
        try:
            async with self._client.stream(method, path, content=body, headers=headers) as response:
                begun = True
                _refuse(response.status_code)
                # To the end and not only to `[DONE]`, so that the connection can be used again.
                return await _whole(response.aiter_raw())
        except httpx2.TransportError as error:
            kind = WorkerBroke if begun else WorkerUnreachable
            raise kind(self.name, error) from error


def open_client(url: str) -> "httpx2.AsyncClient":
    """A client for one engine; only connecting has a bound of its own, the rest the deadline."""
    import httpx2

    timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS)
    # As many connections as there are permits: admission is the bound, not a second queue.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    secure = url.startswith("https:")  # certificates cost a second of start to load
    return httpx2.AsyncClient(
        base_url=url,
        headers={"accept-encoding": "identity"},  # so that what is counted is what there is
        timeout=timeout,
        limits=limits,
        trust_env=False,
        verify=secure,
    )


def open_blocking_client(urls: Sequence[str]) -> "httpx2.Client":
    """A client for threads, which cannot be cancelled: each of its waits has a bound.

    Raises:
        ConfigError: The extra `client` is not installed.
    """
    try:
        import httpx2
    except ImportError as error:
        raise ConfigError("--worker needs httpx2: pip install 'kvlanes[client]'") from error
    secure = any(url.startswith("https:") for url in urls)
    return httpx2.Client(timeout=_BLOCKING_SECONDS, trust_env=False, verify=secure)


def _refuse(status: int) -> None:
    """Our name for an engine's refusal. Its text is not repeated: it may quote the prompt."""
    if status in _BUSY:
        raise WorkerBusy
    if status in (400, 422):
        raise unsupported("the engine does not support this request")
    if status in (401, 403, 404, 405):
        raise DecisionError(NOT_READY)
    if status != 200:
        raise DecisionError(MALFORMED_RESULT)


async def _whole(pieces: AsyncIterator[bytes]) -> bytes:
    kept: list[bytes] = []
    room_bytes = _ANSWER_BYTES
    async for piece in pieces:
        room_bytes -= len(piece)
        if room_bytes < 0:
            raise DecisionError(MALFORMED_RESULT)
        kept.append(piece)
    return b"".join(kept)


def _events(body: bytes) -> list[Json]:
    """The JSON of every server-sent event up to `[DONE]`."""
    found: list[Json] = []
    for line in body.splitlines():
        name, _, data = line.partition(b":")
        if name != b"data":
            continue
        if data.strip() == b"[DONE]":
            return found
        found.append(_event(data.strip()))
    raise UpstreamMalformed("the stream ended before [DONE]")


def _event(data: bytes) -> Json:
    try:
        return parse_json(data)
    except DecisionError as error:
        raise UpstreamMalformed("an event is no JSON") from error
