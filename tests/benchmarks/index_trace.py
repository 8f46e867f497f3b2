"""T5, the conversation trace, and T7, how even the calls are."""

import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlanes.indexer import Clear, Prompt, RadixIndex, Rank, Store
from tests.benchmarks.index import REACHED, RUNS, Case, line, per_item
from tests.benchmarks.index_calls import LEASE, RANKS, chain, clock, coverage, packed
from tests.benchmarks.index_peers import Trie, event, wheel

TRACE = Path(
    os.environ.get("KVLANES_TRACE")
    or Path(__file__).parents[3] / "shared" / "data" / "conversation_trace.jsonl"
)
WORKERS = 64
CHUNK = 250
SESSIONS = 24_000
ODD = 0x9E3779B97F4A7C15  # spreads small numbers over 64 bits


def requests(expand: int = 1, most: int | None = None) -> list[list[int]]:
    """Block hashes of each request; `expand` blocks for each block of 512 tokens."""
    rows = [json.loads(text)["hash_ids"] for text in TRACE.read_text().splitlines()]
    parts = [[number * expand + part for number in row for part in range(expand)] for row in rows]
    return [[(number * ODD >> 1) % 2**63 for number in row[:most]] for row in parts]


def chunks(request: Callable[..., object], rows: list[Any]) -> list[float]:
    return [per_item(request, rows[at : at + CHUNK]) for at in range(0, len(rows), CHUNK)]


def quietest(run: Callable[[], list[float]]) -> Callable[[], float]:
    """The best of four passes, chunk by chunk: no pass is undisturbed from end to end."""
    return lambda: statistics.mean(map(min, zip(*[run() for _ in range(4)])))


def ours(chains: list[list[int]]) -> Callable[[], float]:
    """Find, then store with a lease, each request on the next worker."""
    rows = []
    for number, hashes in enumerate(chains):
        prompt = Prompt.from_blocks(packed(hashes), 16)
        store = Store(RANKS[number % WORKERS], None, prompt.blocks, (), LEASE)
        rows.append((prompt, store, number * 1e-3))

    def run() -> list[float]:
        index = RadixIndex(16)
        overlap, apply = index.overlap, index.apply

        def request(prompt: Prompt, store: Store, now: float) -> None:
            overlap(prompt)
            apply(store, now)

        return chunks(request, rows)

    return quietest(run)


def theirs(chains: list[list[int]]) -> Callable[[], float]:
    rows = [(hashes, number % WORKERS, event(hashes)) for number, hashes in enumerate(chains)]

    def run() -> list[float]:
        tree = wheel()

        def request(hashes: list[int], worker: int, message: bytes) -> None:
            tree.find_matches(hashes)
            tree.apply_event(worker, message)

        return chunks(request, rows)

    return quietest(run)


def plain(chains: list[list[int]]) -> Callable[[], float]:
    rows = [(hashes, number % WORKERS) for number, hashes in enumerate(chains)]

    def run() -> list[float]:
        trie = Trie()

        def request(hashes: list[int], worker: int) -> None:
            trie.find(hashes)
            trie.store(worker, hashes)

        return chunks(request, rows)

    return quietest(run)


def check_answers(chains: list[list[int]]) -> None:
    """All three give the same scores, request by request."""
    index, tree, trie, now = RadixIndex(16), wheel(), Trie(), clock()
    for number, hashes in enumerate(chains[:3_000]):
        prompt, worker = Prompt.from_blocks(packed(hashes), 16), number % WORKERS
        scores = {RANKS.index(r): n for r, n in index.overlap(prompt).scores().items()}
        assert scores == trie.find(hashes)
        assert scores == {w: n for (w, _), n in tree.find_matches(hashes).scores.items()}
        index.apply(Store(RANKS[worker], None, prompt.blocks, (), LEASE), next(now))
        tree.apply_event(worker, event(hashes))
        trie.store(worker, hashes)


