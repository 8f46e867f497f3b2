"""What happens after the end, to what is no rank, and when a queue is full of nothing to do."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import (
    IndexerError,
    RadixIndex,
    Remove,
    Store,
    Tier,
    TierBlocks,
    TieredOverlap,
    TierIndex,
)
from kvlanes.nursery import (
    DumpUnavailable,
    LaneClosed,
    LaneCrashed,
    LaneSet,
    TaskReceiver,
)
from kvlanes.nursery._masked import without
from tests.indexer.oracle import Oracle
from tests.nursery.scenes import (
    A,
    B,
    Factory,
    HookedIndex,
    advance,
    breaks_on,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
    small_index,
)
from tests.nursery.served import Backends, GatedBackend, scripted


async def test_nothing_hangs_after_served_lanes_have_ended() -> None:
    in_lane = Backends(lambda: GatedBackend(reads_in_caller=False))
    async with checked_lanes(in_lane, lanes=2) as lanes:
        lanes.attach(A)
    with trio.fail_after(5):
        for call in (lanes.flush, lanes.dump):
            with pytest.raises(LaneClosed, match="before this was passed"):
                await call()
        with pytest.raises(LaneClosed):
            await lanes.drop("a")
        with pytest.raises(LaneClosed):
            await lanes.read(prompt(1))
    lanes.drop_nowait("a")


@pytest.mark.parametrize("rank", [("a", 0), "a", None])
async def test_what_is_no_rank_gets_no_lane(rank: Any) -> None:
    async with checked_lanes() as lanes:
        with pytest.raises(TypeError, match="a rank is a Rank"):
            lanes.attach(rank)
        await lanes.drop("a")
        assert lanes.statistics().total("ranks") == 0


@pytest.mark.parametrize("make_index", [small_index, Backends()], ids=["index", "served"])
async def test_every_granted_lease_is_held_expired_or_revoked(
    mock_clock: MockClock, make_index: Any
) -> None:
    async with checked_lanes(make_index, lanes=2) as lanes:
        await lanes.apply(leased(A, 4, 5.0))
        await lanes.apply(leased(B, 3, 50.0))
        assert (lanes.statistics().leases_held, lanes.statistics().leases_revoked) == (7, 0)
        await lanes.apply(confirmed(A, 1))
        assert (lanes.statistics().leases_held, lanes.statistics().leases_revoked) == (6, 1)
        await advance(mock_clock, 5.1)
        await lanes.drop("b")
        statistics = lanes.statistics()
        assert (statistics.leases_held, statistics.leases_revoked) == (0, 4)
        assert statistics.total("leases_expired") == 3


async def test_an_index_that_does_not_tell_is_taken_to_hold_no_lease() -> None:
    class Silent(Oracle):
        statistics: Any = None

    async with checked_lanes(lambda: Silent(1)) as lanes:
        await lanes.apply(leased(A, 2))
        assert lanes.statistics().leases_held == 0


async def test_the_index_is_not_asked_for_expiry_before_something_may_be_due(
    mock_clock: MockClock,
) -> None:
    factory = Factory()
    async with checked_lanes(factory, lanes=1, in_place=False) as lanes:
        await lanes.apply(leased(A, 1, 5.0))
        await wait_all_tasks_blocked()
        asked: list[str] = []
        factory.current.before = asked.append
        await lanes.apply(leased(A, 2, 5.0))
        await advance(mock_clock, 1.0)
        await lanes.flush()
        assert asked == ["apply"]


async def test_leases_that_a_replacement_brings_along_end_too(mock_clock: MockClock) -> None:
    made: list[HookedIndex] = []

    def make() -> HookedIndex:
        made.append(HookedIndex())
        if len(made) == 2:
            made[1].apply(leased(A, 3, 5.0), 0.0)
        return made[-1]

    async with checked_lanes(make) as lanes:
        lanes.attach(A)
        await wait_all_tasks_blocked()
        made[0].before = breaks_on("apply")
        with pytest.raises(LaneCrashed):
            lanes.apply_nowait(leased(A, 1))
        assert lanes.overlap(prompt(3)).of(A) == 3
        await advance(mock_clock, 5.0)
        assert lanes.overlap(prompt(3)).of(A) == 0


async def test_a_backend_that_owes_an_acknowledgement_at_closing_has_crashed() -> None:
    closing = trio.Event()

    async def owe(backend: GatedBackend, tasks: TaskReceiver) -> None:
        await tasks.receive()
        await closing.wait()
        await tasks.receive()

    ends: list[str] = []

    async def call(lanes: LaneSet) -> None:
        with pytest.raises(LaneCrashed) as caught:
            await lanes.apply(leased(A, 1))
        ends.append(str(caught.value))

    async with trio.open_nursery() as calls:
        calls.start_soon(release_when_blocked, closing)
        await open_while_called(calls, call, scripted(owe))
    assert ["AcknowledgementMissing" in end for end in ends] == [True]


async def release_when_blocked(event: trio.Event) -> None:
    for _ in range(2):
        await wait_all_tasks_blocked()
    event.set()


async def open_while_called(
    calls: trio.Nursery, call: Callable[[LaneSet], Awaitable[None]], backends: Backends
) -> None:
    async with checked_lanes(backends, lanes=1) as lanes:
        calls.start_soon(call, lanes)
        await wait_all_tasks_blocked()


async def test_closing_without_time_to_drain_tells_who_is_left() -> None:
    ends: list[str] = []

    async def call(lanes: LaneSet) -> None:
        with pytest.raises(LaneClosed) as caught:
            await lanes.apply(leased(A, 1))
        ends.append(str(caught.value))

    async def owner(calls: trio.Nursery) -> None:
        async with checked_lanes(lanes=1, in_place=False, drain_seconds=0) as lanes:
            for _ in range(1000):
                lanes.post(leased(A, 1))
            calls.start_soon(call, lanes)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as calls:
        await owner(calls)
    assert ends == ["the lanes closed before this was applied"]


async def test_a_dump_of_a_backend_that_waits_is_refused_by_name() -> None:
    """It would turn guesses into confirmed coverage, and lose the engines' names."""
    async with checked_lanes(Backends()) as lanes:
        lanes.post(leased(A, 1))
        with pytest.raises(DumpUnavailable, match="leases and engines' names"):
            await lanes.dump()


