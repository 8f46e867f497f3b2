"""T6: resident bytes a (rank, block), each measured in a fresh process."""

import gc
import random
import resource
import struct
import subprocess
import sys

from kvlanes.indexer import Lease, RadixIndex, Rank, Store
from tests.benchmarks.index import REACHED, line

PAIRS = 1_000_000


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def fill(kind: str, blocks: int, ranks: int) -> float:
    """Bytes a (rank, block) of an index that holds chains of `blocks` on `ranks` ranks each."""
    draw, holders = random.Random(6), [Rank(f"worker-{number}") for number in range(64)]
    chains = PAIRS // blocks // ranks
    index, lease, tree = RadixIndex(16), Lease(120.0), None
    if kind == "wheel":
        from tests.benchmarks.index_peers import event, wheel

        tree = wheel()
        tree.apply_event(0, event([1]))
    gc.collect()
    before = resident()
    for number in range(chains):
        hashes = [draw.getrandbits(63) for _ in range(blocks)]
        packed = struct.pack(f">{blocks}Q", *hashes)
        for k in range(ranks):
            rank = holders[(number + k) % len(holders)]
            if tree is not None:
                tree.apply_event((number + k) % 64, event(hashes))
            elif kind == "leased":
                index.apply(Store(rank, None, packed, (), lease), number * 1e-3)
            else:
                index.apply(Store(rank, None, packed, hashes), 0.0)
    if tree is None:
        assert index.statistics().blocks == chains * blocks * ranks
    else:
        assert tree.find_matches(hashes).scores
    gc.collect()
    return (resident() - before) / (chains * blocks * ranks)


def fresh(kind: str, blocks: int, ranks: int) -> float:
    command = [sys.executable, "-m", __spec__.name, kind, str(blocks), str(ranks)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_lines() -> list[bool]:
    """Bytes, not nanoseconds; the ratio is the wheel's bytes divided by ours."""
    rows = [
        ("leased", 16, 1, 30.0),
        ("leased", 128, 1, 8.0),
        ("events", 16, 1, 140.0),
        ("events", 128, 1, 120.0),
        ("events", 16, 8, 20.0),
    ]
    reached = []
    for kind, blocks, ranks, target in rows:
        ours, theirs = fresh(kind, blocks, ranks), fresh("wheel", blocks, ranks)
        name = f"bytes a (rank, block), {kind}, chains of {blocks}, {ranks} ranks each"
        good = ours <= target / REACHED
        reached.append(line(name, ours, theirs, theirs / ours, f"<= {target:g}", good))
    return reached


if __name__ == "__main__":
    print(fill(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
