"""Many orders of clients, cancellations, clock steps, departures and crashes, against one model.

The model needs no order of its own: whatever the lanes do, a rank's mutations take effect in the
order of their calls. A departure or reset ends what was called before it, a crash ends what was
called before it on every rank, and a cancelled caller changes nothing. Times are chosen so that
at the end every short lease is long over and no long one is near: so a short lease that survives
was lost, and anything else that is missing was removed by a stale expiry.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, Clear, Lease, Mutation, Rank, Remove, Store
from kvlanes.nursery import (
    Incarnation,
    LaneCrashed,
    LaneSet,
    LaneStatistics,
    StaleIncarnation,
    TaskReceiver,
)
from tests.indexer.oracle import Oracle
from tests.nursery.scenes import Broken, HookedIndex, advance, checked_lanes, prompt
from tests.nursery.served import GatedBackend
from tests.support.profiles import budget
from tests.support.schedule import scheduled

RANKS = [Rank("a"), Rank("a", 1), Rank("b"), Rank("c")]
FAMILIES, DEPTH = 3, 4
SHORT, LONG = 2.0, 10_000.0
STEPS_SECONDS = 0.7  # every clock step of a scene is this long; all together far below LONG


class YieldingBackend(GatedBackend):
    """A backend that waits, for a random number of turns, and breaks when told to."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world

    async def serve(self, tasks: TaskReceiver) -> None:
        async for task in tasks:
            for _ in range(self.world.rng.randrange(3)):
                await trio.lowlevel.checkpoint()
            self.world.maybe_break()
            task.acknowledge(self.work(task))
            if self.world.rng.random() < 0.2:
                await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class World:
    """One scene: the lanes, the model beside them, and what was called."""

    rng: random.Random
    clock: MockClock
    model: Oracle = attrs.Factory(lambda: Oracle(block_size=1))
    crash_ordered: bool = False
    crashes: int = 0
    accepted: int = 0
    settled: Counter[str] = attrs.Factory(Counter)
    calls: Counter[Rank] = attrs.Factory(Counter)

    def index(self) -> HookedIndex:
        index = HookedIndex()
        index.before = lambda _: self.maybe_break()
        return index

    def backend(self) -> YieldingBackend:
        return YieldingBackend(self)

    def maybe_break(self) -> None:
        """Called inside every write: an ordered crash happens now, and empties everything."""
        if self.crash_ordered:
            self.crash_ordered = False
            self.model = Oracle(block_size=1)
            raise Broken

    def mutation(self) -> Mutation:
        rank = self.rng.choice(RANKS)
        path = prompt(self.rng.randint(1, DEPTH), self.rng.randrange(FAMILIES))
        match self.rng.randrange(8):
            case 0 | 1 | 2:
                return Store(rank, None, path.blocks, lease=Lease(SHORT))
            case 3:
                return Store(rank, None, path.blocks, lease=Lease(LONG))
            case 4 | 5:
                return Store(rank, None, path.blocks, path.sequence_hashes)
            case 6:
                return Remove(rank, path.sequence_hashes[-2:])
            case _:
                return Clear(rank)

    def called(self, mutation: Mutation) -> None:
        """The lanes take the mutation in this very step; so does the model."""
        self.accepted += 1
        self.calls[mutation.rank] += 1
        self.model.apply(mutation, 0.0)

    def departed(self, worker_id: str, dp_rank: int | None) -> None:
        for rank in RANKS:
            if rank.worker_id == worker_id and dp_rank in (None, rank.dp_rank):
                self.calls[rank] += 1
        self.model.drop(worker_id, dp_rank)


Act = Callable[[World, LaneSet], Awaitable[None]]


def cancelled_already() -> bool:
    return trio.current_effective_deadline() == -float("inf")


async def apply(world: World, lanes: LaneSet) -> None:
    mutation = world.mutation()
    if not cancelled_already():
        # Before the call, since an in-place crash empties the model within it.
        world.called(mutation)
    await settling(world, lambda: lanes.apply(mutation))


