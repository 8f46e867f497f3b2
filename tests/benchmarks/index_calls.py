"""T3 and the expiry part of T2: single calls, ours against the wheel's."""

import random
import struct
from collections.abc import Callable, Iterator

from kvlanes.indexer import Clear, Lease, Prompt, RadixIndex, Rank, Store, sequence_hashes
from tests.benchmarks.index import Case, per_item
from tests.benchmarks.index_peers import event, wheel

DRAW = random.Random(3)
RANKS = [Rank(f"worker-{number}") for number in range(512)]
LEASE = Lease(120.0)


def chain(blocks: int) -> list[int]:
    # 63 bits: one side reads numbers that the other side's JSON must carry.
    return [DRAW.getrandbits(63) for _ in range(blocks)]


def packed(blocks: list[int]) -> bytes:
    return struct.pack(f">{len(blocks)}Q", *blocks)


def copy(blocks: bytes) -> bytes:
    """Equal bytes in an object of their own, so that no comparison is cut short by identity."""
    return bytes(bytearray(blocks))


def empty_call() -> float:
    """What the wheel's binding costs by itself."""
    tree = wheel()
    return min(per_item(tree.find_matches, [([],)] * 1_000) for _ in range(20))


def call_cases() -> list[Case]:
    return [
        find_case("find, 8 ranks x 16 blocks", 8, 16, 1, 10.0),
        find_case("find, 1 rank x 1,000 blocks", 1, 1_000, 1, 30.0),
        find_case("find, 512 ranks x 128 blocks", 512, 128, 1, 60.0),
        find_case("  with scores as a dictionary", 512, 128, 1, 6.0, scores=True),
        refresh_case(16, 15.0),
        refresh_case(128, 25.0),
        refresh_case(16, 15.0, built=True),
        new_case(16, 10.0),
        new_case(128, 20.0),
        clear_case("clear 100,000 leased blocks in chains of 16", 16, 2.0, leased=True),
        clear_case("clear 100,000 named blocks in chains of 16", 16, 2.0, leased=False),
        depths_case("64 ranks x 128 blocks at 64 depths, scores", 64, 128, 64),
        depths_case("512 ranks x 128 blocks at 128 depths, scores", 512, 128, 128),
        depths_case("512 ranks x 1,000 blocks at 512 depths, scores", 512, 1_000, 512),
    ]


def coverage(ranks: int, blocks: int, depths: int) -> tuple[RadixIndex, object, list[int]]:
    """One chain, held by all ranks to depths spread evenly; both sides asked and compared."""
    index, tree, hashes = RadixIndex(16), wheel(), chain(blocks)
    for number in range(ranks):
        depth = (number % depths + 1) * blocks // depths
        index.apply(Store(RANKS[number], None, packed(hashes[:depth]), (), LEASE), 0.0)
        tree.apply_event(number, event(hashes[:depth]))
    ours = index.overlap(Prompt.from_blocks(packed(hashes), 16)).scores()
    theirs = tree.find_matches(hashes).scores
    assert {RANKS[worker]: depth for (worker, _), depth in theirs.items()} == ours
    assert len(ours) == ranks
    return index, tree, hashes


def find_case(
    name: str, ranks: int, blocks: int, depths: int, target: float, scores: bool = False
) -> Case:
    index, tree, hashes = coverage(ranks, blocks, depths)
    rounds = 100 if ranks * depths > 1_000 else 400
    prompts = [(Prompt.from_blocks(copy(packed(hashes)), 16),)] * rounds
    questions = [(hashes,)] * rounds
    overlap, find = index.overlap, tree.find_matches  # type: ignore[attr-defined]
    ours: Callable[..., object] = overlap
    theirs: Callable[..., object] = find
    if scores:
        ours, theirs = lambda p: overlap(p).scores(), lambda q: find(q).scores
    return Case(name, lambda: per_item(ours, prompts), lambda: per_item(theirs, questions), target)


def depths_case(name: str, ranks: int, blocks: int, depths: int) -> Case:
    case = find_case(name, ranks, blocks, depths, 1.6, scores=True)
    return Case(case.name, case.ours, case.theirs, case.target, at_most=True, repeats=15)


