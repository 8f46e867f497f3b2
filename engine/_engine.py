"""The engine: admission, index, lanes, books and dispatch composed into one object."""

import math
import random
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import trio
from trio.lowlevel import enable_ki_protection
from trio_util import AsyncValue

from kvlanes.admission import AdmissionGate, DeadlinePassed, Permit
from kvlanes.engine._config import EngineConfig
from kvlanes.engine._errors import EngineClosed, NoEligibleWorker, UnknownWorker, WorkerLost
from kvlanes.engine._registry import Candidates, LiveRank, Member, Registry
from kvlanes.engine._request import Request, current_request_id
from kvlanes.engine._route import Reservation, Route
from kvlanes.engine._worker import Worker
from kvlanes.engine.selection import Held, Query, Selection, select
from kvlanes.indexer import Applied, Lease, Mutation, Prompt, Rank, Store
from kvlanes.nursery import Ending, LaneSet


class Engine:
    """Sends each request to the worker that already holds its prefix; `open_engine` makes one.

    Owns the registry and the books; the lanes own the index, the gate owns the permits, the
    engine's nursery owns dispatched work. Methods that are not `async` need a running Trio loop
    in this thread but no current task, and never are checkpoints.

    Attributes:
        config: What it was opened with.
        gate: Where its requests are admitted; may be shared with other engines.
        lanes: The ordered way to the index.
        nursery: Who owns dispatched work.
        open_requests: How many requests are open; written here alone.
        dispatched: How many dispatches run, stragglers included; written by reservations.
    """

    def __init__(
        self, config: EngineConfig, gate: AdmissionGate, lanes: LaneSet, nursery: trio.Nursery
    ) -> None:
        self.config = config
        self.gate = gate
        self.lanes = lanes
        self.nursery = nursery
        self.ending = Ending()  # ends every dispatch when the engine closes
        self._registry = Registry(config.block_size, config.weights)
        self.open_requests = AsyncValue(0)
        self.dispatched = AsyncValue(0)
        self._choices = 0  # how many routes were taken; seeds the next draw
        self._serial = 0  # makes request ids
        self._closing = False

    # -- workers

    def register(self, *workers: Worker) -> None:
        """List workers, all of them or none.

        Raises:
            WorkerExists: One of the names is taken.
            BlockSizeMismatch: A worker's blocks differ from the engine's.
            EngineClosed: The engine is closing.
        """
        self._refuse_when_closing()
        self._registry.refuse(workers)
        for worker in workers:
            self._registry.add(worker, self.lanes.attach)

    async def remove(self, worker_id: str) -> None:
        """Unlist a worker and end all that was held there, then wait for its lanes.

        Its dispatches end as `Failed(WorkerLost())`. All effects happen at the call, so a
        cancelled caller leaves nothing half done. Always a checkpoint.

        Raises:
            UnknownWorker: Nobody of that name is registered.
        """
        self._depart(self._registry.member(worker_id))
        await self.lanes.flush()

    @enable_ki_protection
    def _depart(self, member: Member) -> None:
        """The one way a registration ends: listing, coverage, leases and running work together."""
        self._registry.discard(member.worker.worker_id)
        self.lanes.drop_nowait(member.worker.worker_id)
        member.ending.end(partial(WorkerLost, member.worker.worker_id))

    # -- requests

    @asynccontextmanager
    async def request(
        self,
        *,
        seconds: float | None = None,
        deadline: float | None = None,
        weight: int = 1,
        group: str | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[Request]:
        """Admit a request; it waits for permits where the gate has a queue.

        Opens no cancel scope: the deadline bounds admission, preflight and dispatch, not the
        caller's own code.

        Args:
            seconds: Time from now; the configuration's `request_seconds` when neither is given.
            deadline: Absolute, on Trio's clock, instead of `seconds`.
            weight: Permits to hold, all or none.
            group: Whose limit they count against.
            request_id: Names the request in logs; made when not given.

        Raises:
            DeadlinePassed: It had passed already, or passed while waiting.
            AdmissionRefused: See `AdmissionGate.admit`.
            EngineClosed: The engine is closing.

        Always a checkpoint on entry.
        """
        request_id, until = self._entering(seconds, deadline, request_id)
        permit = await self.gate.admit(weight, deadline=until, group=group, request_id=request_id)
        with self._admitted(permit, until, request_id) as request:
            yield request

    @contextmanager
    def request_nowait(
        self,
        *,
        seconds: float | None = None,
        deadline: float | None = None,
        weight: int = 1,
        group: str | None = None,
        request_id: str | None = None,
    ) -> Iterator[Request]:
        """`request` that never waits: refused when there is no room. Never a checkpoint."""
        request_id, until = self._entering(seconds, deadline, request_id)
        permit = self.gate.admit_nowait(weight, group=group, request_id=request_id)
        with self._admitted(permit, until, request_id) as request:
            yield request

    def _entering(
        self, seconds: float | None, deadline: float | None, request_id: str | None
    ) -> tuple[str, float]:
        self._refuse_when_closing()
        now = trio.current_time()
        if deadline is None:
            deadline = now + (self.config.request_seconds if seconds is None else seconds)
        elif seconds is not None:
            raise ValueError(f"seconds ({seconds}) and deadline ({deadline}) exclude each other")
        if math.isnan(deadline):
            raise ValueError("the deadline of a request must be a number, got NaN")
        if deadline <= now:
            raise DeadlinePassed("admission")
        if request_id is None:
            self._serial += 1
            request_id = f"r{self._serial}"
        return request_id, deadline

    @contextmanager
    def _admitted(self, permit: Permit, deadline: float, request_id: str) -> Iterator[Request]:
        request = Request(self, permit, deadline, request_id)
        self.open_requests.value += 1
        outer = current_request_id.set(request_id)
        try:
            yield request
        finally:
            current_request_id.reset(outer)
            request.close()
            self.open_requests.value -= 1

    # -- routing

    def prompt(
        self, tokens: Sequence[int], *, adapter: str | None = None, namespace: str | None = None
    ) -> Prompt:
        """Token ids as this engine's blocks, under an adapter and a tenant. O(tokens)."""
        return Prompt(tokens, self.config.block_size, adapter=adapter, namespace=namespace)

    def probe(
        self,
        prompt: Prompt | Sequence[int],
        *,
        exclude: Collection[str | Rank] = (),
        allowed: Collection[str | Rank] | None = None,
        requires: Collection[str] = (),
    ) -> Route:
        """What `Request.route` would decide now; changes nothing, random state included."""
        prompt = self._as_prompt(prompt)
        candidates = self._candidates(exclude, allowed, requires)
        return self._route(prompt, candidates, self._select(prompt, candidates))

    @enable_ki_protection
    def reserve(
        self,
        request: Request,
        prompt: Prompt | Sequence[int],
        exclude: Collection[str | Rank],
        allowed: Collection[str | Rank] | None,
        requires: Collection[str],
    ) -> Reservation:
        """`Request.route`: select and book in one step, so that equal callers see each other."""
        self._refuse_when_closing()
        prompt = self._as_prompt(prompt)
        candidates = self._candidates(exclude, allowed, requires)
        selection = self._select(prompt, candidates)
        route = self._route(prompt, candidates, selection)
        live = candidates.live[selection.chosen]
        cached = min(prompt.token_count, route.overlap * prompt.block_size)
        self._choices += 1
        booking = live.book.book(prompt.blocks, prompt.token_count - cached, self._choices)
        return Reservation(self, request, live, booking, prompt, route)

    def place(self, live: LiveRank, prompt: Prompt) -> None:
        """Post that a rank holds a prompt now, as a guess that ends; never waits.

        The incarnation is the one that was reserved: what a departed worker served changes
        nothing. Where events confirm, the guess only bridges the time until they arrive.
        """
        ttl = self.config.predicted_ttl_seconds if live.fed else None
        guess = Store(live.rank, None, prompt.blocks, lease=Lease(ttl))
        self.lanes.post(guess, live.incarnation)

    def _as_prompt(self, prompt: Prompt | Sequence[int]) -> Prompt:
        return prompt if isinstance(prompt, Prompt) else self.prompt(prompt)

    def _candidates(
        self,
        exclude: Collection[str | Rank],
        allowed: Collection[str | Rank] | None,
        requires: Collection[str],
    ) -> Candidates:
        candidates = self._registry.candidates(
            trio.current_time(), exclude=exclude, allowed=allowed, requires=requires
        )
        if not candidates.live:
            raise NoEligibleWorker(candidates.excluded)
        return candidates

    def _select(self, prompt: Prompt, candidates: Candidates) -> Selection:
        scores = self.lanes.overlap(prompt).scores()
        query = Query(
            tokens=prompt.token_count,
            blocks=len(prompt),
            block_size=prompt.block_size,
            held={rank: Held(blocks) for rank, blocks in scores.items()},
            sharing=frozenset(self._registry.running(prompt.blocks)),
        )
        states = candidates.states()
        return select(candidates.field, states, query, self.config.weights, self._draw)

    def _draw(self) -> float:
        """One number for each choice, from the seed and the count: asking twice changes nothing."""
        return random.Random(f"{self.config.seed}:{self._choices}").random()

    def _route(self, prompt: Prompt, candidates: Candidates, selection: Selection) -> Route:
        live = candidates.live[selection.chosen]
        held = selection.query.held.get(live.rank, Held())
        source = "none" if not held.blocks else "confirmed" if live.fed else "leased"
        return Route(live.rank, held, len(prompt), source, selection, candidates.excluded)

    # -- coverage

    async def apply(self, mutation: Mutation) -> Applied:
        """Apply what an engine event says about a registered rank. See `LaneSet.apply`.

        Raises:
            UnknownWorker: The rank is not registered.
        """
        live = self._fed(mutation)
        return await self.lanes.apply(mutation, live.incarnation)

    def _fed(self, mutation: Mutation) -> LiveRank:
        live = self._registry.live(mutation.rank)
        if live is None:
            raise UnknownWorker(str(mutation.rank))
        if not (isinstance(mutation, Store) and mutation.lease is not None):
            live.fed = True
            live.fed_at = trio.current_time()
        return live

    # -- closing

    def refuse_new(self) -> None:
        """Start closing: nothing new is admitted, routed or registered from here on."""
        self._closing = True

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise EngineClosed("the engine is closing")

    def check(self) -> None:
        """Assert every invariant and recount every counter of gate, books and registry."""
        self.gate.check()
        self._registry.check()
