"""What the lane tests share: short chains, indexes with hooks, lanes checked at their end."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import (
    Applied,
    Expired,
    IndexBackend,
    Lease,
    Mutation,
    Prompt,
    Rank,
    Store,
)
from kvlanes.nursery import LaneSet, ServedBackend, open_lanes
from tests.indexer.oracle import Oracle

A, B, C = Rank("a"), Rank("b"), Rank("c")

both_paths = pytest.mark.parametrize("in_place", [True, False], ids=["in-place", "queued"])


def tokens(length: int, family: int = 0) -> list[int]:
    return [family * 1000 + number for number in range(length)]


def prompt(length: int, family: int = 0) -> Prompt:
    """`length` blocks of one token each; chains of one family share their prefixes."""
    return Prompt(tokens(length, family), 1)


def leased(rank: Rank, length: int, ttl_seconds: float | None = 10.0, family: int = 0) -> Store:
    return Store(rank, None, prompt(length, family).blocks, lease=Lease(ttl_seconds))


def depth(lanes: LaneSet, rank: Rank = A, length: int = 9) -> int:
    """How deep `rank` covers a long prompt of family 0."""
    return lanes.overlap(prompt(length)).of(rank)


def confirmed(rank: Rank, length: int, family: int = 0) -> Store:
    path = prompt(length, family)
    return Store(rank, None, path.blocks, path.sequence_hashes)


def small_index() -> Oracle:
    return Oracle(block_size=1)


class HookedIndex(Oracle):
    """Calls `before` inside each write, and breaks after a first write of its own when told to.

    A hook is how a test gets between two steps of a lane that never awaits.
    """

    def __init__(self) -> None:
        super().__init__(block_size=1)
        self.before: Callable[[str], None] = lambda _: None

    def apply(self, mutation: Mutation, now: float) -> Applied:
        self.before("apply")
        return super().apply(mutation, now)

    def expire(
        self, now: float, limit: int = 512, ranks: Collection[Rank] | None = None
    ) -> Expired:
        self.before("expire")
        return super().expire(now, limit, ranks)

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        self.before("drop")
        return super().drop(worker_id, dp_rank)

    def dump(self, now: float) -> list[Rank]:
        return sorted(self.ranks)


class Factory:
    """Makes hooked indexes and remembers them; `current` is the one in use."""

    def __init__(self) -> None:
        self.made: list[HookedIndex] = []

    def __call__(self) -> HookedIndex:
        self.made.append(HookedIndex())
        return self.made[-1]

    @property
    def current(self) -> HookedIndex:
        return self.made[-1]


class Broken(Exception):
    """What a broken index raises."""


def breaks_on(*names: str) -> Callable[[str], None]:
    def before(name: str) -> None:
        if name in names:
            raise Broken(name)

    return before


@asynccontextmanager
async def checked_lanes(
    make_index: Callable[[], IndexBackend | ServedBackend] = small_index, **options: Any
) -> AsyncIterator[LaneSet]:
    """Open lanes, and check afterwards that nothing waits and every counter adds up."""
    async with open_lanes(make_index, **options) as lanes:
        yield lanes
    for lane in lanes.statistics().lanes:
        assert (lane.depth, lane.waiting_for_room) == (0, 0), lane


async def advance(clock: MockClock, seconds: float) -> None:
    """Let virtual time pass, and everything that is due happen."""
    clock.jump(seconds)
    await wait_all_tasks_blocked()
