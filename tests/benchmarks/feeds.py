"""What following an engine costs, beside receiving its frames and doing nothing with them.

    python -m tests.benchmarks.feeds

A process of its own sends prepared batches as fast as they are taken. The same frames are first
only received, then followed: decoded, hashed and applied to a `RadixIndex` through a lane. Then
they are sent at half the rate at which they can be followed, while a ticker in the same loop
notes how late it wakes.

Rates are by the wall clock, medians of five rounds in alternation: a machine that does something
else disturbs both, and the ratio is taken round by round. Beside them stands what a batch costs
the loop's own thread. Who only receives is faster than the sender: the sender sets that rate.

Two workloads are what an engine really sent, recorded: the same batches over and over, the cache
emptied before each time.
"""
# flake8: noqa: ASYNC110 - a look now and then costs less than to be woken for every batch

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, TypeAlias

import msgspec
import trio
import zmq

from kvlanes.engine.feeds import LaneSink, VllmEvents
from kvlanes.engine.feeds._socket import Receiver, subscriber, zmq_context
from kvlanes.indexer import RadixIndex
from kvlanes.nursery import open_lanes
from tests.feeds.frames import recorded

BLOCK_SIZE = 16
ROUNDS = 5
TIMES_RECEIVED = 4  # so that both take about as long: a short run escapes its share of the load
Rates: TypeAlias = tuple[float, float]  # batches a second, own microseconds a batch
WORKLOADS: dict[str, tuple[int | str, int]] = {
    "1 block": (1, 20_000),
    "8 blocks": (8, 10_000),
    "39 blocks": (39, 4_000),
    "vLLM": ("vllm_0_33_0_int", 10_000),
    "SGLang": ("sglang_0_5_23_default", 10_000),
}
"""Blocks stored, and as many removed, a batch, or a recording; and batches a run."""


# -- the sending process


def batches(blocks: int, count: int) -> Iterator[bytes]:
    """Stores of new prompts; once 500 are held, each batch also gives up the oldest."""
    for at in range(count):
        names = [at << 16 | block for block in range(1, blocks + 1)]
        events: list[Any] = [
            {
                "type": "BlockStored",
                "block_hashes": names,
                "parent_block_hash": None,
                "token_ids": [at, *range(1, blocks * BLOCK_SIZE)],
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None] * blocks,
                "group_idx": 0,
            }
        ]
        if at >= 500:
            # One event a block, leaf first, as vLLM writes them.
            events += [
                {
                    "type": "BlockRemoved",
                    "block_hashes": [(at - 500) << 16 | block],
                    "medium": "GPU",
                }
                for block in range(blocks, 0, -1)
            ]
        yield msgspec.msgpack.encode([float(at), events, 0])


def replayed(name: str) -> Iterator[bytes]:
    """A recording without end."""
    payloads = [message[-1] for message in recorded(name)]
    emptied = msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}], 0])
    return cycle([emptied, *payloads])


def send(workload: str, count: int, times: int, rate: float) -> None:
    """Send to whoever subscribes first, `rate` batches a second, 0 for as fast as they go."""
    what = WORKLOADS[workload][0]
    endless = replayed(what) if isinstance(what, str) else batches(what, count)
    payloads = list(islice(endless, count))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_NODROP, 1)  # a full queue makes it wait: no frame is lost
    socket.bind("tcp://127.0.0.1:*")
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    print(endpoint.decode().rstrip("\0"), flush=True)
    socket.recv()
    begun = time.perf_counter()
    for at, payload in enumerate(payloads * times):
        if rate:
            # In steps of 2 ms, as an engine publishes its steps.
            due = begun + at // max(1, int(rate / 500)) * 0.002
            time.sleep(max(0.0, due - time.perf_counter()))
        while True:
            try:
                socket.send_multipart([b"", at.to_bytes(8, "big"), payload])
                break
            except zmq.Again:
                time.sleep(0.0001)
    sys.stdin.readline()


