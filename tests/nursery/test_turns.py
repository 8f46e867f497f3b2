"""Whose turn it is: nobody holds the loop, and no call gives a turn away without need."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from kvlanes.indexer import Rank
from kvlanes.nursery import StaleIncarnation
from tests.nursery.scenes import (
    A,
    B,
    Factory,
    both_paths,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
)
from tests.nursery.served import Backends

CALLS = 320  # each 32nd gives a turn away; two more or less are the order of tasks in a turn


@attrs.define(eq=False)
class Others:
    """Some other task that wants every turn."""

    turns: int = 0

    async def run(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.turns += 1


@asynccontextmanager
async def others_running() -> AsyncIterator[Others]:
    async with trio.open_nursery() as nursery:
        others = Others()
        nursery.start_soon(others.run)
        yield others
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ranks", [1, 8])
async def test_every_32nd_apply_on_idle_lanes_gives_a_turn_away(ranks: int) -> None:
    """Counted over the lane set: eight lanes may not take eight times as long."""
    async with checked_lanes(lanes=4) as lanes, others_running() as others:
        for number in range(CALLS):
            await lanes.apply(leased(Rank(f"w{number % ranks}"), 1))
        assert 8 <= others.turns <= 12


async def test_every_32nd_mutation_of_a_batch_gives_a_turn_away() -> None:
    async with checked_lanes() as lanes, others_running() as others:
        await lanes.apply_many(leased(A, 1) for _ in range(CALLS))
        assert 8 <= others.turns <= 13


@both_paths
async def test_calls_that_fail_let_others_run_too(in_place: bool) -> None:
    async with checked_lanes(in_place=in_place) as lanes, others_running() as others:
        old = lanes.attach(A)
        await lanes.reset(A)
        for _ in range(CALLS):
            with pytest.raises(StaleIncarnation):
                await lanes.apply(leased(A, 1), old)
        assert others.turns >= 8


async def test_a_read_is_a_checkpoint() -> None:
    async with checked_lanes() as lanes:
        with assert_checkpoints():
            await lanes.read(prompt(1))


async def test_a_full_queue_of_refreshes_lets_others_run() -> None:
    """No refresh needs the backend; the lane must not do a thousand of them in one go."""
    backends = Backends()
    async with checked_lanes(backends, lanes=1) as lanes:
        await lanes.apply(leased(A, 3))
        await wait_all_tasks_blocked()
        for _ in range(1000):
            lanes.post(leased(A, 3))
        turns = 0
        while lanes.statistics().total("depth"):
            turns += 1
            await trio.lowlevel.checkpoint()
        assert turns >= 1000 // 64
        assert backends.current.log == ["Store"]


async def test_others_run_between_two_slices_of_expiry(mock_clock: MockClock) -> None:
    factory, slices = Factory(), list[int]()
    async with checked_lanes(factory, lanes=1) as lanes:
        for family in range(5 * 512):
            lanes.apply_nowait(leased(A, 1, 5.0, family))
        await wait_all_tasks_blocked()
        async with others_running() as others:
            factory.current.before = lambda _: slices.append(others.turns)
            mock_clock.jump(5.0)
            while True:
                await trio.lowlevel.checkpoint()
                if not lanes.statistics().leases_held:
                    break
    assert slices[4] - slices[0] >= 3


async def test_leases_end_although_there_is_always_more_to_apply(mock_clock: MockClock) -> None:
    async with checked_lanes(lanes=1, in_place=False) as lanes:
        await lanes.apply(leased(A, 1, 5.0))
        await wait_all_tasks_blocked()
        for _ in range(200):  # the lane has work for several turns before its lease comes due
            lanes.post(confirmed(B, 1))
        mock_clock.jump(5.0)
        for _ in range(10):
            for _ in range(70):  # more than it does in a turn
                lanes.post(confirmed(B, 1))
            await trio.lowlevel.checkpoint()
        assert lanes.statistics().total("depth") > 0
        assert depth(lanes, A) == 0
