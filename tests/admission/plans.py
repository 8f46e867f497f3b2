"""Whole runs of a gate, drawn: who asks when for how much, and everything that goes wrong."""
# flake8: noqa: ASYNC910 - parts of one task

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator

import attrs
import trio
from hypothesis import strategies as st

from kvlanes.admission import AdmissionGate, AdmissionRefused, DeadlinePassed, Permit
from kvlanes.engine.testing import VirtualThreads, at_every_step, checked_gate
from kvlanes.nursery import DeadlineExpired, Ending, dispatch

GRACE = 1.0

# Whole seconds, so that arrivals, releases, deadlines and cancellations meet in one tick.
SECONDS = st.integers(0, 5).map(float)


@attrs.frozen
class Ask:
    """One request; times are seconds after its arrival."""

    arrives: float
    weight: int
    group: str | None
    waits: bool
    deadline: float
    hangs_up: float | None
    preflight: float | None  # the thread's length
    can_start: bool
    work: float
    stubborn: bool
    fails: bool
    on_lost_worker: bool


@attrs.frozen
class Plan:
    """One gate, its requests, and what its owner does."""

    total: int
    queue_limit: int
    overtake: int
    slots: int
    group_limit: int | None
    asks: list[Ask]
    resizes: list[tuple[float, int]]
    worker_lost: float
    closes: float


ASKS = st.builds(
    Ask,
    arrives=SECONDS,
    weight=st.sampled_from([1, 1, 2, 3, 5]),
    group=st.sampled_from(["a", "a", "b", None]),
    waits=st.booleans(),
    deadline=st.integers(1, 6).map(float),
    hangs_up=st.none() | SECONDS,
    preflight=st.none() | SECONDS,
    can_start=st.integers(0, 9).map(bool),
    work=SECONDS,
    stubborn=st.booleans(),
    fails=st.booleans(),
    on_lost_worker=st.booleans(),
)

PLANS = st.builds(
    Plan,
    total=st.integers(2, 6),
    queue_limit=st.sampled_from([1, 0, 2, 4]),
    overtake=st.integers(0, 2),
    slots=st.integers(1, 3),
    group_limit=st.sampled_from([None, 2, 3, 5]),
    asks=st.lists(ASKS, min_size=4, max_size=9),
    resizes=st.lists(st.tuples(SECONDS, st.integers(0, 6)), max_size=3),
    worker_lost=st.sampled_from([math.inf, 1.0, 3.0, 5.0]),
    closes=st.sampled_from([math.inf, math.inf, 3.0, 6.0]),
)