def trace_cases() -> list[Case]:
    if not TRACE.exists():
        print(f"no trace at {TRACE}; set KVLANES_TRACE")
        return []
    short, long = requests(), requests(expand=8, most=128)
    check_answers(short)
    check_answers(long[:500])
    name = "conversation trace, find and store a request"
    return [
        Case(f"{name}, wheel", ours(short), theirs(short), 3.5, repeats=1),
        Case(f"{name}, trie, 128 blocks", ours(long), plain(long), 6.0, repeats=1),
        Case(f"{name}, trie", ours(short), plain(short), 1.0, repeats=1, judged=False),
    ]


def latency_lines() -> list[bool]:
    churns = [churn() for _ in range(RUNS)]
    median, late = min(churns, key=lambda pair: pair[1] / pair[0])
    split, find = split_under_many()
    collect, bare = collections()
    return [
        most("find + pick + store, 40k nodes: p99.9 against median", late, median, 15.0),
        most("split under 512 ranks, against a find there", split, find, 300.0),
        most("full collection at 1e6 blocks, against plain bytes", collect, bare, 1.2),
    ]


def most(name: str, ours: float, theirs: float, target: float) -> bool:
    ratio = ours / theirs
    return line(name, ours, theirs, ratio, f"<= {target:g}", ratio <= target / REACHED)


def churn() -> tuple[float, float]:
    """Sessions grow, end and begin under a few shared prefixes; median and p99.9 of a request.

    In CPU time: pauses of the index and of the collector show, other processes do not.
    """
    draw, index, now = random.Random(7), RadixIndex(16), 0.0
    shared = [chain(16) for _ in range(8)]
    sessions = [list(draw.choice(shared)) for _ in range(SESSIONS)]
    taken: list[int] = []
    for number in range(70_000):
        turn = draw.randrange(len(sessions))
        if len(sessions[turn]) > 80:
            sessions[turn] = list(draw.choice(shared))
        sessions[turn] += chain(8)
        prompt, rank = (
            Prompt.from_blocks(packed(sessions[turn]), 16),
            RANKS[(turn + draw.randrange(2)) % WORKERS],
        )
        now += 2e-3
        start = time.thread_time_ns()
        index.overlap(prompt).best()
        index.apply(Store(rank, None, prompt.blocks, (), LEASE), now)
        if number >= 50_000:
            taken.append(time.thread_time_ns() - start)
        if number % 64 == 0:
            index.expire(now, 512)
    assert 30_000 < index.statistics().segments < 50_000, index.statistics()
    taken.sort()
    return taken[len(taken) // 2], taken[len(taken) * 999 // 1000]


def split_under_many() -> tuple[float, float]:
    index, _, hashes = coverage(512, 128, 1)
    newcomer, half = Rank("newcomer"), packed(hashes[:64])
    prompt = Prompt.from_blocks(packed(hashes), 16)
    splits, finds = [], []
    for _ in range(200):
        splits.append(per_item(index.apply, [(Store(newcomer, None, half, (), LEASE), 1.0)]))
        assert index.statistics().segments == 2
        index.apply(Clear(newcomer), 1.0)
        assert index.statistics().segments == 1
        finds.append(per_item(index.overlap, [(prompt,)] * 100))
    return statistics.median(splits), statistics.median(finds)


def collections() -> tuple[float, float]:
    """A full collection with the index alive, and with its blocks as a list of bytes."""

    def best() -> float:
        gc.collect()
        return min(per_item(gc.collect, [()]) for _ in range(7))

    index = RadixIndex(16)
    for number in range(1_000_000 // 128):
        index.apply(Store(RANKS[number % WORKERS], None, packed(chain(128)), (), LEASE), 0.0)
    assert index.statistics().entries >= 990_000
    ours = best()
    del index
    bare = [packed([block]) for _ in range(1_000_000 // 128) for block in chain(128)]
    theirs = best()
    assert len(bare) >= 990_000
    return ours, theirs
