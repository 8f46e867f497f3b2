"""Requests, weights, deadlines, cancellations, stubborn work, threads and resizes, in any order."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.admission.plans import PLANS, Plan, Run
from tests.support.profiles import budget
from tests.support.schedule import scheduled

ORDERS = budget(ci=5, deep=20)  # of each plan


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What is logged is tested elsewhere; here it would only cost time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# Every way in which a request can end; a plan that never reached one would check nothing there.
ENDS = {
    *("Completed", "Failed", "DeadlineExpired", "overrun", "hung up", "DeadlinePassed"),
    *("CapacityExhausted", "RequestTooLarge", "GroupExhausted", "QueueFull", "GateClosed"),
    "no thread",
}


def test_whatever_happens_the_books_balance() -> None:
    """held + free == total at every step, never above the total, and idle == total."""
    wanted = budget(ci=500, deep=50_000)
    seen: set[tuple[int, ...]] = set()
    events: Counter[str] = Counter()

    @settings(max_examples=wanted // ORDERS * 3)
    @given(plan=PLANS, seed=st.integers(0, 2**64 - 1))
    def explore(plan: Plan, seed: int) -> None:
        if len(seen) >= wanted and set(events) >= ENDS:
            return

        async def main() -> None:
            run = Run(plan)
            await run.play()
            events.update(run.events)

        for order in range(ORDERS):
            with scheduled(seed * ORDERS + order) as schedule:
                trio.run(main, clock=MockClock(autojump_threshold=0))
            seen.add(tuple(schedule.trace))

    explore()
    print(f"{len(seen)} distinct schedules, {dict(events)}")
    assert len(seen) >= wanted
    assert set(events) >= ENDS
