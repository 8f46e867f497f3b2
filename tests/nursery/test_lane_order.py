"""What one lane promises: order, leases, cancellation, in place and queued alike."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import (
    assert_checkpoints,
    assert_no_checkpoints,
    wait_all_tasks_blocked,
)

from kvlanes.indexer import (
    Applied,
    Clear,
    PackedLengthInvalid,
    Rank,
    Remove,
    Store,
)
from kvlanes.nursery import LaneBusy, LaneClosed, LaneSet, StaleIncarnation
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
from tests.nursery.served import Backends, gated


async def test_p06_a_call_cancelled_before_acceptance_applies_nothing() -> None:
    """P06, the other allowed end: cancelled before it was accepted, and never applied."""
    async with checked_lanes() as lanes:
        with trio.CancelScope() as scope:
            scope.cancel()
            await lanes.apply(leased(A, 3))
        assert scope.cancelled_caught
        assert (depth(lanes), lanes.statistics().total("applied")) == (0, 0)


async def test_a_settled_call_that_is_cancelled_in_the_same_step_gets_its_result() -> None:
    async with checked_lanes(lanes=1, in_place=False) as lanes:
        async with trio.open_nursery() as nursery:
            got: list[Applied] = []

            async def call() -> None:
                got.append(await lanes.apply(leased(A, 1)))

            nursery.start_soon(call)
            await wait_all_tasks_blocked()
        assert got == [Applied(applied=1)]


async def test_p60_callers_that_give_up_lose_no_mutation() -> None:
    """P60: 100 queued mutations, all callers cancelled: all applied, once."""
    factory = Factory()
    async with checked_lanes(factory, lanes=1, in_place=False) as lanes:
        steps: list[str] = []
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:

            def before(name: str) -> None:
                steps.append(name)
                nursery.cancel_scope.cancel()

            factory.current.before = before
            for length in range(1, 101):
                nursery.start_soon(lanes.apply, leased(A, length))
        assert steps.count("apply") == lanes.statistics().total("applied") == 100
        assert depth(lanes, length=100) == 100


async def test_entries_are_applied_in_the_order_of_the_calls() -> None:
    async with checked_lanes(lanes=1, in_place=False) as lanes:
        for length in (1, 2, 3):
            lanes.post(confirmed(A, length))
        lanes.post(Remove(A, [prompt(3).sequence_hashes[2]]))
        lanes.post(Clear(B))
        assert await lanes.apply(leased(A, 3)) == Applied(applied=1, duplicates=2)


async def test_apply_nowait_is_never_a_checkpoint_and_refuses_a_busy_lane() -> None:
    async with checked_lanes(lanes=1) as lanes:
        with assert_no_checkpoints():
            assert lanes.apply_nowait(leased(A, 1)) == Applied(applied=1)
    async with checked_lanes(lanes=1, in_place=False) as lanes:
        lanes.post(leased(A, 1))
        with pytest.raises(LaneBusy, match="1 mutations wait on the lane of a"):
            lanes.apply_nowait(leased(A, 1))
        with pytest.raises(trio.WouldBlock):
            lanes.apply_nowait(leased(B, 1))


async def test_apply_is_always_a_cancellation_point() -> None:
    async with checked_lanes() as lanes:
        for _ in range(40):
            with trio.CancelScope() as scope:
                scope.cancel()
                await lanes.apply(leased(A, 1))
            assert scope.cancelled_caught


async def test_queued_apply_flush_and_batches_are_checkpoints() -> None:
    async with checked_lanes(lanes=1, in_place=False) as lanes:
        with assert_checkpoints():
            await lanes.apply(leased(A, 1))
        with assert_checkpoints():
            await lanes.flush()
        with assert_checkpoints():
            assert await lanes.apply_many([]) == []


@both_paths
async def test_a_batch_is_applied_in_order_and_answers_each(in_place: bool) -> None:
    async with checked_lanes(in_place=in_place, queue_capacity=3) as lanes:
        batch = [leased(A, length) for length in range(1, 100)]
        answers = await lanes.apply_many(batch)
        assert answers == [Applied(1, length) for length in range(99)]


@both_paths
async def test_a_batch_tries_every_member_and_raises_the_first_error(in_place: bool) -> None:
    async with checked_lanes(in_place=in_place) as lanes:
        bad = Store(A, None, b"short")
        with pytest.raises(PackedLengthInvalid, match="got 5 bytes"):
            await lanes.apply_many(
                [leased(A, 1), bad, leased(A, 2), Store(A, None, b"")._replace(sequence_hashes=[1])]
            )
        assert depth(lanes) == 2


async def test_a_full_queue_makes_callers_wait_and_drops_posts() -> None:
    async with checked_lanes(lanes=1, in_place=False, queue_capacity=2) as lanes:
        assert [lanes.post(leased(A, 1)) for _ in range(3)] == [True, True, False]
        async with trio.open_nursery() as nursery:
            for length in range(3):
                nursery.start_soon(lanes.apply, leased(A, length))
            nursery.start_soon(lanes.flush)
        (lane,) = lanes.statistics().lanes
        assert (lane.peak_depth, lane.posts_dropped, lane.applied) == (2, 1, 5)


async def test_a_caller_that_gives_up_waiting_for_room_is_never_applied() -> None:
    backends = Backends(gated)
    async with checked_lanes(backends, lanes=1, queue_capacity=1) as lanes:
        lanes.post(confirmed(B, 1))
        await wait_all_tasks_blocked()  # in the backend's hands
        lanes.post(confirmed(A, 1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.apply, confirmed(A, 3))
            await wait_all_tasks_blocked()
            assert lanes.statistics().total("waiting_for_room") == 1
            nursery.cancel_scope.cancel()
        assert lanes.statistics().total("waiting_for_room") == 0
        backends.current.open()
        await lanes.flush()
        assert depth(lanes) == 1


@both_paths
async def test_a_stale_incarnation_is_refused_where_it_is_applied(in_place: bool) -> None:
    async with checked_lanes(lanes=1, in_place=in_place) as lanes:
        first = lanes.attach(A)
        assert lanes.attach(A) is first
        second = await lanes.reset(A)
        assert lanes.attach(A) is second
        with pytest.raises(StaleIncarnation, match=r"incarnation 1 of a is not .* 2"):
            await lanes.apply(leased(A, 1), first)
        lanes.attach(B)
        with pytest.raises(StaleIncarnation, match="of a is not the living one of b"):
            await lanes.apply(leased(B, 1), second)
        assert await lanes.apply(leased(A, 1), second) == Applied(applied=1)
        assert lanes.statistics().total("rejected") == 2


async def test_an_incarnation_of_another_lane_set_is_refused() -> None:
    async with checked_lanes() as lanes, checked_lanes() as others:
        for owner in (lanes, others):
            owner.attach(A)
        with pytest.raises(StaleIncarnation):
            await lanes.apply(leased(A, 1), others.attach(A))
        with pytest.raises(StaleIncarnation):
            await lanes.apply(leased(B, 1), others.attach(B))
        assert lanes.statistics().total("ranks") == 1


async def test_ranks_take_lanes_in_turn_and_keep_them() -> None:
    async with checked_lanes(lanes=3) as lanes:
        for number in (0, 1, 2, 3, 0, 1):
            lanes.attach(Rank("w", number))
        assert [lane.ranks for lane in lanes.statistics().lanes] == [2, 1, 1]


CLOSED_CALLS: dict[str, Callable[[LaneSet], Awaitable[object]]] = {
    "apply": lambda lanes: lanes.apply(leased(A, 1)),
    "apply_many": lambda lanes: lanes.apply_many([leased(A, 1)]),
}


@pytest.mark.parametrize("name", CLOSED_CALLS)
async def test_closed_lanes_refuse(name: str) -> None:
    async with checked_lanes() as lanes:
        pass
    with pytest.raises(LaneClosed):
        await CLOSED_CALLS[name](lanes)
    with pytest.raises(LaneClosed):
        lanes.apply_nowait(leased(A, 1))
    assert not lanes.post(leased(A, 1))
    await lanes.flush()
    lanes.drop_nowait("a")
    assert depth(lanes) == 0
