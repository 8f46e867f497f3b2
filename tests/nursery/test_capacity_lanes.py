"""Modelled block pools driven through lanes: in order, fenced, and handed over to and from TTL."""

import gc
import warnings

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, BlockSizeMismatch, IndexerError, Prompt
from kvlanes.nursery import LaneCrashed
from tests.nursery.scenes import (
    A,
    B,
    Factory,
    advance,
    breaks_on,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
)
from tests.nursery.served import Backends, GatedBackend

ALL_PATHS = [{}, {"in_place": False}, {"make_index": Backends()}]
all_paths = pytest.mark.parametrize("options", ALL_PATHS, ids=["in-place", "queued", "served"])


@all_paths
async def test_a_pool_evicts_the_earliest_released_and_its_deep_end_first(
    options: dict[str, object],
) -> None:
    async with checked_lanes(**options) as lanes:  # type: ignore[arg-type]
        incarnation = lanes.attach(A)
        lanes.set_capacity(incarnation, 4)
        with lanes.occupy(incarnation, prompt(3, 1)):
            await lanes.flush()
            assert lanes.overlap(prompt(3, 1)).of(A) == 3
        with lanes.occupy(incarnation, prompt(2, 2)):
            await lanes.flush()
            assert lanes.overlap(prompt(3, 1)).of(A) == 2
            assert lanes.overlap(prompt(2, 2)).of(A) == 2


@all_paths
async def test_taking_over_revokes_leases_and_losing_the_capacity_brings_them_back(
    mock_clock: MockClock, options: dict[str, object]
) -> None:
    """TTL to LRU and back: a queued expiry cannot delete what the pool owns."""
    async with checked_lanes(**options) as lanes:  # type: ignore[arg-type]
        incarnation = lanes.attach(A)
        with lanes.occupy(incarnation, prompt(3)):  # no capacity known: a lease of 120 s
            await lanes.flush()
        lanes.set_capacity(incarnation, 10)
        await wait_all_tasks_blocked()
        mock_clock.jump(120.0)  # due, not ended yet
        held = lanes.occupy(incarnation, prompt(3))
        await wait_all_tasks_blocked()
        assert depth(lanes) in (0, 3)
        held.close()
        await advance(mock_clock, 1e6)
        assert depth(lanes) == 3
        lanes.set_capacity(incarnation, None)
        await lanes.flush()
        assert depth(lanes) == 0
        lanes.occupy(incarnation, prompt(2)).close()
        await lanes.flush()
        assert depth(lanes) == 2
        await advance(mock_clock, 121.0)
        assert depth(lanes) == 0


@all_paths
async def test_a_late_release_after_a_reset_is_nothing(options: dict[str, object]) -> None:
    async with checked_lanes(**options) as lanes:  # type: ignore[arg-type]
        old = lanes.attach(A)
        lanes.set_capacity(old, 2)
        held = lanes.occupy(old, prompt(2))
        new = await lanes.reset(A)
        lanes.set_capacity(new, 2)
        current = lanes.occupy(new, prompt(2, 5))
        held.grow(prompt(1, 7).blocks)
        held.close()
        held.close()
        lanes.occupy(old, prompt(1, 9))
        lanes.set_capacity(old, 1)
        await lanes.flush()
        assert lanes.overlap(prompt(2, 5)).of(A) == 2
        assert lanes.overlap(prompt(1, 9)).scores() == {}
        current.close()
        await lanes.flush()
        assert lanes.overlap(prompt(2, 5)).of(A) == 2  # the new pool's capacity is its own


@all_paths
async def test_output_grows_what_a_request_holds(options: dict[str, object]) -> None:
    async with checked_lanes(**options) as lanes:  # type: ignore[arg-type]
        incarnation = lanes.attach(A)
        lanes.set_capacity(incarnation, 10)
        whole = prompt(5)
        with lanes.occupy(incarnation, prompt(3), private_blocks=1) as held:
            held.grow(whole.blocks[24:], private_blocks=0)
            await lanes.flush()
            assert depth(lanes) == 5
            assert lanes.overlap(whole).best() == 5


async def test_a_crash_starts_the_pools_again_with_their_capacity() -> None:
    factory = Factory()
    async with checked_lanes(factory) as lanes:
        incarnation = lanes.attach(A)
        lanes.set_capacity(incarnation, 2)
        held = lanes.occupy(incarnation, prompt(2))
        factory.current.before = breaks_on("apply")
        with pytest.raises(LaneCrashed):
            await lanes.apply(confirmed(B, 1))
        assert depth(lanes) == 0
        lanes.occupy(incarnation, prompt(2, 1)).close()
        assert lanes.overlap(prompt(2, 1)).of(A) == 2  # beside nobody: the crash ended `held`
        held.close()
        lanes.occupy(incarnation, prompt(1, 2)).close()
        assert lanes.overlap(prompt(2, 1)).of(A) == 1
        assert await lanes.apply(leased(B, 1)) == Applied(applied=1)


