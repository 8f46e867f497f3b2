"""What an acknowledged store through the lanes costs, beside other lane designs.

`python -m tests.benchmarks.lanes [designs] [leases] [expiry] [reference]`, all without arguments.

designs    T1: the same step in place, behind a full checkpoint, and behind a channel and an Event.
leases     T2: the same chain refreshed with a finite and with an infinite TTL.
expiry     T2: ending a million leased blocks, in slices, against storing them.
reference  The workload that the reference measures itself with, in alternating fresh processes.
"""

import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, Lease, Mutation, Prompt, RadixIndex, Rank, Store
from kvlanes.nursery import LaneSet, open_lanes

CHAINS = 64
RANKS = [Rank(f"worker-{number}") for number in range(8)]
Apply = Callable[[Mutation], Awaitable[Applied]]


def chain(blocks: int, family: int) -> bytes:
    tokens = [family * 1000 + number for number in range(blocks)]
    return Prompt(tokens, 1).blocks


def stores(blocks: int, lease: Lease) -> list[Store]:
    """Chains for every rank; copies, so that no comparison is short-cut by identity."""
    chains = [bytes(bytearray(chain(blocks, family))) for family in range(CHAINS)]
    return [
        Store(RANKS[number % len(RANKS)], None, blocks, lease=lease)
        for number, blocks in enumerate(chains)
    ]


class ChannelActor:
    """The obvious lane: a memory channel in, an Event out; the step itself is ours."""

    def __init__(self, lanes: LaneSet, count: int) -> None:
        self.lanes = lanes
        self.channels = [
            trio.open_memory_channel[tuple[Mutation, trio.Event, list[Applied]]](1024)
            for _ in range(count)
        ]

    async def run(self, number: int) -> None:
        async with self.channels[number][1] as receive:
            async for mutation, done, result in receive:
                result.append(self.lanes.apply_nowait(mutation))
                done.set()

    async def apply(self, mutation: Mutation) -> Applied:
        done, result = trio.Event(), list[Applied]()
        send = self.channels[hash(mutation.rank) % len(self.channels)][0]
        await send.send((mutation, done, result))
        await done.wait()
        return result[0]


class FullCheckpoint:
    """Our step in the caller, with a whole Trio checkpoint every call."""

    def __init__(self, lanes: LaneSet) -> None:
        self.lanes = lanes

    async def apply(self, mutation: Mutation) -> Applied:
        await trio.lowlevel.checkpoint_if_cancelled()
        applied = self.lanes.apply_nowait(mutation)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return applied


@attrs.frozen
class Cost:
    """Of one acknowledged store."""

    wall_us: float
    cpu_us: float