class Sender:
    """The sending process."""

    def __init__(self, workload: str, count: int, times: int = 1, rate: float = 0.0) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.feeds", "send"]
        self._process = subprocess.Popen(
            [*command, workload, str(count), str(times), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate("\n")


# -- this process


class Timer:
    """Batches a second by the wall clock, and microseconds a batch of this thread's own time."""

    def __init__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.thread_time()

    def stop(self, batches: int) -> Rates:
        own = time.thread_time() - self._own
        return batches / (time.perf_counter() - self._wall), 1e6 * own / batches


async def received(endpoint: str, count: int) -> Rates:
    """Only receive, from the first batch to the last."""
    with zmq_context() as context:
        socket = subscriber(context, 2**26, None)
        socket.subscribe("")
        receiver = Receiver(socket)
        socket.connect(endpoint)
        await receiver.receive()
        timer = Timer()
        for _ in range(count - 1):
            await receiver.receive()
        rates = timer.stop(count - 1)
        receiver.close()
    return rates


async def followed(endpoint: str, count: int, ticks: list[float] | None = None) -> Rates:
    """Follow, from the first batch to the last."""
    async with (
        open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes,
        trio.open_nursery() as nursery,
    ):
        sink = LaneSink(lanes, "w0", block_size=BLOCK_SIZE)
        nursery.start_soon(VllmEvents(endpoint).run, sink)
        while not sink.feeds:
            await trio.lowlevel.checkpoint()
        feed = sink.feeds[0]
        await feed.until(lambda feed: feed.counts.batches > 0)
        timer, first = Timer(), feed.counts.batches
        if ticks is not None:
            nursery.start_soon(tick, ticks)
        # Not `until`, which would wake this task for every batch.
        while feed.counts.batches < count:
            await trio.sleep(0.002)
        rates = timer.stop(count - first)
        assert (feed.counts.losses, feed.counts.unreadable_batches) == (0, 0)
        nursery.cancel_scope.cancel()
    return rates


async def tick(late: list[float]) -> None:
    """Wake every millisecond, and note how much too late."""
    while True:
        due = trio.current_time() + 0.001
        await trio.sleep_until(due)
        late.append(trio.current_time() - due)


def rounds(workload: str, count: int) -> tuple[list[Rates], list[Rates]]:
    """Receiving and following, in alternation."""
    raw: list[Rates] = []
    full: list[Rates] = []
    for _ in range(ROUNDS):
        for run, into, times in ((received, raw, TIMES_RECEIVED), (followed, full, 1)):
            sender = Sender(workload, count, times)
            into.append(trio.run(run, sender.endpoint, count * times))
            sender.stop()
    return raw, full


def _medians(rates: list[Rates]) -> Rates:
    return statistics.median(rate for rate, _ in rates), statistics.median(own for _, own in rates)


def lateness(workload: str, count: int, rate: float) -> tuple[float, float]:
    """Median and 99th percentile of a ticker's lateness in ms."""
    late: list[float] = []
    batches = min(count, int(3 * rate))
    sender = Sender(workload, batches, rate=rate)
    trio.run(followed, sender.endpoint, batches, late)
    sender.stop()
    cuts = statistics.quantiles(late, n=100)
    return 1e3 * cuts[49], 1e3 * cuts[98]


async def ticking(late: list[float]) -> None:
    """The ticker alone: what the machine itself makes late."""
    with trio.move_on_after(2):
        await tick(late)


def main() -> None:
    alone: list[float] = []
    trio.run(ticking, alone)
    print(f"a ticker alone is late by {1e3 * statistics.quantiles(alone, n=100)[98]:.2f} ms at p99")
    print(f"{'':<10} {'batches/s':^21} {'T10':>6}  {'own us a batch':^16}  {'late, ms (T11)':^16}")
    print(
        f"{'a batch':<10} {'received':>10} {'followed':>10} {'>= 30%':>6}"
        f"  {'receive':>8} {'follow':>7}  {'p50':>7} {'p99 <= 5':>8}"
    )
    for name, (_, count) in WORKLOADS.items():
        raws, fulls = rounds(name, count)
        (raw, raw_own), (full, full_own) = _medians(raws), _medians(fulls)
        share = statistics.median(full / raw for (raw, _), (full, _) in zip(raws, fulls))
        p50, p99 = lateness(name, count, full / 2)
        print(
            f"{name:<10} {raw:>10,.0f} {full:>10,.0f} {share:>6.0%}"
            f"  {raw_own:>8.1f} {full_own:>7.1f}  {p50:>7.2f} {p99:>8.2f}",
            flush=True,
        )


def run(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["send"]:
        send(arguments[1], int(arguments[2]), int(arguments[3]), float(arguments[4]))
    else:
        main()


if __name__ == "__main__":
    run(sys.argv[1:])