class Run:
    """Plays a plan, and knows for itself which requests must be holding their weight."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lost = Ending()
        self.start = trio.current_time()
        self.lengths: list[float | None] = []
        self.must_hold: dict[str, list[int]] = {}  # request -> its weight, once a reason
        self.most_held = 0
        self.turns = 0  # of `must_hold`
        self.seen: tuple[int, ...] = ()
        self.events: Counter[str] = Counter()

    async def play(self) -> None:
        """Run everything to its end; every check is in here."""
        with trio.fail_after(1000):  # the jumping clock ends a deadlock here, at once
            async with trio.open_nursery() as threads, trio.open_nursery() as owner:
                self.threads = VirtualThreads(threads, self._next_lengths())
                gate = AdmissionGate(
                    self.plan.total,
                    queue_limit=self.plan.queue_limit,
                    overtake=self.plan.overtake,
                    preflight_slots=self.plan.slots,
                    group_limit=self.plan.group_limit,
                    runner=self.threads,
                )
                self.gate, self.owner = gate, owner
                async with checked_gate(gate):
                    with at_every_step(self.check):
                        await self._all()
        assert self.events["returned"] == len(self.plan.asks)
        assert not self.must_hold

    async def _all(self) -> None:
        async with trio.open_nursery() as nursery:
            for number, ask in enumerate(self.plan.asks):
                nursery.start_soon(self._ask, f"r{number}", ask, nursery)
            for after, total in self.plan.resizes:
                nursery.start_soon(self._later, after, self.gate.set_total, total)
            nursery.start_soon(self._later, self.plan.worker_lost, self.lost.end, OSError)
            nursery.start_soon(self._later, self.plan.closes, self.gate.close)
        with trio.fail_after(60):
            await self.gate.wait_idle()

    async def _later(self, after: float, step: object, *args: object) -> None:
        if after < math.inf:
            await trio.sleep_until(self.start + after)
            assert callable(step)
            step(*args)

    def _next_lengths(self) -> Iterator[float | None]:
        return (self.lengths.pop(0) for _ in itertools.count())

    async def _ask(self, name: str, ask: Ask, nursery: trio.Nursery) -> None:
        await trio.sleep_until(self.start + ask.arrives)
        scope = trio.CancelScope()
        if ask.hangs_up is not None:
            nursery.start_soon(self._later, ask.arrives + ask.hangs_up, scope.cancel)
        with scope:
            try:
                await self._serve(name, ask)
            except (AdmissionRefused, DeadlinePassed) as refusal:
                self.events[type(refusal).__name__] += 1
        self.events["hung up"] += scope.cancelled_caught
        # No caller returns later than the grace after its deadline, or its hanging up.
        ends = min(ask.deadline, math.inf if ask.hangs_up is None else ask.hangs_up)
        assert trio.current_time() <= self.start + ask.arrives + ends + GRACE
        self.events["returned"] += 1

    async def _serve(self, name: str, ask: Ask) -> None:
        deadline = self.start + ask.arrives + ask.deadline
        with await self._admit(name, ask, deadline) as permit, self.holding(name, ask):
            if ask.preflight is not None:
                await self._preflight(permit, ask, deadline)
            ended = await dispatch(
                self._work,
                name,
                ask,
                nursery=self.owner,
                holding=permit.hold(deadline=deadline),
                deadline=deadline,
                grace_seconds=GRACE,
                request_id=name,
                endings=(self.lost,) if ask.on_lost_worker else (),
            )
            drained = ended != DeadlineExpired(drained=False)
            self.events[type(ended).__name__ if drained else "overrun"] += 1

    async def _admit(self, name: str, ask: Ask, deadline: float) -> Permit:
        if not ask.waits:
            return self.gate.admit_nowait(ask.weight, group=ask.group, request_id=name)
        try:
            return await self.gate.admit(
                ask.weight, group=ask.group, request_id=name, deadline=deadline
            )
        finally:
            assert trio.current_time() <= deadline

    async def _preflight(self, permit: Permit, ask: Ask, deadline: float) -> None:
        self.lengths.append(ask.preflight if ask.can_start else None)
        try:
            await permit.run_blocking(int, deadline=deadline)
        except RuntimeError as error:
            if str(error) != "can't start new thread":
                raise
            self.events["no thread"] += 1
        finally:
            assert trio.current_time() <= deadline

    async def _work(self, name: str, ask: Ask) -> None:
        with self.holding(name, ask):
            with trio.CancelScope(shield=ask.stubborn, relative_deadline=60):
                await trio.sleep(ask.work)
            if ask.fails:
                raise ValueError(name)

    @contextlib.contextmanager
    def holding(self, name: str, ask: Ask) -> Iterator[None]:
        """While this is open the gate must count the request."""
        self.must_hold.setdefault(name, []).append(ask.weight)
        self.turns += 1
        try:
            yield
        finally:
            self.must_hold[name].pop()
            self.turns += 1
            if not self.must_hold[name]:
                del self.must_hold[name]

    def check(self) -> None:
        """After every step: nobody is missing, and the total was respected when it mattered."""
        state = (self.gate.free, self.gate.total, self.threads.running, self.turns)
        if state == self.seen:
            return
        self.seen = state
        now = self.gate.statistics()
        here = {one.request_id: one.weight for one in now.requests if one.doing != ("waiting",)}
        for name, weights in self.must_hold.items():
            assert here[name] == weights[0], (name, now)
        assert now.held == sum(here.values())
        assert now.held + self.gate.free == now.total
        assert now.held <= max(now.total, self.most_held), "admitted above the total"
        self.most_held = now.held
        assert self.threads.running <= now.threads <= self.plan.slots
        running = sum(
            one.doing.count("preflight") + one.doing.count("overrun") for one in now.requests
        )
        assert self.threads.running <= running