async def timed(apply: Apply, mutations: list[Store], clients: int, calls: int) -> Cost:
    async def client(number: int) -> None:
        await trio.lowlevel.checkpoint()
        for call in range(calls // clients):
            await apply(mutations[(call + number) % len(mutations)])

    for mutation in mutations:
        await apply(mutation)
    gc.collect()
    gc.disable()
    cpu, wall = time.process_time(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(client, number)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    gc.enable()
    return Cost(wall / calls * 1e6, cpu / calls * 1e6)


async def one_run(
    design: str, blocks: int, lanes: int, clients: int, calls: int, ttl_seconds: float
) -> Cost:
    async with (
        open_lanes(lambda: RadixIndex(1), lanes=lanes) as lane_set,
        trio.open_nursery() as nursery,
    ):
        actor = ChannelActor(lane_set, lanes)
        for number in range(lanes):
            nursery.start_soon(actor.run, number)
        applies: dict[str, Apply] = {
            "ours": lane_set.apply,
            "checkpoint": FullCheckpoint(lane_set).apply,
            "channel": actor.apply,
        }
        cost = await timed(applies[design], stores(blocks, Lease(ttl_seconds)), clients, calls)
        nursery.cancel_scope.cancel()
    return cost


def verdict(name: str, ratio: float, target: float) -> None:
    reached = "reached" if ratio >= 0.8 * target else "LOSS"
    print(f"    {name}: {ratio:.1f}x, target {target:g}x: {reached}")


def designs() -> None:
    print("T1  acknowledged leased store, idle lanes, 16 clients; us a store, median of 5 runs")
    for lanes in (1, 4):
        for blocks in (1, 16, 128):
            costs: dict[str, list[float]] = {"ours": [], "checkpoint": [], "channel": []}
            for _ in range(5):
                for design, seen in costs.items():
                    cost = trio.run(one_run, design, blocks, lanes, 16, 4_800, 100.0)
                    seen.append(cost.wall_us)
            middle = {design: statistics.median(seen) for design, seen in costs.items()}
            shown = "  ".join(f"{design} {cost:.2f}" for design, cost in middle.items())
            print(f"  {lanes} lanes, {blocks:3} blocks: {shown}")
            for design, target in (("channel", 8.0), ("checkpoint", 2.0)):
                ratios = [a / b for a, b in zip(costs[design], costs["ours"])]
                verdict(f"against {design}", statistics.median(ratios), target)


def leases() -> None:
    print("T2  refreshing a chain with a finite against an infinite TTL, 1 client, median of 5")
    for blocks in (1, 16, 128):
        extra = []
        for _ in range(5):
            runs = {
                ttl: min(
                    trio.run(one_run, "ours", blocks, 1, 1, 9_600, ttl).wall_us for _ in range(3)
                )
                for ttl in (100.0, math.inf)
            }
            extra.append(runs[100.0] / runs[math.inf] - 1)
        more = statistics.median(extra)
        reached = "reached" if 1 + more <= 1.10 / 0.8 else "LOSS"
        print(f"  {blocks:3} blocks: {more:+.1%} time, target <= +10%: {reached}")


async def live_million(clock: MockClock) -> tuple[float, float]:
    """Seconds to store, then to expire, a million leased blocks in chains of 16."""
    lease = Lease(100.0)
    mutations = [Store(RANKS[n % 8], None, chain(16, n), lease=lease) for n in range(62_500)]
    async with open_lanes(lambda: RadixIndex(1)) as lanes:
        start = time.perf_counter()
        for mutation in mutations:
            await lanes.apply(mutation)
        stored = time.perf_counter() - start
        clock.jump(101.0)
        start = time.perf_counter()
        await wait_all_tasks_blocked()
        expired = time.perf_counter() - start
        assert lanes.statistics().total("leases_expired") == 1_000_000
        return stored, expired


def expiry() -> None:
    print("T2  expiring 1e6 leased blocks (chains of 16) against storing them, median of 3")
    ratios = []
    for _ in range(3):
        clock = MockClock()
        stored, expired = trio.run(live_million, clock, clock=clock)
        ratios.append(stored / expired)
        print(f"  stored in {stored:.2f} s, expired in {expired:.2f} s")
    verdict("storing / expiring", statistics.median(ratios), 1.0)


def cells() -> Iterator[tuple[int, int, int, int]]:
    """Blocks, lanes, clients, calls: 10,000 sequential stores, 48,000 concurrent ones."""
    for blocks in (1, 16, 128):
        for lanes in (1, 4):
            yield blocks, lanes, 1, 10_000
            yield blocks, lanes, 16, 48_000


def in_fresh_process(*cell: float) -> Cost:
    command = [sys.executable, "-m", "tests.benchmarks.lanes", "--cell", json.dumps(cell)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(*json.loads(done.stdout))


def run_cell(text: str) -> None:
    blocks, lanes, clients, calls, ttl_seconds = json.loads(text)
    cost = trio.run(one_run, "ours", blocks, lanes, clients, calls, ttl_seconds)
    print(json.dumps([cost.wall_us, cost.cpu_us]))


def reference() -> None:
    print("reference workload, median of 7 alternating pairs of fresh processes, leases / none")
    for blocks, lanes, clients, calls in cells():
        pairs = [
            [in_fresh_process(blocks, lanes, clients, calls, ttl) for ttl in (120.0, math.inf)]
            for _ in range(7)
        ]
        with_leases, without = zip(*pairs)
        rate = [1e6 / statistics.median(c.wall_us for c in side) for side in (with_leases, without)]
        cpu = [statistics.median(c.cpu_us for c in side) for side in (with_leases, without)]
        print(
            f"  {blocks:3} blocks, {lanes} lanes, {clients:2} clients, {calls} stores: "
            f"{rate[0] / 1e3:.0f} / {rate[1] / 1e3:.0f} thousand a second, "
            f"{cpu[0]:.2f} / {cpu[1]:.2f} us CPU a store"
        )


SECTIONS = {"designs": designs, "leases": leases, "expiry": expiry, "reference": reference}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--cell"]:
        run_cell(arguments[1])
        return
    for name in arguments or SECTIONS:
        SECTIONS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
