"""A hundred thousand requests over 16 workers that come, go, crash and stall: run on demand.

    python -m tests.engine.soak [requests] [seed]

No threads, virtual time. At the end every book must be at zero; the resident size must grow by
less than 2 % between the second and the tenth tenth; and a second run of the same seed must end
with the same digest. Exit code 1 when one of these fails.
"""
# flake8: noqa: ASYNC124 - asynchronous in order to run in a loop

import gc
import logging
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import trio
from trio.testing import MockClock

from kvlanes.engine import Engine, Worker, open_engine
from kvlanes.engine.testing import assert_engine_idle
from tests.engine.scenes import config
from tests.engine.traffic import Traffic, traffic_gate
from tests.support.schedule import scheduled

TENTHS = 10
GROWTH_ALLOWED = 0.02  # of the resident size, second to tenth tenth

FLEET = (
    *(Worker(f"plain-{number}") for number in range(6)),
    *(Worker(f"pool-{number}", capacity_blocks=400) for number in range(4)),
    *(Worker(f"fed-{number}") for number in range(4)),
    *(Worker(f"wide-{number}", dp_size=2) for number in range(2)),
)


@attrs.frozen
class Report:
    """What one run ended with.

    Attributes:
        digest: Of every routing decision and every ending, in order.
        told: How requests ended, by kind.
        sizes: Resident bytes after each tenth.
        crashes: How often the index broke.
    """

    digest: str
    told: Counter[str]
    sizes: list[int]
    crashes: int

    @property
    def growth(self) -> float:
        return self.sizes[-1] / self.sizes[1] - 1.0


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def tenths(engine: Engine, traffic: Traffic, requests: int) -> list[int]:
    sizes = []
    for _ in range(TENTHS):
        await traffic.clients(engine, requests // TENTHS, at_once=64)
        engine.check()
        traffic.indexes[-1].check()
        sizes.append(resident_bytes())
        del traffic.indexes[:-1]
    return sizes


async def life(requests: int, seed: int) -> Report:
    rng = random.Random(seed)
    traffic = Traffic(rng, FLEET)
    settings = config(ttl_seconds=30, predicted_ttl_seconds=2, grace_seconds=0.5, seed=seed)
    async with trio.open_nursery() as threads:
        gate = traffic_gate(threads, rng, total=112, queue_limit=12)
        async with open_engine(settings, gate=gate, make_index=traffic.make_index) as engine:
            engine.register(*FLEET)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(traffic.troubles, engine, 21.0)
                sizes = await tenths(engine, traffic, requests)
                nursery.cancel_scope.cancel()
            await gate.wait_idle()
        assert_engine_idle(engine)
    assert traffic.done == requests // TENTHS * TENTHS
    digest = f"{engine.digest()} {sorted(traffic.told.items())}"
    return Report(digest, traffic.told, sizes, engine.lanes.statistics().crashes)


def soak(requests: int, seed: int) -> Report:
    """One run, in the order of tasks that the seed stands for."""
    with scheduled(seed):
        return trio.run(life, requests, seed, clock=MockClock(autojump_threshold=0))


def main(arguments: list[str]) -> int:
    """Two runs of one seed, printed; 1 when they disagree or memory grows."""
    requests, seed = (int(text) for text in [*arguments, "100000", "1"][:2])
    logging.disable(logging.CRITICAL)  # every crash of the index is one line too many
    reports = []
    for _ in range(2):
        began = time.perf_counter()
        reports.append(report := soak(requests, seed))
        took = time.perf_counter() - began
        print(f"{requests} requests in {took:.0f} s, {report.crashes} crashes: all books at zero")
        print(f"  {dict(report.told)}")
        print(f"  resident MiB by tenth: {[size >> 20 for size in report.sizes]}")
        print(f"  growth from the second to the tenth tenth: {report.growth:+.2%}")
    same = reports[0].digest == reports[1].digest
    print(f"digest {'the same twice' if same else 'DIFFERS'}: {reports[0].digest.split()[0]}")
    # A second run in one process begins with a warm heap, so its growth is the honest figure too.
    flat = all(report.growth < GROWTH_ALLOWED for report in reports)
    print("memory is flat" if flat else "memory GROWS")
    return 0 if same and flat else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