async def apply_stale(world: World, lanes: LaneSet) -> None:
    """With an incarnation taken some turns ago: applied if it lives, and only then."""
    mutation = world.mutation()
    taken = lanes.attach(mutation.rank)
    await trio.lowlevel.checkpoint()
    alive = lanes.attach(mutation.rank) is taken
    if not cancelled_already():
        if alive:
            world.called(mutation)
        else:
            world.accepted += 1
    await settling(world, lambda: lanes.apply(mutation, taken))


async def settling(world: World, call: Callable[[], Awaitable[Applied]]) -> None:
    end: object = None
    try:
        end = await call()
    except (StaleIncarnation, LaneCrashed) as error:
        end = error.__cause__ or error
    assert isinstance(end, Applied | StaleIncarnation | Broken), end
    world.settled[type(end).__name__] += 1
    await trio.lowlevel.checkpoint()


async def post(world: World, lanes: LaneSet) -> None:
    mutation = world.mutation()
    world.called(mutation)
    assert lanes.post(mutation)
    await trio.lowlevel.checkpoint()


async def reset(world: World, lanes: LaneSet) -> None:
    rank = world.rng.choice(RANKS)
    world.departed(*rank)
    seen = world.calls[rank]
    incarnation = None
    with suppress(LaneCrashed):  # the backend broke in the middle, and has lost everything anyway
        incarnation = await lanes.reset(rank)
    await trio.lowlevel.checkpoint()
    if world.calls[rank] == seen:
        assert incarnation in (None, lanes.attach(rank))
        assert all(lanes.overlap(prompt(DEPTH, f)).of(rank) == 0 for f in range(FAMILIES))


async def drop(world: World, lanes: LaneSet) -> None:
    worker_id = world.rng.choice("abc")
    world.departed(worker_id, None)
    seen = Counter(world.calls)
    with suppress(LaneCrashed):
        await lanes.drop(worker_id)
    await trio.lowlevel.checkpoint()
    for rank in RANKS:
        if rank.worker_id == worker_id and world.calls[rank] == seen[rank]:
            assert all(lanes.overlap(prompt(DEPTH, f)).of(rank) == 0 for f in range(FAMILIES))


async def drop_and_come_back(world: World, lanes: LaneSet) -> None:
    rank = world.rng.choice(RANKS)
    old = lanes.attach(rank)
    world.departed(*rank)
    lanes.drop_nowait(*rank)
    new: Incarnation = lanes.attach(rank)
    assert new is not old
    await apply(world, lanes)


async def flush(world: World, lanes: LaneSet) -> None:
    await lanes.flush()


async def step_clock(world: World, lanes: LaneSet) -> None:
    world.clock.jump(STEPS_SECONDS)
    await trio.lowlevel.checkpoint()


async def crash(world: World, lanes: LaneSet) -> None:
    if world.crashes < 3:
        world.crashes += 1
        world.crash_ordered = True
    await trio.lowlevel.checkpoint()


ACTS: Sequence[Act] = [
    *[apply] * 8,
    *[apply_stale, post, post, reset, drop, drop_and_come_back, flush],
    *[step_clock, step_clock, crash],
]


async def client(world: World, lanes: LaneSet, scope: trio.CancelScope) -> None:
    await trio.lowlevel.checkpoint()
    with scope:
        for _ in range(world.rng.randint(2, 7)):
            await world.rng.choice(ACTS)(world, lanes)
            for _ in range(world.rng.randrange(2)):
                await trio.lowlevel.checkpoint()


async def cancel(world: World, scopes: list[trio.CancelScope]) -> None:
    await trio.lowlevel.checkpoint()
    for scope in scopes:
        for _ in range(world.rng.randrange(12)):
            await trio.lowlevel.checkpoint()
        if world.rng.random() < 0.4:
            scope.cancel()


