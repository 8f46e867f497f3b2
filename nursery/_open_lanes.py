"""Opening and closing lanes: who owns their tasks, and for how long."""
# flake8: noqa: ASYNC102 - the end is shielded, for a bounded time at a time

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from trio.lowlevel import enable_ki_protection

from kvlanes.indexer import IndexBackend, Lease, require_count
from kvlanes.nursery._bare_nursery import open_bare_nursery
from kvlanes.nursery._crew import Crew, CrewConfig
from kvlanes.nursery._lane_set import LaneSet
from kvlanes.nursery._receiver import ServedBackend


def _configured(
    lanes: int, queue_capacity: int, ttl_seconds: float, drain_seconds: float, in_place: bool
) -> CrewConfig:
    for name, value in (("lanes", lanes), ("queue_capacity", queue_capacity)):
        require_count(name, value, 1)
    if not 0 <= drain_seconds < math.inf:
        raise ValueError(f"drain_seconds must be finite and >= 0, got {drain_seconds}")
    return CrewConfig(lanes, queue_capacity, Lease(ttl_seconds), in_place, drain_seconds)


@asynccontextmanager
@enable_ki_protection
async def open_lanes(
    make_index: Callable[[], IndexBackend | ServedBackend],
    *,
    lanes: int = 4,
    queue_capacity: int = 16_384,
    ttl_seconds: float = 120.0,
    drain_seconds: float = 5.0,
    in_place: bool = True,
) -> AsyncIterator[LaneSet]:
    """Run the lanes of one index for as long as the `async with` block.

    Leaving refuses new mutations and settles what is queued, cancelled or not. A single error of
    the block leaves as itself.

    Args:
        make_index: Called once, and again after each crash of what it made: an index, whose
            leases end once somebody attaches their rank, or a backend that waits, which is empty.
        lanes: How many; each rank sits on one.
        queue_capacity: Accepted mutations that may wait, a lane. Beyond it `apply` waits for room
            and `post` drops; barriers do not count.
        ttl_seconds: What a `Lease` without a TTL gets.
        drain_seconds: The longest that anybody waits for closing lanes; then they are told
            `LaneClosed`. Closing itself waits, and says so, for a backend that does not end.
        in_place: `False` queues every mutation, also on an idle lane: the same order, slower.

    Raises:
        TypeError: A count that is no integer, or `make_index` made neither.
        ValueError: A count below 1, or negative seconds.
        LaneCrashed: The index broke more than three times within a minute, or its factory failed.
    """
    config = _configured(lanes, queue_capacity, ttl_seconds, drain_seconds, in_place)
    crew = Crew(make_index, config)
    async with open_bare_nursery() as nursery:
        crew.start(nursery)
        try:
            yield LaneSet(crew)
        finally:
            await crew.end()
