"""The engine: admission, routing, lanes and dispatch behind one object."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
from trio.lowlevel import enable_ki_protection
from trio_util import AsyncValue

from kvlanes.admission import AdmissionGate, Permit
from kvlanes.engine._arrivals import Arrivals
from kvlanes.engine._config import EngineConfig
from kvlanes.engine._eligibility import ANY, Eligibility, Wishes
from kvlanes.engine._errors import EngineClosed
from kvlanes.engine._feeding import Feeding
from kvlanes.engine._fleet import Fleet
from kvlanes.engine._registry import Registry
from kvlanes.engine._request import Request
from kvlanes.engine._reservation import Reservation
from kvlanes.engine._route import Route
from kvlanes.engine._router import Router
from kvlanes.engine._status import EngineStatistics, Health, health, rank_statistics, shut
from kvlanes.engine._worker import Worker
from kvlanes.engine.feeds import REPLAYS_AT_ONCE, Feed
from kvlanes.indexer import Applied, Multimodal, Mutation, Prompt, Rank, Store, Tokens
from kvlanes.nursery import Ending, LaneSet


class Engine:
    """Sends each request to the worker that already holds its prefix; `open_engine` makes one.

    The fleet writes the registry, reservations write the books, the lanes own the index, the gate
    owns the permits, the engine's nursery owns dispatched work. Methods that are not `async` need
    a running Trio loop in this thread but no current task, and never are checkpoints.

    Attributes:
        config: What it was opened with.
        gate: Where its requests are admitted; may be shared with other engines.
        lanes: The ordered way to the index.
        nursery: Who owns dispatched work.
        ending: Ends every dispatch when the engine closes.
    """

    def __init__(
        self,
        config: EngineConfig,
        gate: AdmissionGate,
        lanes: LaneSet,
        nursery: trio.Nursery,
        *,
        id_prefix: str = "r",
    ) -> None:
        self.config = config
        self.gate = gate
        self.lanes = lanes
        self.nursery = nursery
        self.ending = Ending()
        self._dispatched = AsyncValue(0)  # written by reservations
        self._registry = Registry(config.block_size, config.weights)
        self._fleet = Fleet(config, self._registry, lanes)
        self._eligibility = Eligibility(self._registry, config.overload_at)
        self._router = Router(config, self._registry, self._eligibility, lanes)
        self._arrivals = Arrivals(self, id_prefix)
        self._feeding = Feeding(
            nursery, self._registry, self._fleet, lanes, config.block_size, REPLAYS_AT_ONCE
        )
        self._closing = False

    @property
    def open_requests(self) -> int:
        """How many requests have arrived and not been left."""
        return self._arrivals.count.value

    @property
    def dispatched(self) -> int:
        """How many dispatches run, stragglers included."""
        return self._dispatched.value

    async def wait_quiet(self) -> None:
        """Wait until no request is open and no dispatch runs. Always a checkpoint, no bound."""
        await trio.lowlevel.checkpoint()
        while self.open_requests or self.dispatched:
            await self._arrivals.count.wait_value(0)
            await self._dispatched.wait_value(0)

    # -- workers

    @enable_ki_protection  # nobody is listed but deaf
    def register(self, *workers: Worker) -> None:
        """List workers, all of them or none.

        Raises:
            WorkerExists: One of the names is taken.
            BlockSizeMismatch: A worker's blocks differ from the engine's.
            EngineClosed: The engine is closing.
        """
        self._refuse_when_closing()
        self._fleet.register(workers)
        self._feeding.align()

    def drain(self, worker_id: str, *, draining: bool = True) -> None:
        """Send nothing new to a worker (or again); what runs there ends in its own time.

        Raises:
            UnknownWorker: Nobody of that name is registered.
        """
        self._fleet.drain(worker_id, draining=draining)

    @enable_ki_protection
    async def update(self, worker: Worker) -> None:
        """Change what is known of a worker, its ranks included; those that stay keep their load.

        Takes effect at the call; a cancelled caller leaves nothing half done. Always a checkpoint.

        Raises:
            UnknownWorker: Nobody of that name is registered.
            BlockSizeMismatch: Its blocks differ from the engine's.
            EngineClosed: The engine is closing.
        """
        self._refuse_when_closing()
        self._fleet.update(worker)
        self._feeding.align()
        await self.lanes.flush()

    @enable_ki_protection
    async def remove(self, worker_id: str) -> None:
        """Unlist a worker and end all that was held there, then wait for its lanes.

        Its dispatches end as `Failed(WorkerLost())`. Takes effect at the call; a cancelled caller
        leaves nothing half done. Always a checkpoint.

        Raises:
            UnknownWorker: Nobody of that name is registered.
        """
        self._fleet.remove(worker_id)
        self._feeding.align()
        await self.lanes.flush()

    @enable_ki_protection
    async def reconcile(self, workers: Iterable[Worker]) -> None:
        """Make the registered workers exactly these: remove, update and register in one step.

        Idempotent. Takes effect at the call; refused as a whole. Always a checkpoint.

        Raises:
            WorkerExists: A name stands twice in `workers`.
            BlockSizeMismatch: A worker's blocks differ from the engine's.
            EngineClosed: The engine is closing.
        """
        self._refuse_when_closing()
        self._fleet.reconcile(workers)
        self._feeding.align()
        await self.lanes.flush()

    def restarted(self, rank: Rank) -> None:
        """A rank lost its state: its coverage, leases and running work end, it stays listed."""
        self._fleet.restarted(rank)

    def connect_failed(self, worker_id: str) -> None:
        """Count a failed connection; several in a row eject the worker for a while.

        The pause starts at `ejection_seconds` and doubles up to `ejection_max_seconds`. Any
        success ends the row; failures during a pause are those of older attempts and not counted.

        Raises:
            UnknownWorker: Nobody of that name is registered.
        """
        self._fleet.connect_failed(self._registry.member(worker_id))

    def report_load(self, rank: Rank, source: str, busy: float) -> None:
        """What `source` says about a rank, as a share in use from 0 to 1.

        Kept beside the engine's own books and other sources' figures, and believed for
        `load_max_age_seconds`. From `overload_at` the rank is left out.

        Raises:
            UnknownWorker: The rank is not registered.
            ValueError: No share.
            TooManySources: More sources than are kept report on this rank.
        """
        self._fleet.report_load(rank, source, busy)

    # -- requests

    @asynccontextmanager
    @enable_ki_protection
    async def request(
        self,
        *,
        seconds: float | None = None,
        deadline: float | None = None,
        weight: int = 1,
        group: str | None = None,
        request_id: str | None = None,
        family: object | None = None,
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
            family: What it shares with requests that wait for it, as for `AdmissionGate.admit`.

        Raises:
            DeadlinePassed: It had passed already, or passed while waiting.
            AdmissionRefused: See `AdmissionGate.admit`.
            RequestExists: A request of this id is open.
            EngineClosed: The engine is closing.

        Always a checkpoint on entry.
        """
        self._refuse_when_closing()
        request = self._arrivals.enter(seconds, deadline, request_id)
        try:
            name, until = request.request_id, request.deadline
            permit = await self.gate.admit(
                weight, deadline=until, group=group, request_id=name, family=family
            )
            yield self._admit(request, permit)
        finally:
            self._arrivals.leave(request)

    @contextmanager
    @enable_ki_protection
    def request_nowait(
        self,
        *,
        seconds: float | None = None,
        deadline: float | None = None,
        weight: int = 1,
        group: str | None = None,
        request_id: str | None = None,
        family: object | None = None,
    ) -> Iterator[Request]:
        """`request` that never waits: refused when there is no room. Never a checkpoint."""
        self._refuse_when_closing()
        request = self._arrivals.enter(seconds, deadline, request_id)
        try:
            name = request.request_id
            permit = self.gate.admit_nowait(weight, group=group, request_id=name, family=family)
            yield self._admit(request, permit)
        finally:
            self._arrivals.leave(request)

    def _admit(self, request: Request, permit: Permit) -> Request:
        request.admitted(permit)
        self._refuse_when_closing()  # it may have waited at a gate that others keep open
        return request

    # -- routing

    def prompt(
        self,
        tokens: Tokens,
        *,
        adapter: str | None = None,
        namespace: str | None = None,
        multimodal: Multimodal | None = None,
    ) -> Prompt:
        """Token ids as this engine's blocks; arguments and errors are `Prompt`'s. O(tokens)."""
        size = self.config.block_size
        return Prompt(tokens, size, adapter=adapter, namespace=namespace, multimodal=multimodal)

    def probe(
        self,
        prompt: Prompt | Tokens,
        *,
        exclude: Collection[str | Rank] = (),
        allowed: Collection[str | Rank] | None = None,
        requires: Collection[str] = (),
    ) -> Route:
        """What `Request.route` would decide now; changes nothing, random state included."""
        return self._router.decide(prompt, Wishes.of(exclude, allowed, requires)).route

    @enable_ki_protection
    def _reserve(
        self, request: Request, prompt: Prompt | Tokens, wishes: Wishes = ANY
    ) -> Reservation:
        """`Request.route`: decide and book in one step, so that equal callers see each other.

        While closing waits for admitted requests they may still route; afterwards nobody may.
        """
        if self.ending.ended:
            raise EngineClosed("the engine has closed")
        decision = self._router.decide(prompt, wishes)
        return Reservation(self, request, decision, self._router.book(decision))

    # -- coverage

    async def apply(self, mutation: Mutation) -> Applied:
        """Apply what an engine event says about a registered rank. See `LaneSet.apply`.

        Raises:
            UnknownWorker: The rank is not registered.
        """
        live = self._registry.live(mutation.rank)
        if not (isinstance(mutation, Store) and mutation.lease is not None):
            self._fleet.fed(live)
        return await self.lanes.apply(mutation, live.incarnation)

    # -- looking

    def statistics(self) -> EngineStatistics:
        """A snapshot of everything. O(permits + ranks + lanes)."""
        now = trio.current_time()
        return EngineStatistics(
            gate=self.gate.statistics(),
            lanes=self.lanes.statistics(),
            ranks=tuple(
                rank_statistics(live, self._eligibility, now) for live in self._registry.ranks()
            ),
            open_requests=self.open_requests,
            dispatched=self.dispatched,
        )

    def health(self) -> Health:
        """Whether requests can be served, and what a person should look at. O(ranks)."""
        lanes, feeds = self.lanes.statistics(), self._feeding.feeds()
        now, no = trio.current_time(), shut(self.gate, closing=self._closing)
        return health(self.config, self._registry, self._eligibility, lanes, now, feeds, no)

    def feeds(self) -> tuple[Feed, ...]:
        """The event streams that the engine follows, as they fare now. O(streams)."""
        return tuple(self._feeding.feeds())

    def digest(self) -> str:
        """Of every routing decision so far, in order: equal runs have equal digests."""
        return self._router.digest()

    def check(self) -> None:
        """Assert every invariant and recount every counter of gate, registry and books."""
        self.gate.check()
        self._registry.check()
        self._eligibility.check()
        self._arrivals.check()

    # -- closing

    def _refuse_new(self) -> None:
        """Start closing: nothing new is admitted, registered or learnt from here on."""
        self._closing = True
        self._feeding.close()

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise EngineClosed("the engine is closing")
