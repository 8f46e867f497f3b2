"""Which of two writes comes first, where a backend waits or the lanes end."""

import queue
from collections import defaultdict

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Rank, Store
from kvlanes.nursery import LaneClosed, LaneSet, LaneTask, Read, TaskReceiver, ThreadReceiver
from tests.nursery.scenes import A, checked_lanes, confirmed, leased, prompt
from tests.nursery.served import Backends, GatedBackend, acknowledge_then_return, scripted

SIBLING = Rank("a", 1)

# -- closing


async def test_a_cancelled_host_loses_nothing_that_was_accepted() -> None:
    with trio.CancelScope() as scope:
        async with checked_lanes(lanes=1, in_place=False) as lanes:
            for _ in range(1000):
                assert lanes.post(leased(A, 1))
            scope.cancel()
    assert lanes.statistics().total("applied") == 1000


class Deaf(GatedBackend):
    """Ignores its cancellation for 26 seconds."""

    async def do(self, task: LaneTask) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(26.0)


async def test_a_cancelled_host_is_told_too_what_keeps_its_lanes_open(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.CancelScope() as scope:
        async with checked_lanes(Backends(Deaf), lanes=1, drain_seconds=5.0) as lanes:
            assert lanes.post(confirmed(A, 1))
            await wait_all_tasks_blocked()
            scope.cancel()
    assert caplog.text.count("1 lanes wait for their backend to end") == 2


# -- backends that wait


async def test_a_store_of_two_works_is_not_done_with_the_first() -> None:
    """Its engine gave a name that it had given before: one store, and one removal."""

    async def linger(backend: GatedBackend, tasks: TaskReceiver) -> None:
        for _ in range(2):
            await acknowledge_then_return(backend, tasks)
        await trio.sleep_forever()

    backends = scripted(linger)
    moved = Store(A, None, prompt(1, family=1).blocks, prompt(1).sequence_hashes)

    async def call(lanes: LaneSet) -> None:
        with pytest.raises(LaneClosed, match="before this was acknowledged"):
            await lanes.apply(moved)

    async def host(calls: trio.Nursery) -> None:
        async with checked_lanes(backends, lanes=1, drain_seconds=0) as lanes:
            await lanes.apply(confirmed(A, 1))
            calls.start_soon(call, lanes)
            await wait_all_tasks_blocked()
        assert lanes.statistics().total("applied") == 1

    async with trio.open_nursery() as calls:
        await host(calls)
    assert backends.current.log == ["Store", "Store"]


class QuickestThread(queue.SimpleQueue["LaneTask | None"]):
    """What a thread would have done before the `put` of its task returns."""

    def put(self, item: LaneTask | None, block: bool = True, timeout: float | None = None) -> None:
        if item is not None:
            item.acknowledge()


class OldLoop(GatedBackend):
    """Hands its tasks to such a thread, which asks for the next before it acknowledges."""

    async def serve(self, tasks: TaskReceiver) -> None:
        token = trio.lowlevel.current_trio_token()
        await ThreadReceiver(token, True, inbox=QuickestThread()).pump(tasks)


async def test_an_acknowledgement_wakes_its_lane_however_early_it_comes(
    autojump_clock: MockClock,
) -> None:
    async with checked_lanes(Backends(OldLoop), lanes=1, drain_seconds=0) as lanes:
        with trio.fail_after(60.0):
            for _ in range(3):
                await lanes.apply(confirmed(A, 1))


class GatedByRank(GatedBackend):
    """What it is to do for a rank waits for steps of that rank."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: defaultdict[Rank, trio.Semaphore] = defaultdict(lambda: trio.Semaphore(0))

    async def do(self, task: LaneTask) -> None:
        assert not isinstance(task.work, Read)
        await self.steps[task.work.rank].acquire()
        task.acknowledge(self.work(task))


async def test_a_rank_stays_hidden_until_the_last_of_its_departures_is_through() -> None:
    """The first waits for a sibling's lane, while the rank's next life comes and goes again."""
    backend = GatedByRank()
    async with checked_lanes(lambda: backend, lanes=2) as lanes:

        async def steps(rank: Rank, count: int) -> None:
            for _ in range(count):
                backend.steps[rank].release()
            await wait_all_tasks_blocked()

        for rank in (A, SIBLING):
            lanes.post(confirmed(rank, 1))
            await steps(rank, 1)
        lanes.drop_nowait("a")
        lanes.post(confirmed(A, 3))
        await steps(A, 2)  # the departure, and the store of the next life
        lanes.drop_nowait("a", 0)
        await steps(SIBLING, 1)
        assert backend.overlap(prompt(3)).scores() == {A: 3}
        assert lanes.overlap(prompt(3)).scores() == {}
        await steps(A, 1)
        assert backend.overlap(prompt(3)).scores() == {}
