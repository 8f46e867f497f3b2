"""Many orders of clients, cancellations, clock steps, departures, crashes and closing lanes.

Times are chosen so that at the end every short lease is long over and no long one is near: so a
short lease that survives was lost, and anything else that is missing was removed by a stale
expiry.
"""

import random
from collections.abc import Callable
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.lowlevel import checkpoint, current_task
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Mutation, Rank
from kvlanes.nursery import LaneSet, LaneStatistics
from tests.indexer.oracle import Oracle
from tests.nursery.acts import ACTS, POOL_ACTS
from tests.nursery.scenes import HookedIndex, advance, checked_lanes, prompt
from tests.nursery.world import DEPTH, FAMILIES, LONG, POOLED, World
from tests.support.profiles import budget
from tests.support.schedule import scheduled

Clients = dict[trio.CancelScope, trio.lowlevel.Task]


async def client(world: World, lanes: LaneSet, clients: Clients) -> None:
    await checkpoint()
    acts = POOL_ACTS if world.pooled else ACTS
    with trio.CancelScope() as scope:  # noqa: ASYNC912 - acts are checkpoints
        clients[scope] = current_task()
        for _ in range(world.rng.randint(2, 7)):
            if world.closing:
                return
            await world.rng.choice(acts)(world, lanes)
            for _ in range(world.rng.randrange(2)):
                await checkpoint()


async def cancel(world: World, lanes: LaneSet, clients: Clients) -> None:
    """Cancel some clients; one that waits for room takes its mutation back in that very step."""
    await checkpoint()
    await checkpoint()
    for scope, task in clients.items():
        for _ in range(world.rng.randrange(12)):
            await checkpoint()
        if world.rng.random() < 0.4:
            waiting = lanes.statistics().total("waiting_for_room")
            scope.cancel()
            if lanes.statistics().total("waiting_for_room") < waiting:
                world.accepted -= 1
                world.take_back(task)


def start(world: World, lanes: LaneSet, nursery: trio.Nursery) -> None:
    clients: Clients = {}
    for _ in range(4):
        nursery.start_soon(client, world, lanes, clients)
    nursery.start_soon(cancel, world, lanes, clients)


async def scene(world: World, options: dict[str, Any]) -> None:
    async with trio.open_nursery() as outliving, checked_lanes(**options) as lanes:
        if world.closes:
            start(world, lanes, outliving)
            for _ in range(world.rng.randrange(60)):
                await checkpoint()
            world.closing = True
        else:
            await to_the_end(world, lanes)
    level(world, lanes)
    if world.closes:
        between(world, lanes)


async def to_the_end(world: World, lanes: LaneSet) -> None:
    async with trio.open_nursery() as nursery:
        start(world, lanes, nursery)
    await lanes.flush()
    await wait_all_tasks_blocked()
    world.crash_ordered = False
    await advance(world.clock, 100.0)
    for family in range(FAMILIES):
        assert shown(world, lanes, family) == expected(world, family, expired=True)


def shown(world: World, lanes: LaneSet, family: int) -> dict[Rank, int]:
    return known(world, world.scores(lanes, family))


def expected(world: World, family: int, *, expired: bool) -> dict[Rank, int]:
    model: Oracle = world.replayed()
    if expired:
        model.expire(50.0, limit=10_000)
    return known(world, model.overlap(prompt(DEPTH, family)).scores())


def known(world: World, scores: dict[Rank, int]) -> dict[Rank, int]:
    """A crash forgets what a pool held, but not the steps that are queued: no model tells."""
    return {rank: n for rank, n in scores.items() if rank != POOLED or not world.crashes}


def between(world: World, lanes: LaneSet) -> None:
    """Closed lanes end no lease any more: at least what cannot end, at most all that was stored."""
    for family in range(FAMILIES):
        seen = shown(world, lanes, family)
        least, most = (expected(world, family, expired=end) for end in (True, False))
        for rank in seen | least | most:
            assert least.get(rank, 0) <= seen.get(rank, 0) <= most.get(rank, 0)


def level(world: World, lanes: LaneSet) -> None:
    statistics = lanes.statistics()
    assert statistics.total("applied") >= world.settled["Applied"]
    if not world.pooled:
        assert statistics.total("applied") + statistics.total("rejected") == world.accepted
        assert statistics.total("posts_dropped") == world.dropped


def run(seed: int) -> tuple[int, ...]:
    """One scene, fully determined by `seed`; answers the order that Trio ran it in."""
    rng = random.Random(seed)
    clock = MockClock()
    kind, capacity = rng.randrange(6), rng.choice([1, 3, 10_000])
    world = World(rng, clock, pooled=rng.random() < 0.3, closes=rng.random() < 0.3)
    world.reads_in_caller = rng.random() < 0.5
    options = {
        "make_index": world.backend if kind >= 4 else world.index,
        "lanes": (1, 4)[kind % 2],
        "in_place": kind < 2,
        "queue_capacity": capacity,
        "ttl_seconds": LONG,
    }
    with scheduled(seed) as schedule:
        trio.run(scene, world, options, clock=clock)
    return (kind, capacity, world.pooled, world.closes, *schedule.trace)


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
    world = World(rng, MockClock(), pooled=False, closes=False)
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
