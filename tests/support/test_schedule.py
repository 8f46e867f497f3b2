"""Pins what `schedule.py` assumes about Trio's private run queue."""

import trio

from tests.support.schedule import scheduled


def order(seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    steps: list[int] = []

    async def worker(number: int) -> None:
        for _ in range(3):
            steps.append(number)
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(worker, number)

    with scheduled(seed) as schedule:
        trio.run(main)
    return tuple(steps), tuple(schedule.trace)


def test_one_seed_is_one_order() -> None:
    assert order(7) == order(7)


def test_seeds_reach_many_orders() -> None:
    assert len({order(seed)[0] for seed in range(100)}) > 80


def test_orders_differ_only_where_choices_differ() -> None:
    seen = [order(seed) for seed in range(100)]
    assert len({trace for _, trace in seen}) >= len({steps for steps, _ in seen})
