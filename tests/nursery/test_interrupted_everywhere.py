"""Ctrl-C before every line of the lanes' code that has no protection: it tears nothing there."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import kvlanes.nursery
from kvlanes.indexer import Applied, RadixIndex, Rank
from kvlanes.nursery import LaneClosed, LaneSet, open_lanes
from tests.nursery.scenes import A, B, C, confirmed, leased, prompt
from tests.nursery.served import GatedBackend
from tests.nursery.test_interrupts import ctrl_c as ctrl_c
from tests.support.interrupts import Interrupter, bounded
from tests.support.schedule import scheduled

NURSERY = Path(kvlanes.nursery.__file__).parent
# Dispatch has a test of its own, with what it holds; threads are not of one course.
ELSEWHERE = {"_dispatch.py", "_branches.py", "_blocking.py"}
OURS = {str(path) for path in NURSERY.glob("*.py") if path.name not in ELSEWHERE}
# Of our lines those that a backend calls in its own time: Ctrl-C may end it there.
BACKENDS_TIME = {
    "_interruptible",
    "TaskReceiver.__aiter__",
    "TaskReceiver.__anext__",
    "LaneTask.<lambda>",
    "LaneTask.acknowledge",
}

POOLED, CAPACITY = Rank("pooled"), 4


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def everything(lanes: LaneSet) -> None:
    async with trio.open_nursery() as nursery:
        for length in (1, 2, 3):
            nursery.start_soon(lanes.apply, leased(A, length, 5.0))
        lanes.post(confirmed(B, 1))
        await lanes.apply_many([confirmed(C, length) for length in (1, 2, 3)])
    pooled = lanes.attach(POOLED)
    lanes.set_capacity(pooled, CAPACITY)
    room = lanes.occupy(pooled, prompt(2))
    try:
        room.grow(private_blocks=1)
    finally:
        room.close()
    await lanes.flush()
    await lanes.reset(A)
    await lanes.drop("b")
    await lanes.read(prompt(2))
    await lanes.apply(leased(A, 2, 1.0))
    await trio.sleep(6.0)


async def whole(lanes: LaneSet) -> None:
    """What was interrupted is done or was never begun; nothing is half done for ever."""
    await lanes.flush()
    await trio.sleep(6.0)
    assert lanes.statistics().leases_held == lanes.statistics().total("depth") == 0
    for rank in (A, B, C):
        await lanes.apply(leased(rank, 4, 1.0))
    await trio.sleep(2.0)
    assert lanes.statistics().leases_held == 0
    pooled = lanes.attach(POOLED)
    lanes.set_capacity(pooled, CAPACITY)
    lanes.occupy(pooled, prompt(CAPACITY, family=1)).close()
    await lanes.flush()
    assert (await lanes.read(prompt(9, family=1))).of(POOLED) == CAPACITY
    for rank in (A, B, C, POOLED):
        await lanes.drop(rank.worker_id)
    assert (await lanes.read(prompt(9))).scores() == {}
    assert lanes.statistics().total("ranks") == 0
    assert await lanes.apply(confirmed(A, 2)) == Applied(applied=2)
    assert (await lanes.read(prompt(9))).scores() == {A: 2}


def in_lane() -> GatedBackend:
    return GatedBackend(reads_in_caller=False)


KINDS: list[tuple[Callable[[], Any], dict[str, Any]]] = [
    (lambda: RadixIndex(1), {}),
    (lambda: RadixIndex(1), {"in_place": False, "queue_capacity": 2}),
    (in_lane, {"queue_capacity": 2}),
]


def run(interrupter: Interrupter, make_index: Callable[[], Any], options: dict[str, Any]) -> None:
    seen: list[LaneSet] = []

    async def main() -> None:
        async with open_lanes(make_index, lanes=2, **options) as lanes:
            seen.append(lanes)
            try:
                await everything(lanes)
            finally:
                with trio.fail_after(60.0, shield=True):
                    await whole(lanes)

    with bounded(), interrupter, scheduled(1):
        try:
            trio.run(main, clock=MockClock(autojump_threshold=0))
        finally:
            for lanes in seen:
                statistics = lanes.statistics()
                assert statistics.total("depth") == statistics.total("waiting_for_room") == 0


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("make_index", "options"), KINDS, ids=["in-place", "queued", "served"])
def test_wherever_ctrl_c_comes_the_lanes_stay_whole_and_end(
    make_index: Callable[[], Any], options: dict[str, Any]
) -> None:
    run(clean := Interrupter(OURS), make_index, options)
    for line in clean.lines:
        ends: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
        if line[1] in BACKENDS_TIME:
            ends += (LaneClosed,)
        try:
            run(Interrupter(OURS, line), make_index, options)
        except* ends:
            pass
        except* BaseException as group:
            group.add_note(f"interrupted at {line}")
            raise
        else:
            pytest.fail(f"nothing was raised at {line}")