async def test_what_the_caller_got_wrong_leaves_the_index_as_it_is() -> None:
    async with checked_lanes(lambda: RadixIndex(1)) as lanes:
        await lanes.apply(confirmed(B, 3))
        await lanes.apply(confirmed(A, 3))
        bad: list[Any] = [
            Store(A, None, bytearray(8), [1]),  # type: ignore[arg-type]
            Store(A, [1], prompt(1, 1).blocks, [1]),  # type: ignore[arg-type]
            Store(A, None, prompt(1, 1).blocks, ["one"]),  # type: ignore[list-item]
            Remove(A, [None]),  # type: ignore[list-item]
        ]
        for mutation in bad:
            with pytest.raises(IndexerError):
                await lanes.apply(mutation)
        assert lanes.statistics().crashes == 0
        assert lanes.overlap(prompt(3)).scores() == {A: 3, B: 3}


async def test_a_member_without_a_rank_does_not_keep_its_batch_from_being_tried() -> None:
    async with checked_lanes(lanes=1) as lanes:
        nowhere = confirmed(A, 1)._replace(rank="a")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a rank is a Rank"):
            await lanes.apply_many([confirmed(A, 1), nowhere, confirmed(A, 2)])
        assert depth(lanes) == 2
        statistics = lanes.statistics()
        assert (statistics.total("applied"), statistics.total("rejected")) == (2, 1)


async def test_every_refusal_of_closed_lanes_is_counted() -> None:
    async with checked_lanes(lanes=1) as lanes:
        lanes.attach(A)
    with pytest.raises(LaneClosed):
        await lanes.apply(leased(A, 1))
    with pytest.raises(LaneClosed):
        lanes.apply_nowait(leased(A, 1))
    with pytest.raises(LaneClosed):
        await lanes.apply_many([leased(A, 1), leased(A, 2)])
    assert lanes.statistics().total("rejected") == 4


async def test_a_batch_waits_for_room_and_not_for_each_member() -> None:
    """Behind a full queue each member once waited until the one before was applied."""
    backends = Backends(lambda: GatedBackend(gated=True))
    async with checked_lanes(backends, lanes=1, queue_capacity=4) as lanes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.apply_many, [confirmed(A, n) for n in range(1, 9)])
            for applied in range(1, 9):
                await wait_all_tasks_blocked()
                (lane,) = lanes.statistics().lanes
                left = 9 - applied
                assert (lane.depth, lane.waiting_for_room) == (min(left, 5), int(left > 5))
                backends.current.open(1)
        assert depth(lanes) == 8


async def test_tiers_stay_apart_while_somebody_leaves() -> None:
    index = TierIndex(RadixIndex(1))
    names = prompt(4).sequence_hashes
    index.apply(Store(A, None, prompt(1).blocks, names[:1]), 0.0, Tier.DEVICE)
    index.apply(Store(A, names[0], prompt(4).blocks[8:], names[1:]), 0.0, Tier.HOST)
    index.apply(Store(B, None, prompt(3).blocks, names[:3]), 0.0, Tier.HOST)
    seen: Any = without(index.overlap(prompt(4)), {B})
    assert isinstance(seen, TieredOverlap)
    assert seen.tiers(A) == TierBlocks(device=1, host=3)
    assert seen.tiers(B) == TierBlocks()
    assert (seen.scores(), seen.best(), seen.of(B)) == ({A: 4}, 4, 0)
