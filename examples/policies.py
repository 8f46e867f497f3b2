"""Four ways to choose a worker, over one trace: round robin, session hash, least loaded, kvlanes.

    python -m examples.policies [requests]

The trace is `KVLANES_TRACE`, or `../shared/data/conversation_trace.jsonl`, or a synthetic one: a
line a request with `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`
(equal ids are equal prefixes). The workers are simulated, in virtual time: each really keeps a
bounded cache of prefix blocks, least recently used out first, prefills one prompt at a time and
decodes many. Only `kvlanes` knows their caches, and only from what it sent there.

Caching the most is not the aim: a hash keeps every conversation where it began, also behind a long
queue. What a caller feels is the time until the first token, so the table shows it. Decoding costs
these workers little, which `Weights(prefill=4)` tells the engine in the last line.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import struct
import sys
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from kvlanes.engine import EngineConfig, Prompt, Weights, Worker, open_engine

BLOCK_TOKENS = 512
PREFILL_TOKENS_A_SECOND = 12_000
DECODE_TOKENS_A_SECOND = 60
WORKERS = 8
CACHE_BLOCKS = 2_000  # a worker; about a million tokens
TRACE = Path(__file__).parents[2] / "shared" / "data" / "conversation_trace.jsonl"


@attrs.frozen
class Entry:
    """One request of a trace; times in seconds."""

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


@attrs.define(eq=False)
class SimulatedWorker:
    """A worker with a real, bounded prefix cache; written by `serve` alone."""

    name: str
    capacity_blocks: int
    cache: OrderedDict[int, None] = attrs.Factory(OrderedDict)  # least recently used first
    running: int = 0
    prefilled_tokens: int = 0
    cached_blocks: int = 0
    waits_seconds: list[float] = attrs.Factory(list)  # until the first token, a request
    free_at: float = 0.0  # when the prefills that wait here are done

    async def serve(self, entry: Entry, first_output: Callable[[], None]) -> int:
        """Prefill what the cache lacks, decode, and return the prompt tokens it had cached."""
        self.running += 1
        try:
            cached_tokens = min(self._look_up(entry.blocks) * BLOCK_TOKENS, entry.prompt_tokens)
            missing_tokens = entry.prompt_tokens - cached_tokens
            self.prefilled_tokens += missing_tokens
            came = trio.current_time()
            self.free_at = max(came, self.free_at) + missing_tokens / PREFILL_TOKENS_A_SECOND
            await trio.sleep_until(self.free_at)
            self.waits_seconds.append(trio.current_time() - came)
            first_output()
            await trio.sleep(entry.output_tokens / DECODE_TOKENS_A_SECOND)
            return cached_tokens
        finally:
            self.running -= 1

    def _look_up(self, blocks: Sequence[int]) -> int:
        """Cached blocks of the prefix; afterwards all of it is cached, as far as it fits."""
        hits = sum(1 for _ in itertools.takewhile(self.cache.__contains__, blocks))
        self.cached_blocks += hits
        for block in reversed(blocks):  # the root stays longest
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.capacity_blocks:
            self.cache.popitem(last=False)
        return hits


Send = Callable[[Entry], Awaitable[object]]


async def replay(trace: Iterable[Entry], send: Send) -> None:
    """Send each request at its time, whatever became of those before."""
    async with trio.open_nursery() as nursery:
        for entry in trace:
            await trio.sleep_until(entry.at)
            nursery.start_soon(send, entry)


async def by_choice(
    trace: Sequence[Entry], workers: Sequence[SimulatedWorker], policy: str
) -> None:
    """A policy that looks at the request and at running requests alone."""
    turn = itertools.cycle(workers)
    choices: dict[str, Callable[[Entry], SimulatedWorker]] = {
        "round robin": lambda entry: next(turn),
        # The first block is a system prompt that many conversations share; the second is theirs.
        "session hash": lambda entry: workers[
            zlib.crc32(repr(entry.blocks[:2]).encode()) % len(workers)
        ],
        "least loaded": lambda entry: min(workers, key=lambda worker: worker.running),
    }
    choose = choices[policy]
    await replay(trace, lambda entry: choose(entry).serve(entry, lambda: None))


async def by_kvlanes(
    trace: Sequence[Entry], workers: Sequence[SimulatedWorker], weights: Weights
) -> None:
    """The engine: routes, reserves, dispatches, and models each worker's block pool."""
    named = {worker.name: worker for worker in workers}
    config = EngineConfig(block_size=BLOCK_TOKENS, permits=len(trace), weights=weights)
    async with open_engine(config) as engine:
        engine.register(*(Worker(w.name, capacity_blocks=w.capacity_blocks) for w in workers))

        async def send(entry: Entry) -> None:
            packed = struct.pack(f">{len(entry.blocks)}Q", *entry.blocks)
            async with engine.request(seconds=3600) as request:
                held = request.route(Prompt.from_blocks(packed, BLOCK_TOKENS))
                serve = named[held.route.worker].serve
                (await held.dispatch(serve, entry, held.first_output)).unwrap()

        await replay(trace, send)