async def test_a_pool_whose_own_step_breaks_the_index_is_empty_again() -> None:
    factory = Factory()
    async with checked_lanes(factory) as lanes:
        incarnation = lanes.attach(A)
        lanes.set_capacity(incarnation, 2)
        factory.current.before = breaks_on("apply")
        held = lanes.occupy(incarnation, prompt(2))
        assert (depth(lanes), lanes.statistics().crashes) == (0, 1)
        held.close()
        lanes.occupy(incarnation, prompt(2)).close()
        assert depth(lanes) == 2


async def test_bad_numbers_are_refused_at_the_call() -> None:
    async with checked_lanes() as lanes:
        incarnation = lanes.attach(A)
        with pytest.raises(ValueError, match="capacity_blocks must be >= 1, got 0"):
            lanes.set_capacity(incarnation, 0)
        with pytest.raises(ValueError, match="private_blocks must be >= 0, got -1"):
            lanes.occupy(incarnation, prompt(1), private_blocks=-1)
        with lanes.occupy(incarnation, prompt(1)) as held:
            with pytest.raises(ValueError, match="private_blocks must be >= 0, got -2"):
                held.grow(private_blocks=-2)
            with pytest.raises(ValueError, match="got 5 bytes"):
                held.grow(b"short")
            with pytest.raises(TypeError, match="packed block hashes are bytes, got '8 chars!'"):
                held.grow("8 chars!")  # type: ignore[arg-type]
        with pytest.raises(BlockSizeMismatch):
            lanes.occupy(incarnation, Prompt(range(8), 2))


async def test_steps_of_pools_count_against_the_capacity_and_are_dropped_when_it_is_full() -> None:
    """2,000 requests behind a slow backend once queued 4,001 steps, whatever the capacity."""
    backends = Backends(lambda: GatedBackend(gated=True))
    async with checked_lanes(backends, lanes=1, queue_capacity=4) as lanes:
        incarnation = lanes.attach(A)
        lanes.set_capacity(incarnation, 10)
        lanes.post(confirmed(A, 1, 5))
        await wait_all_tasks_blocked()  # the backend has the post, and works on it
        kept = [lanes.occupy(incarnation, prompt(2, family)) for family in range(4)]
        lost = [lanes.occupy(incarnation, prompt(2, 9)) for _ in range(100)]
        kept[0].grow(prompt(3).blocks[16:])
        kept[0].grow(prompt(4).blocks[24:])
        for lease in [*kept, *lost]:
            lease.close()
        (lane,) = lanes.statistics().lanes
        assert (lane.depth, lane.posts_dropped) == (4 + 4 + 1, 100 + 1)
        backends.current.open()
        await lanes.flush()
        assert depth(lanes) == 2  # what would have come behind a dropped growth is not there
        assert lanes.overlap(prompt(2, 9)).of(A) == 0
        assert lanes.statistics().lanes[0].depth == 0


async def test_a_step_that_the_index_refuses_is_logged_and_its_lane_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    factory = Factory()
    async with checked_lanes(factory, in_place=False) as lanes:
        incarnation = lanes.attach(A)
        lanes.set_capacity(incarnation, 10)
        await lanes.flush()

        def refuse(name: str) -> None:
            if name == "apply":
                factory.current.before = lambda _: None
                raise IndexerError("not today")

        factory.current.before = refuse
        with lanes.occupy(incarnation, prompt(1)):
            assert await lanes.apply(confirmed(A, 1, 3)) == Applied(applied=1)
        assert lanes.statistics().crashes == 0
    assert "not today" in caplog.text


async def test_a_lease_that_gets_lost_says_so_and_releases_nothing() -> None:
    async with checked_lanes(lanes=1) as lanes:
        incarnation = lanes.attach(A)
        lanes.set_capacity(incarnation, 2)
        held = lanes.occupy(incarnation, prompt(2))
        with pytest.warns(ResourceWarning, match="a capacity lease on a was never closed"):
            del held
        gc.collect()
        lanes.occupy(incarnation, prompt(1, 3)).close()
        assert depth(lanes) == 2
        old = lanes.occupy(incarnation, prompt(1, 4))
        await lanes.reset(A)
        del old  # it counts no more
        gc.collect()


async def test_closed_lanes_take_no_more_steps_and_miss_no_lease() -> None:
    async with checked_lanes() as lanes:
        incarnation = lanes.attach(A)
        held = lanes.occupy(incarnation, prompt(1))
        lost = lanes.occupy(incarnation, prompt(1))
    held.close()
    lanes.occupy(incarnation, prompt(2))
    assert depth(lanes) == 1
    with warnings.catch_warnings(record=True) as caught:
        del lost  # the lanes have ended it
    assert caught == []
