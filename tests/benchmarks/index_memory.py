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
NAMES = {
    "shared": "leased, beside the caller's 8",
    "leased": "leased, all of it",
    "events": "events, all of it",
}


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def fill(kind: str, blocks: int, ranks: int) -> float:
    """Bytes a (rank, block) of an index that holds chains of `blocks` on `ranks` ranks each.

    `shared` is leased coverage whose packed hashes the caller keeps: the index holds the very same
    bytes, not a copy, so that only what it adds is counted. The other kinds count everything.
    """
    draw, holders = random.Random(6), [Rank(f"worker-{number}") for number in range(64)]
    count = PAIRS // blocks // ranks
    index, lease, tree = RadixIndex(16), Lease(120.0), None
    if kind == "wheel":
        from tests.benchmarks.index_peers import event, wheel

        tree = wheel()
        tree.apply_event(0, event([1]))
    kept = [draw.randbytes(8 * blocks) for _ in range(count)] if kind == "shared" else None
    gc.collect()
    before = resident()
    for number in range(count):
        packed = kept[number] if kept is not None else draw.randbytes(8 * blocks)
        for k in range(number, number + ranks):
            rank = holders[k % len(holders)]
            if tree is not None:
                tree.apply_event(k % 64, event([word >> 1 for word in unpack(packed)]))
            elif kind == "events":
                index.apply(Store(rank, None, packed, unpack(packed)), 0.0)
            else:
                index.apply(Store(rank, None, packed, (), lease), number * 1e-4)
    if tree is None:
        assert index.statistics().blocks == count * blocks * ranks
    else:
        assert tree.find_matches([word >> 1 for word in unpack(packed)]).scores
    gc.collect()
    return (resident() - before) / (count * blocks * ranks)


def unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(packed) // 8}Q", packed)


def fresh(kind: str, blocks: int, ranks: int) -> float:
    command = [sys.executable, "-m", __spec__.name, kind, str(blocks), str(ranks)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_lines() -> list[bool]:
    """Bytes, not nanoseconds; the ratio is the wheel's bytes divided by ours."""
    rows = [
        ("shared", 16, 1, 30.0),
        ("shared", 128, 1, 8.0),
        ("leased", 16, 1, None),
        ("leased", 128, 1, None),
        ("events", 16, 1, 140.0),
        ("events", 128, 1, 120.0),
        ("events", 16, 8, 20.0),
    ]
    reached = []
    for kind, blocks, ranks, target in rows:
        ours, theirs = fresh(kind, blocks, ranks), fresh("wheel", blocks, ranks)
        what = {"shared": "leased, beside the caller's 8", "leased": "leased, all of it"}.get(
            kind, kind
        )
        name = f"bytes, {what}, chains of {blocks} on {ranks}"
        good = target is None or ours <= target / REACHED
        sign = "-" if target is None else f"<= {target:g}"
        reached.append(line(name, ours, theirs, theirs / ours, sign, good))
    return reached


if __name__ == "__main__":
    print(fill(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