@attrs.frozen
class Outcome:
    """How one policy fared.

    Attributes:
        policy: Its name.
        cached_share: Blocks found in a cache, of all blocks.
        saved_share: Prompt tokens that needed no prefill.
        spread: Tokens prefilled by the busiest worker over the mean.
        mean_wait_seconds: From a request's arrival until its first token.
        long_wait_seconds: The same for the slowest hundredth.
    """

    policy: str
    cached_share: float
    saved_share: float
    spread: float
    mean_wait_seconds: float
    long_wait_seconds: float


OURS = {"kvlanes": Weights(), "kvlanes, prefill=4": Weights(prefill=4.0)}
POLICIES = ("round robin", "session hash", "least loaded", *OURS)


def run(policy: str, trace: Sequence[Entry], count: int, capacity_blocks: int) -> Outcome:
    """Send a trace to fresh workers by one policy."""
    workers = [SimulatedWorker(f"gpu-{number}", capacity_blocks) for number in range(count)]

    async def simulate() -> None:
        if policy in OURS:
            await by_kvlanes(trace, workers, OURS[policy])
        else:
            await by_choice(trace, workers, policy)

    trio.run(simulate, clock=MockClock(autojump_threshold=0))
    prefilled = [worker.prefilled_tokens for worker in workers]
    waits = sorted(itertools.chain.from_iterable(worker.waits_seconds for worker in workers))
    return Outcome(
        policy,
        cached_share=sum(w.cached_blocks for w in workers) / sum(len(e.blocks) for e in trace),
        saved_share=1 - sum(prefilled) / sum(entry.prompt_tokens for entry in trace),
        spread=max(prefilled) * count / sum(prefilled),
        mean_wait_seconds=statistics.mean(waits),
        long_wait_seconds=waits[int(len(waits) * 0.99)],
    )


def read_trace(path: Path, most: int) -> list[Entry]:
    """The first requests of a trace file."""
    with path.open() as lines:
        return [_entry(json.loads(line)) for line in itertools.islice(lines, most)]


def _entry(row: dict[str, Any]) -> Entry:
    tokens, ids = row["input_length"], row["hash_ids"]
    blocks = tuple(ids[: tokens // BLOCK_TOKENS])  # the last one may be incomplete
    return Entry(row["timestamp"] / 1000, tokens, row["output_length"], blocks)


def synthetic_trace(most: int, seed: int = 0) -> list[Entry]:
    """Conversations that grow turn by turn under one system prompt."""
    rng = random.Random(seed)
    conversations: dict[int, list[int]] = {}
    fresh = itertools.count(1)
    entries = []
    for number in range(most):
        blocks = conversations.setdefault(rng.randrange(1 + most // 8), [0])
        blocks.extend(itertools.islice(fresh, rng.randint(2, 12)))
        tokens = len(blocks) * BLOCK_TOKENS + rng.randrange(BLOCK_TOKENS)
        entries.append(Entry(1.0 * number, tokens, rng.randint(20, 600), tuple(blocks)))
    return entries


def table(outcomes: Iterable[Outcome]) -> str:
    """The outcomes, a line each; times in virtual seconds."""
    heads = ("blocks cached", "prefill saved", "load spread", "first token", "slowest 1%")
    lines = [f"{'policy':20}" + "".join(f"{head:>15}" for head in heads)]
    lines += [
        f"{o.policy:20}{o.cached_share:>15.1%}{o.saved_share:>15.1%}{o.spread:>15.2f}"
        f"{o.mean_wait_seconds:>13.2f} s{o.long_wait_seconds:>13.2f} s"
        for o in outcomes
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Compare the policies over one trace and print a table."""
    parser = argparse.ArgumentParser(description="Four ways to choose a worker, over one trace.")
    parser.add_argument("requests", nargs="?", type=int, default=4_000, help="4,000 by default")
    most = parser.parse_args(arguments).requests
    path = Path(os.environ.get("KVLANES_TRACE", TRACE))
    trace = read_trace(path, most) if path.exists() else synthetic_trace(most)
    source = path.name if path.exists() else "a synthetic trace"
    print(
        f"the first {len(trace)} requests of {source}, {WORKERS} workers of {CACHE_BLOCKS} blocks"
    )
    print(table(run(policy, trace, WORKERS, CACHE_BLOCKS) for policy in POLICIES))


if __name__ == "__main__":
    main(sys.argv[1:])
