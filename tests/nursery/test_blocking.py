"""Backends that block, each lane in a thread: real threads, always behind gates."""

import threading
from collections.abc import Callable

import pytest
import trio

from kvlanes.indexer import Applied, Overlap, Prompt
from kvlanes.nursery import BlockingBackend, LaneCrashed, LaneTask, ThreadReceiver
from tests.nursery.scenes import A, B, Broken, checked_lanes, confirmed, depth, leased, prompt
from tests.nursery.served import GatedBackend

Loop = Callable[["BlockingServer", ThreadReceiver], None]


class BlockingServer:
    """Works in threads by `loop`; its coverage is the oracle's, behind a lock."""

    block_size = 1

    def __init__(self, loop: Loop) -> None:
        self.reads_in_caller = True
        self.loop = loop
        self.store = GatedBackend()
        self.lock = threading.Lock()

    def overlap(self, prompt: Prompt) -> Overlap:
        with self.lock:
            return self.store.overlap(prompt)

    def work(self, task: LaneTask) -> None:
        with self.lock:
            task.acknowledge(self.store.work(task))

    def serve(self, tasks: ThreadReceiver) -> None:
        self.loop(self, tasks)


def well(server: BlockingServer, tasks: ThreadReceiver) -> None:
    for task in tasks:
        server.work(task)


def backends(
    *loops: Loop, old_loop: bool = False
) -> tuple[Callable[[], BlockingBackend], list[BlockingBackend]]:
    """A factory whose n-th instance runs the n-th loop, and the instances it made."""
    made: list[BlockingBackend] = []
    left = [*loops]

    def make() -> BlockingBackend:
        server = BlockingServer(left.pop(0) if left else well)
        made.append(BlockingBackend(server, old_loop=old_loop, join_seconds=0.05))
        return made[-1]

    return make, made


async def until(true: Callable[[], bool]) -> None:
    """Let threads go on until they have made it true; what they do next is behind gates."""
    with trio.fail_after(30):
        while True:
            await trio.lowlevel.checkpoint()
            if true():
                return


@pytest.mark.parametrize("old_loop", [False, True])
async def test_a_blocking_backend_serves_in_order(old_loop: bool) -> None:
    make, made = backends(old_loop=old_loop)
    async with checked_lanes(make, lanes=2) as lanes:
        with trio.fail_after(30):
            answers = await lanes.apply_many(leased(A, length) for length in range(1, 21))
            assert answers == [Applied(1, length) for length in range(20)]
            await lanes.apply(confirmed(B, 2))
            assert depth(lanes, A, 20) == 20
            await lanes.drop("a")
            assert lanes.overlap(prompt(20)).scores() == {B: 2}
            assert made[0].live_threads == 2
            assert lanes.block_size == made[0].block_size == 1
    assert (made[0].live_threads, made[0].abandoned) == (0, 0)


def return_acknowledged(server: BlockingServer, tasks: ThreadReceiver) -> None:
    task = tasks.receive()
    assert task is not None
    server.work(task)


def raise_holding(server: BlockingServer, tasks: ThreadReceiver) -> None:
    tasks.receive()
    raise Broken


def return_holding(server: BlockingServer, tasks: ThreadReceiver) -> None:
    tasks.receive()


def ask_without_acknowledging(server: BlockingServer, tasks: ThreadReceiver) -> None:
    tasks.receive()
    assert tasks.receive() is None  # the lane has given up, and says so


async def test_an_acknowledged_store_is_settled_although_the_thread_returns() -> None:
    make, made = backends(return_acknowledged)
    async with checked_lanes(make, lanes=1) as lanes:
        with trio.fail_after(30):
            assert await lanes.apply(confirmed(A, 2)) == Applied(applied=2)
            await until(lambda: len(made) == 2)
            assert await lanes.apply(confirmed(A, 2)) == Applied(applied=2)


@pytest.mark.parametrize("loop", [raise_holding, return_holding, ask_without_acknowledging])
async def test_a_thread_that_breaks_holding_a_store_tells_its_caller(loop: Loop) -> None:
    make, made = backends(loop)
    async with checked_lanes(make, lanes=1) as lanes:
        with trio.fail_after(30):
            with pytest.raises(LaneCrashed):
                await lanes.apply(confirmed(A, 2))
            assert await lanes.apply(confirmed(A, 2)) == Applied(applied=2)
    assert len(made) == 2


async def test_an_old_loop_may_ask_ahead_and_acknowledge_from_elsewhere() -> None:
    def elsewhere(server: BlockingServer, tasks: ThreadReceiver) -> None:
        helpers = []
        while (task := tasks.receive()) is not None:
            helpers.append(threading.Thread(target=server.work, args=(task,)))
            helpers[-1].start()
        for helper in helpers:
            helper.join()

    make, made = backends(elsewhere, old_loop=True)
    async with checked_lanes(make, lanes=1) as lanes:
        with trio.fail_after(30):
            answers = await lanes.apply_many(leased(A, length) for length in range(1, 21))
            assert answers == [Applied(1, length) for length in range(20)]
    assert made[0].abandoned == 0


async def test_a_thread_that_does_not_end_is_abandoned_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, stuck = threading.Event(), threading.Event()

    def hang(server: BlockingServer, tasks: ThreadReceiver) -> None:
        task = tasks.receive()
        assert task is not None
        stuck.set()
        gate.wait()
        server.work(task)  # a late acknowledgement: it reaches nobody
        assert tasks.receive() is None

    make, made = backends(hang)
    async with checked_lanes(make, lanes=1, drain_seconds=0) as lanes:
        with trio.fail_after(30):
            assert lanes.post(confirmed(A, 1))
            await trio.to_thread.run_sync(stuck.wait)
    assert (made[0].abandoned, made[0].live_threads) == (1, 1)
    assert "gave up on a lane's thread; 1 are alive" in caplog.text
    gate.set()
    await until(lambda: not made[0].live_threads)


async def test_a_lane_that_only_waited_for_a_thread_abandons_none() -> None:
    gate, stuck = threading.Event(), threading.Event()

    def hang(server: BlockingServer, tasks: ThreadReceiver) -> None:
        stuck.set()
        gate.wait()

    backend = BlockingBackend(BlockingServer(hang), threads=1, join_seconds=0.05)
    async with checked_lanes(lambda: backend, lanes=2, drain_seconds=0):
        with trio.fail_after(30):
            await trio.to_thread.run_sync(stuck.wait)
    assert (backend.abandoned, backend.live_threads) == (1, 1)
    gate.set()
    await until(lambda: not backend.live_threads)


async def test_reads_in_the_lane_reach_the_thread() -> None:
    def in_lane() -> BlockingBackend:
        server = BlockingServer(well)
        server.reads_in_caller = False
        return BlockingBackend(server)

    async with checked_lanes(in_lane, lanes=1) as lanes:
        with trio.fail_after(30):
            lanes.post(confirmed(A, 2))
            assert (await lanes.read(prompt(2))).of(A) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be >= 1, got 0"),
        ({"join_seconds": -1.0}, "join_seconds must be finite and >= 0, got -1.0"),
        ({"join_seconds": float("inf")}, "got inf"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockingBackend(BlockingServer(well), **options)  # type: ignore[arg-type]