def clock() -> Iterator[float]:
    now = 0.0
    while True:
        now += 1e-3
        yield now


def refresh_case(blocks: int, target: float, built: bool = False) -> Case:
    """The same chain again, with a later deadline; messages made before, or (`built`) each time."""
    index, tree, hashes, now = RadixIndex(16), wheel(), chain(blocks), clock()
    first, again = packed(hashes), copy(packed(hashes))
    message = event(hashes)
    assert index.apply(Store(RANKS[0], None, first, (), LEASE), next(now)).applied == blocks
    assert index.apply(Store(RANKS[0], None, again, (), LEASE), next(now)).duplicates == blocks
    tree.apply_event(0, message)

    def ours() -> float:
        if built:
            return per_item(
                lambda run, at: index.apply(Store(RANKS[0], None, run, (), LEASE), at),
                zip([again] * 400, now),
            )
        store = Store(RANKS[0], None, again, (), LEASE)
        return per_item(index.apply, zip([store] * 400, now))

    def theirs() -> float:
        if built:
            return per_item(lambda: tree.apply_event(0, event(hashes)), [()] * 400)
        return per_item(tree.apply_event, [(0, message)] * 400)

    name = f"refresh {blocks} blocks, leased" + (", messages built each time" if built else "")
    return Case(name, ours, theirs, target, judged=not built)


def new_case(blocks: int, target: float) -> Case:
    """New chains from lists of integers, each side's encoding included."""
    index, tree, now = RadixIndex(16), wheel(), clock()

    def store(hashes: list[int], at: float) -> None:
        index.apply(Store(RANKS[0], None, packed(hashes), (), LEASE), at)

    def ours() -> float:
        return per_item(store, zip([chain(blocks) for _ in range(300)], now))

    def theirs() -> float:
        chains = [(chain(blocks),) for _ in range(300)]
        return per_item(lambda hashes: tree.apply_event(0, event(hashes)), chains)

    ours()
    assert index.statistics().blocks == 300 * blocks
    return Case(f"store {blocks} new blocks from a list, leased", ours, theirs, target)


def clear_case(name: str, blocks: int, target: float, leased: bool) -> Case:
    """A rank that forgets 100,000 blocks at once; named coverage is what the wheel has."""
    chains = [chain(blocks) for _ in range(100_000 // blocks)]
    stores = [
        Store(RANKS[0], None, packed(each), (), LEASE)
        if leased
        else Store(RANKS[0], None, packed(each), sequence_hashes(packed(each)))
        for each in chains
    ]

    def ours() -> float:
        index = RadixIndex(16)
        for store in stores:
            index.apply(store, 0.0)
        assert index.statistics().blocks == 100_000
        took = per_item(index.apply, [(Clear(RANKS[0]), 0.0)])
        assert index.statistics().blocks == 0
        return took

    def theirs() -> float:
        tree = wheel()
        for each in chains:
            tree.apply_event(0, event(each))

        def clear() -> None:
            tree.clear_all_blocks(0)
            # Answered after the clear is done: the thread takes one call after another.
            assert not tree.find_matches(chains[0]).scores

        return per_item(clear, [()])

    return Case(name, ours, theirs, target, judged=leased, repeats=3)


def expiry_cases() -> list[Case]:
    """16-block stores at a million live blocks: ending one against storing one."""

    def both() -> tuple[float, float]:
        index = RadixIndex(16)
        stores = [Store(RANKS[k % 64], None, packed(chain(16)), (), LEASE) for k in range(62_500)]
        stored = per_item(index.apply, zip(stores, clock()))
        assert index.statistics().blocks == 1_000_000
        entries: list[int] = []
        took = per_item(lambda: entries.append(index.expire(1e6).entries), [()] * 123)
        assert max(entries) == 512, "a slice is bounded"
        assert sum(entries) == 62_500
        assert index.statistics().segments == 0
        return took * 123 / 62_500, stored

    results: list[float] = []

    def ours() -> float:
        ended, stored = both()
        results.append(stored)
        return ended

    name = "end a 16-block lease at 1e6 blocks, against storing it"
    return [Case(name, ours, lambda: results[-1], 1.0, at_most=True, repeats=1)]
