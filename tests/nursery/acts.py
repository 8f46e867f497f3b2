"""What the clients of a scene do: each act calls the lanes, and says so in the scene's log."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import pytest
import trio
from trio.lowlevel import checkpoint, current_task

from kvlanes.indexer import Applied, CapacityModel, Mutation
from kvlanes.nursery import (
    DumpUnavailable,
    Incarnation,
    LaneBusy,
    LaneClosed,
    LaneCrashed,
    LaneSet,
    StaleIncarnation,
)
from tests.nursery.scenes import Broken, prompt
from tests.nursery.world import DEPTH, FAMILIES, POOLED, RANKS, Call, World, YieldingBackend

STEPS_SECONDS = 0.7  # every clock step of a scene is this long; all together far below LONG
REFUSED = ("the lanes are closing", "the lanes closed before the queue had room")

Act: TypeAlias = Callable[[World, LaneSet], Awaitable[None]]


def cancelled_already() -> bool:
    return trio.current_effective_deadline() == -float("inf")


async def apply(world: World, lanes: LaneSet) -> None:
    mutation = world.mutation()
    if not cancelled_already():
        # Before the call, since an in-place crash empties the log within it.
        world.called(mutation)
    await settling(world, lambda: lanes.apply(mutation))


async def apply_stale(world: World, lanes: LaneSet) -> None:
    """With an incarnation taken some turns ago: applied if it lives, and only then."""
    mutation = world.mutation()
    taken = lanes.attach(mutation.rank)
    await checkpoint()
    alive = lanes.attach(mutation.rank) is taken
    if not cancelled_already():
        world.called(mutation)
        if not alive:
            world.take_back(current_task())
    await settling(world, lambda: lanes.apply(mutation, taken))


async def apply_many(world: World, lanes: LaneSet) -> None:
    """Several of one rank; of closing lanes, one, since it is not told which were refused."""
    rank, count = world.rng.choice(RANKS), 1 if world.closes else world.rng.randint(1, 5)
    batch = [world.mutation(rank) for _ in range(count)]

    def calling() -> Iterator[Mutation]:
        for mutation in batch:
            world.called(mutation)
            yield mutation

    async def call() -> Applied:
        answers = await lanes.apply_many(calling())
        assert len(answers) == len(batch)
        return answers[0]

    await settling(world, call)


async def settling(world: World, call: Callable[[], Awaitable[Applied]]) -> None:
    end: object = None
    try:
        end = await call()
    except LaneClosed as error:
        world.take_back(current_task())
        end = str(error)
    except (StaleIncarnation, LaneCrashed) as error:
        end = error.__cause__ or error
    assert isinstance(end, Applied | StaleIncarnation | Broken) or end in REFUSED, end
    world.settled[type(end).__name__] += 1
    await checkpoint()


async def apply_nowait(world: World, lanes: LaneSet) -> None:
    mutation = world.mutation()
    world.called(mutation)
    try:
        assert isinstance(lanes.apply_nowait(mutation), Applied)
    except LaneBusy:
        world.accepted -= 1
        world.take_back(current_task())
    except LaneCrashed:
        pass  # it was the one that broke the index, and the log is empty
    await checkpoint()


async def post(world: World, lanes: LaneSet) -> None:
    mutation = world.mutation()
    world.called(mutation)
    if not lanes.post(mutation):
        world.accepted -= 1
        world.dropped += 1
        world.take_back(current_task())
    await checkpoint()


async def read(world: World, lanes: LaneSet) -> None:
    with suppress(LaneCrashed):
        depths = await lanes.read(prompt(DEPTH, world.rng.randrange(FAMILIES)))
        assert all(0 < depth <= DEPTH for depth in depths.scores().values())
    await checkpoint()


async def dump(world: World, lanes: LaneSet) -> None:
    if isinstance(world.made[-1], YieldingBackend):
        with pytest.raises(DumpUnavailable):
            await lanes.dump()
    else:
        ranks: Any = await lanes.dump()
        assert set(ranks) <= {*RANKS, POOLED}


async def reset(world: World, lanes: LaneSet) -> None:
    rank = world.rng.choice([*RANKS, POOLED])
    world.departed(*rank)
    seen = world.calls[rank]
    incarnation = None
    with suppress(LaneCrashed):  # the backend broke in the middle, and has lost everything anyway
        incarnation = await lanes.reset(rank)
    await checkpoint()
    if world.calls[rank] == seen:
        assert incarnation in (None, lanes.attach(rank))
        assert world.holds_nothing(lanes, rank)


async def drop(world: World, lanes: LaneSet) -> None:
    worker_id = world.rng.choice("abcd")
    world.departed(worker_id, None)
    seen = Counter(world.calls)
    with suppress(LaneCrashed):
        await lanes.drop(worker_id)
    await checkpoint()
    for rank in [*RANKS, POOLED]:
        if rank.worker_id == worker_id and world.calls[rank] == seen[rank]:
            assert world.holds_nothing(lanes, rank)


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
    await checkpoint()


async def crash(world: World, lanes: LaneSet) -> None:
    if world.orders < 3:
        world.orders += 1
        world.crash_ordered = True
    await checkpoint()


async def resize(world: World, lanes: LaneSet) -> None:
    """The pool's capacity becomes known, another one, or unknown."""
    capacity = world.rng.choice([None, 3, 6])
    world.calls[POOLED] += 1
    world.log.append(Call(lambda model: model.change(model.pool.set_capacity(capacity))))
    lanes.set_capacity(lanes.attach(POOLED), capacity)
    await checkpoint()


async def occupy(world: World, lanes: LaneSet) -> None:
    """A request takes room in the pool, its output grows, and it ends, cancelled or not."""
    family, start = world.rng.randrange(FAMILIES), world.rng.randint(1, 3)
    begin, grown = prompt(start, family), prompt(DEPTH, family).blocks[8 * start :]
    attempt, life, taken = object(), world.lives, True

    def step(do: Callable[[CapacityModel], list[Mutation]], call: Callable[[], Any]) -> Any:
        """One call, in the log too unless the lanes said that they dropped it."""
        nonlocal taken
        logged = Call(lambda model: model.change(do(model.pool)))
        world.calls[POOLED] += 1
        if taken and life == world.lives and not world.closing:
            world.log.append(logged)
        before = lanes.statistics().total("posts_dropped")
        made = call()
        if lanes.statistics().total("posts_dropped") > before:
            taken = False
            if logged in world.log:
                world.log.remove(logged)
        return made

    incarnation = lanes.attach(POOLED)
    lease = step(lambda m: m.acquire(attempt, begin), lambda: lanes.occupy(incarnation, begin))
    kept = taken
    try:
        await checkpoint()
        step(lambda m: m.grow(attempt, grown), lambda: lease.grow(grown))
        await checkpoint()
    finally:
        taken = kept
        step(lambda m: m.release(attempt), lease.close)


ACTS: list[Act] = [
    *[apply] * 8,
    *[apply_stale, apply_many, apply_many, apply_nowait, post, post, read, dump],
    *[reset, drop, drop_and_come_back, flush, step_clock, step_clock, crash],
]
POOL_ACTS: list[Act] = [*ACTS, *[resize, resize], *[occupy] * 6]
