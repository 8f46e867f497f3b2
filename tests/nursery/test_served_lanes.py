"""Lanes over backends that wait: the same promises, and who is told what when one breaks."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, BlockSizeMismatch, Clear, Prompt, Rank, Remove
from kvlanes.nursery import (
    LaneBusy,
    LaneCrashed,
    StaleIncarnation,
    TaskReceiver,
)
from tests.nursery.scenes import (
    A,
    B,
    Broken,
    advance,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
)
from tests.nursery.served import (
    Backends,
    GatedBackend,
    gated,
    recovered,
    scripted,
)


async def test_the_same_promises_through_a_backend_that_waits(mock_clock: MockClock) -> None:
    async with checked_lanes(Backends(), lanes=2) as lanes:
        assert await lanes.apply(leased(A, 3, 5.0)) == Applied(applied=3)
        assert await lanes.apply(leased(A, 2, 9.0)) == Applied(duplicates=2)
        assert await lanes.apply(confirmed(B, 3)) == Applied(applied=3)
        names = prompt(3).sequence_hashes
        assert await lanes.apply(Remove(B, [names[1], 77])) == Applied(applied=1, unknown=1)
        assert lanes.overlap(prompt(3)).scores() == {A: 3, B: 1}
        await advance(mock_clock, 6.0)
        assert lanes.overlap(prompt(3)).scores() == {A: 2, B: 1}
        assert await lanes.apply(Clear(B)) == Applied(applied=2)
        await advance(mock_clock, 6.0)
        assert lanes.overlap(prompt(3)).scores() == {}


async def test_an_engines_own_names_never_reach_the_backend_nor_clash_with_a_lease(
    mock_clock: MockClock,
) -> None:
    async with checked_lanes(Backends(), lanes=1) as lanes:
        own = confirmed(A, 2)._replace(sequence_hashes=[901, 902])
        await lanes.apply(own)
        await lanes.apply(leased(A, 3, 5.0))
        await advance(mock_clock, 6.0)
        assert depth(lanes) == 2
        assert await lanes.apply(Remove(A, [902])) == Applied(applied=1)
        assert depth(lanes) == 1


async def test_a_waiting_backend_is_always_queued_for() -> None:
    backends = Backends(gated)
    async with checked_lanes(backends, lanes=1) as lanes:
        with pytest.raises(LaneBusy):
            lanes.apply_nowait(leased(A, 1))
        assert lanes.post(leased(A, 1))
        await wait_all_tasks_blocked()
        assert lanes.statistics().lanes[0].depth == 1  # in the backend's hands
        backends.current.open()


async def test_a_refresh_that_changes_nothing_does_not_bother_the_backend() -> None:
    backends = Backends()
    async with checked_lanes(backends, lanes=1) as lanes:
        for _ in range(3):
            await lanes.apply(leased(A, 3))
        assert backends.current.log == ["Store"]


async def test_p05_a_store_behind_a_queued_expiry_survives_it(mock_clock: MockClock) -> None:
    """P05: the expiry waits in the queue, is authorised when consumed, and finds a refresh."""
    backends = Backends(gated)
    async with checked_lanes(backends, lanes=1) as lanes:
        for rank in (A, B):
            lanes.attach(rank)
        await wait_all_tasks_blocked()
        lanes.post(leased(A, 2, 10.0))
        lanes.post(confirmed(B, 1))
        backends.current.open(1)  # A's store is through, B's is in hand
        await wait_all_tasks_blocked()
        mock_clock.jump(10.0)
        lanes.post(leased(A, 2, 10.0))
        backends.current.open()
        await wait_all_tasks_blocked()
        assert depth(lanes) == 2
        assert "Remove" not in backends.current.log
        await advance(mock_clock, 10.1)
        assert depth(lanes) == 0


async def test_an_expiry_delivered_after_a_later_legitimate_one_removes_once(
    mock_clock: MockClock,
) -> None:
    backends = Backends(gated)
    async with checked_lanes(backends, lanes=1) as lanes:
        lanes.post(leased(A, 1, 1.0))
        lanes.post(confirmed(B, 1))
        lanes.post(leased(A, 1, 2.0))  # refreshes behind what is in hand
        backends.current.open(1)
        await wait_all_tasks_blocked()
        mock_clock.jump(1.5)  # the first deadline passes while B's store is in hand
        backends.current.open(1)
        await wait_all_tasks_blocked()
        mock_clock.jump(5.0)
        backends.current.open()
        await wait_all_tasks_blocked()
        assert depth(lanes) == 0
        assert backends.current.log.count("Remove") == 1
        assert lanes.statistics().total("leases_expired") == 1


async def test_p06_a_cancelled_caller_changes_nothing_about_its_store(
    mock_clock: MockClock,
) -> None:
    """P06: cancelled while the backend has the store: applied, with its lease."""
    backends = Backends(gated)
    async with checked_lanes(backends, lanes=1) as lanes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.apply, leased(A, 3, 5.0))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        backends.current.open()
        await wait_all_tasks_blocked()
        assert depth(lanes) == 3
        await advance(mock_clock, 5.1)
        assert depth(lanes) == 0


async def test_p26_queued_work_of_a_departed_worker_settles_as_stale() -> None:
    """P26 with a gate: 50 stores queued, the worker dropped and registered again, then opened."""
    backends = Backends(gated)
    async with checked_lanes(backends, lanes=1) as lanes:
        old = lanes.attach(A)
        for length in range(1, 51):
            lanes.post(confirmed(A, length), old)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.drop, "a")
            await wait_all_tasks_blocked()
            new = lanes.attach(A)
            assert new is not old
            lanes.post(confirmed(A, 2), new)
            assert depth(lanes) == 0
            backends.current.open(1)  # the first old store is done: not to be seen as the new one's
            await wait_all_tasks_blocked()
            assert backends.current.oracle.overlap(prompt(9)).of(A) == 1
            assert depth(lanes) == 0
            assert lanes.overlap(prompt(9)).best() == lanes.overlap(prompt(9)).best([A]) == 0
            backends.current.open()
        await lanes.flush()
        assert depth(lanes) == 2
        assert lanes.statistics().total("rejected") == 49
        with pytest.raises(StaleIncarnation):
            await lanes.apply(confirmed(A, 9), old)


async def test_a_cancelled_departure_is_done_by_all_lanes() -> None:
    backends = Backends(gated)
    async with checked_lanes(backends, lanes=2) as lanes:
        ranks = [A, Rank("a", 1)]
        for rank in ranks:
            lanes.post(confirmed(rank, 3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.drop, "a")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        backends.current.open()
        await lanes.flush()
        assert backends.current.oracle.ranks == {}
        assert lanes.statistics().total("ranks") == 0


async def test_reads_run_where_the_backend_wants_them() -> None:
    async with checked_lanes(Backends(), lanes=1) as lanes:
        await lanes.apply(confirmed(A, 2))
        assert (await lanes.read(prompt(2))).of(A) == 2
    in_lane = Backends(lambda: GatedBackend(reads_in_caller=False))
    async with checked_lanes(in_lane, lanes=2) as lanes:
        lanes.post(confirmed(A, 2))
        with pytest.raises(LaneBusy, match="await read"):
            lanes.overlap(prompt(2))
        assert (await lanes.read(prompt(2))).of(A) == 2
        assert "Read" in in_lane.current.log


async def test_p60_a_receive_that_is_cancelled_loses_no_task() -> None:
    """P60: a consumer that keeps giving up: all 100 applied in order, once."""

    async def impatient(backend: GatedBackend, tasks: TaskReceiver) -> None:
        await trio.lowlevel.checkpoint()
        async for task in tasks:
            backend.work(task)
            task.acknowledge()
            with trio.CancelScope() as scope:
                scope.cancel()
                await tasks.receive()
            assert scope.cancelled_caught

    backends = scripted(impatient)
    async with checked_lanes(backends, lanes=1) as lanes:
        answers = await lanes.apply_many(confirmed(A, length) for length in range(1, 101))
        assert answers == [Applied(1, length) for length in range(100)]
    assert len(backends.made) == 1


async def test_a_backend_may_use_a_nursery_of_its_own() -> None:
    async def with_nursery(backend: GatedBackend, tasks: TaskReceiver) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            backend.work(task := await tasks.receive())
            task.acknowledge()
            await tasks.receive()
            raise Broken

    backends = scripted(with_nursery)
    async with checked_lanes(backends, lanes=1) as lanes:
        await lanes.apply(confirmed(A, 1))
        with pytest.raises(LaneCrashed):
            await lanes.apply(confirmed(A, 2))
        await recovered(lanes, backends)


async def test_a_prompt_of_another_block_size_is_refused() -> None:
    async with checked_lanes(Backends(), lanes=1) as lanes:
        with pytest.raises(BlockSizeMismatch):
            lanes.overlap(Prompt([1, 2], 2))
