"""How workers come, change and go. Every change is one step: nobody is listed but deaf.

A life of a rank ends in exactly one way, `_end`: its coverage, leases, queued mutations, running
dispatches and load figures go together, whether the worker was removed, lost a rank, restarted or
was dropped by a reconciliation.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.engine._config import EngineConfig
from kvlanes.engine._errors import WorkerLost
from kvlanes.engine._registry import LiveRank, Member, Registry
from kvlanes.engine._worker import Worker
from kvlanes.engine.load import LoadReport
from kvlanes.indexer import Lease, Prompt, Rank, Store
from kvlanes.nursery import CapacityLease, LaneSet


class Fleet:
    """The only writer of the registry. No method is a checkpoint."""

    __slots__ = ("_config", "_lanes", "_registry")

    def __init__(self, config: EngineConfig, registry: Registry, lanes: LaneSet) -> None:
        self._config = config
        self._registry = registry
        self._lanes = lanes

    @enable_ki_protection
    def register(self, workers: Sequence[Worker]) -> None:
        self._registry.refuse_new(workers)
        for worker in workers:
            self._list(worker)

    def _list(self, worker: Worker) -> None:
        self._model(self._registry.add(worker, self._lanes.attach))

    @enable_ki_protection
    def update(self, worker: Worker) -> None:
        self._registry.member(worker.worker_id)
        self._registry.refuse_shape(worker)
        self._registry.refuse_namesakes([worker])
        self._reshape(worker)

    def _reshape(self, worker: Worker) -> None:
        member = self._registry.member(worker.worker_id)
        for live in self._registry.reshape(member, worker, self._lanes.attach):
            self._end(live)
        self._model(member)

    @enable_ki_protection
    def reconcile(self, workers: Iterable[Worker]) -> None:
        wanted = list(workers)
        self._registry.refuse_set(wanted)  # all that can be wrong: what follows cannot fail
        names = {worker.worker_id for worker in wanted}
        for member in [m for m in self._registry if m.worker.worker_id not in names]:
            self._depart(member)
        for worker in wanted:
            if worker.worker_id not in self._registry:
                self._list(worker)
            elif worker != self._registry.member(worker.worker_id).worker:
                self._reshape(worker)

    @enable_ki_protection
    def remove(self, worker_id: str) -> None:
        self._depart(self._registry.member(worker_id))

    def _depart(self, member: Member) -> None:
        self._registry.discard(member)
        for live in member.ranks:
            self._end(live)

    @enable_ki_protection
    def restarted(self, rank: Rank) -> None:
        """The worker lost its state: what it held and ran is gone, the registration stays."""
        live = self._registry.live(rank)
        self._end(live)
        self._registry.restart(live, self._lanes.attach)
        self._model(live.member)

    @enable_ki_protection
    def emptied(self, live: LiveRank) -> None:
        """Its coverage must be told anew; what runs there goes on."""
        self._lanes.drop_nowait(live.rank.worker_id, live.rank.dp_rank)
        live.incarnation = self._lanes.attach(live.rank)
        live.pool_blocks = None
        self._model(live.member)

    @enable_ki_protection
    def fed(self, live: LiveRank) -> None:
        """An engine event arrived: from here on events tell what the rank holds, no model."""
        live.fed_at = trio.current_time()
        if not live.fed:
            live.fed = True
            self._model(live.member)

    @enable_ki_protection
    def doubt(self, member: Member, rank: Rank, *, doubted: bool) -> None:
        """Whether what `rank` is known to hold may be out of date. O(1)."""
        if doubted != (rank in member.doubted):
            (member.doubted.add if doubted else member.doubted.discard)(rank)
            self._registry.changed()

    @enable_ki_protection
    def trust(self, member: Member) -> None:
        """Nobody follows the worker's events any more, or somebody else does."""
        member.doubted.clear()
        self._registry.changed()

    def _model(self, member: Member) -> None:
        """Have the lanes model the pools of ranks whose size is known and that nobody reports."""
        for live in member.ranks:
            blocks = None if live.fed else member.worker.capacity_blocks
            if blocks != live.pool_blocks:
                live.pool_blocks = blocks
                self._lanes.set_capacity(live.incarnation, blocks)

    @enable_ki_protection
    def place(self, live: LiveRank, prompt: Prompt) -> CapacityLease | None:
        """Tell the index that a rank holds a prompt now; never waits.

        Where the pool of the rank is modelled, the prompt takes room in it until the lease that
        is returned ends. Elsewhere a guess is posted that ends by itself; where events confirm,
        it only bridges the time until they arrive. The incarnation is the one that was reserved:
        what a departed worker served changes nothing.
        """
        self.connected(live.member)
        if not prompt.blocks:
            return None
        if live.pool_blocks is not None:
            return self._lanes.occupy(live.incarnation, prompt)
        ttl = self._config.predicted_ttl_seconds if live.fed else None
        guess = Store(live.rank, None, prompt.blocks, lease=Lease(ttl))
        self._lanes.post(guess, live.incarnation)
        return None

    def _end(self, live: LiveRank) -> None:
        self._lanes.drop_nowait(live.rank.worker_id, live.rank.dp_rank)
        live.book.end()
        live.ending.end(partial(WorkerLost, live.rank.worker_id))

    @enable_ki_protection
    def drain(self, worker_id: str, *, draining: bool) -> None:
        self._registry.member(worker_id).draining = draining
        self._registry.changed()

    @enable_ki_protection
    def connect_failed(self, member: Member) -> None:
        """Count a failure; the configured number in a row ejects for a doubling, capped pause."""
        now = trio.current_time()
        if now < member.ejected_until:
            return  # an attempt from before the ejection: what it found is known
        member.connect_failures += 1
        if member.connect_failures >= self._config.connect_failures:
            longer = 2 * member.pause_seconds or self._config.ejection_seconds
            member.pause_seconds = min(longer, self._config.ejection_max_seconds)
            member.connect_failures = 0
            member.ejected_until = now + member.pause_seconds
            self._registry.changed()

    @enable_ki_protection
    def connected(self, member: Member) -> None:
        """The worker answered: its failures are forgotten, a pause under way is served."""
        member.connect_failures, member.pause_seconds = 0, 0.0

    @enable_ki_protection
    def report_load(self, rank: Rank, source: str, busy: float) -> None:
        now = trio.current_time()
        report = LoadReport(source, busy, now, self._config.load_max_age_seconds)
        self._registry.live(rank).reports.note(report)
        if busy >= self._config.overload_at:
            self._registry.changed()
