"""Explores the orders in which Trio may run its tasks, one drawn 64-bit seed an order.

Trio shuffles each batch of runnable tasks with a private random generator; Hypothesis pins that
generator to one seed, so without this module every example of a property test runs the *same*
order. The generator is replaced before the run: nothing is drawn inside the loop, where an
exception of Hypothesis would tear Trio's run apart. `test_schedule.py` pins the private name.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio._core._run as trio_run


class Schedule:
    """Stands in for Trio's generator; records every choice it made in `trace`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.trace: list[int] = []

    def shuffle(self, batch: list[Any]) -> None:
        """Order one batch."""
        for i in range(len(batch) - 1, 0, -1):
            j = self._random.randrange(i + 1)
            self.trace.append(j)
            batch[i], batch[j] = batch[j], batch[i]

    def random(self) -> float:
        return self._random.random()

    def uniform(self, a: float, b: float) -> float:
        return self._random.uniform(a, b)


@contextmanager
def scheduled(seed: int) -> Iterator[Schedule]:
    """Run what is inside with the order that `seed` stands for."""
    schedule = Schedule(seed)
    module: Any = trio_run
    saved = module._r, module._ALLOW_DETERMINISTIC_SCHEDULING
    module._r, module._ALLOW_DETERMINISTIC_SCHEDULING = schedule, True
    try:
        yield schedule
    finally:
        module._r, module._ALLOW_DETERMINISTIC_SCHEDULING = saved