async def scene(world: World, options: dict[str, Any]) -> None:
    async with checked_lanes(**options) as lanes:
        async with trio.open_nursery() as nursery:
            scopes = [trio.CancelScope() for _ in range(4)]
            for scope in scopes:
                nursery.start_soon(client, world, lanes, scope)
            nursery.start_soon(cancel, world, scopes)
        await lanes.flush()
        await wait_all_tasks_blocked()
        world.crash_ordered = False
        await advance(world.clock, 100.0)
        world.model.expire(50.0, limit=10_000)
        agree(world, lanes)


def agree(world: World, lanes: LaneSet) -> None:
    for family in range(FAMILIES):
        query = prompt(DEPTH, family)
        assert lanes.overlap(query).scores() == world.model.overlap(query).scores()
    statistics = lanes.statistics()
    assert statistics.total("applied") + statistics.total("rejected") == world.accepted
    assert statistics.total("applied") >= world.settled["Applied"]
    for lane in statistics.lanes:
        assert (lane.depth, lane.waiting_for_room, lane.posts_dropped) == (0, 0, 0)


def run(seed: int) -> tuple[int, ...]:
    """One scene, fully determined by `seed`; answers the order that Trio ran it in."""
    rng = random.Random(seed)
    clock = MockClock()
    world = World(rng, clock)
    kind = rng.randrange(6)
    make = world.backend if kind >= 4 else world.index
    options = {
        "make_index": make,
        "lanes": (1, 4)[kind % 2],
        "in_place": kind < 2,
        "queue_capacity": 10_000,
    }
    with scheduled(seed) as schedule:
        trio.run(scene, world, options, clock=clock)
    return (kind, *schedule.trace)


def test_no_order_loses_a_lease_removes_by_a_stale_expiry_or_leaves_a_caller_waiting() -> None:
    seen: set[tuple[int, ...]] = set()

    @settings(max_examples=budget(ci=540, deep=51_000))
    @given(st.integers(0, 2**64 - 1))
    def explore(seed: int) -> None:
        seen.add(run(seed))

    explore()
    print(f"{len(seen)} distinct schedules")
    assert len(seen) >= budget(ci=500, deep=50_000)


def test_one_seed_is_one_scene() -> None:
    assert run(11) == run(11)
    assert len({run(seed) for seed in range(40)}) == 40


def program(rng: random.Random) -> list[Mutation | float | str]:
    """Mutations, clock steps and departures of one task."""
    world = World(rng, MockClock())
    kinds: list[Callable[[], Mutation | float | str]] = [world.mutation] * 8
    kinds += [lambda: rng.choice([0.3, 1.0, 5.0]), lambda: rng.choice("abc")]
    return [rng.choice(kinds)() for _ in range(rng.randint(5, 40))]


def comparable(lane: LaneStatistics) -> LaneStatistics:
    """Without what must differ: the depth, and the lag, which is a bound from the last look."""
    return attrs.evolve(lane, peak_depth=0, expiry_lag_seconds=0, peak_expiry_lag_seconds=0)


async def play(
    steps: list[Mutation | float | str], clock: MockClock, options: dict[str, Any]
) -> list[object]:
    """Everything that can be seen of a program's run."""
    seen: list[object] = []
    async with checked_lanes(**options) as lanes:
        for step in steps:
            if isinstance(step, float):
                await advance(clock, step)
            elif isinstance(step, str):
                await lanes.drop(step)
            else:
                seen.append(await lanes.apply(step))
            seen += [lanes.overlap(prompt(DEPTH, f)).scores() for f in range(FAMILIES)]
        seen += [comparable(lane) for lane in lanes.statistics().lanes]
    return seen


@settings(max_examples=budget(ci=60, deep=2_000))
@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 4]))
def test_in_place_is_the_same_order_as_always_queued(seed: int, lanes: int) -> None:
    steps = program(random.Random(seed))
    runs = []
    for in_place in (True, False):
        clock = MockClock()
        options = {"make_index": HookedIndex, "lanes": lanes, "in_place": in_place}
        runs.append(trio.run(play, steps, clock, options, clock=clock))
    assert runs[0] == runs[1]
