"""Tiers: continuation from one to the next, and that none takes another's removal for its own."""

import random

import pytest

from kvlanes.indexer import (
    Applied,
    BlockSizeMismatch,
    BudgetRefused,
    Clear,
    LeaseTable,
    MutationInvalid,
    PositionalIndex,
    Prompt,
    RadixIndex,
    Rank,
    Tier,
    TierBlocks,
    TierIndex,
)
from tests.indexer.chains import A, B, extend, guess, prompt, remove, store

FIVE = [1, 2, 3, 4, 5]


@pytest.fixture
def index() -> TierIndex:
    return TierIndex(LeaseTable(PositionalIndex(16)))


def tiers(index: TierIndex, chain: list[int]) -> TierBlocks:
    index.check()
    return index.overlap(prompt(*chain)).tiers(A)


def test_removal_in_one_tier_leaves_the_others(index: TierIndex) -> None:
    """P46: stored on the device and in host memory; evicted from the device it is still near."""
    for tier in (Tier.DEVICE, Tier.HOST):
        index.apply(store(A, FIVE), 0.0, tier)
    assert tiers(index, FIVE) == TierBlocks(device=5)
    index.apply(remove(A, FIVE, 4, 5), 0.0)
    assert tiers(index, FIVE) == TierBlocks(device=3, host=2)
    index.apply(remove(A, FIVE), 0.0)
    assert tiers(index, FIVE) == TierBlocks(host=5)
    assert index.overlap(prompt(*FIVE)).scores() == {A: 5}


def test_clear_is_scoped_to_its_tier_and_a_drop_ends_all(index: TierIndex) -> None:
    """P46: a clear of the device leaves the slower tiers; only a departure ends every one."""
    for tier in Tier:
        index.apply(store(A, FIVE), 0.0, tier)
    assert index.apply(Clear(A), 0.0, Tier.DEVICE) == Applied(applied=5)
    assert tiers(index, FIVE) == TierBlocks(host=5)
    assert index.apply(Clear(A), 0.0, Tier.HOST) == Applied(applied=5)
    assert tiers(index, FIVE) == TierBlocks(disk=5)
    assert index.drop("a") == 10
    assert tiers(index, FIVE) == TierBlocks()
    assert index.overlap(prompt(*FIVE)).scores() == {}
    assert index.statistics().blocks == 0
    for tier in Tier:
        assert index.apply(store(A, FIVE), 0.0, tier) == Applied(applied=5)
        assert index.apply(Clear(A), 0.0, tier) == Applied(applied=5)
    assert index.statistics().blocks == 0


def test_each_tier_continues_where_the_faster_one_stopped(index: TierIndex) -> None:
    """2 on the device, 3 in host memory, 4 on disk, 5 outside."""
    chain = list(range(1, 15))
    for tier, end in zip(Tier, (2, 5, 9, 14)):
        index.apply(store(A, chain[:end]), 0.0, tier)
    assert tiers(index, chain) == TierBlocks(2, 3, 4, 5)
    overlap = index.overlap(prompt(*chain))
    assert (overlap.of(A), overlap.best(), overlap.best([B]), overlap.of(B)) == (14, 14, 0, 0)
    assert overlap.tiers(B) == TierBlocks()


def test_tier_without_anything_of_its_own_adds_nothing(index: TierIndex) -> None:
    index.apply(store(A, [1, 2]), 0.0)
    index.apply(store(A, FIVE), 0.0, Tier.EXTERNAL)
    assert tiers(index, FIVE) == TierBlocks(device=2, external=3)
    assert tiers(index, [1, 9]) == TierBlocks(device=1)


def test_rank_without_device_blocks_starts_at_the_root(index: TierIndex) -> None:
    index.apply(store(B, FIVE), 0.0)
    index.apply(store(A, [1, 2, 3]), 0.0, Tier.DISK)
    assert index.overlap(prompt(*FIVE)).scores() == {A: 3, B: 5}
    assert tiers(index, FIVE) == TierBlocks(disk=3)


def test_hole_stops_the_walk_and_its_return_reconnects(index: TierIndex) -> None:
    index.apply(store(A, [1]), 0.0)
    index.apply(store(A, FIVE), 0.0, Tier.HOST)
    index.apply(remove(A, FIVE, 3), 0.0, Tier.HOST)
    assert tiers(index, FIVE) == TierBlocks(device=1, host=1)
    index.apply(extend(A, [1, 2], [3]), 0.0, Tier.HOST)
    assert tiers(index, FIVE) == TierBlocks(device=1, host=4)


def test_interleaved_tiers_are_under_reported(index: TierIndex) -> None:
    """The walk never turns back to a faster tier."""
    index.apply(store(A, FIVE), 0.0)
    index.apply(remove(A, FIVE, 2), 0.0)
    index.apply(store(A, [1, 2]), 0.0, Tier.HOST)
    assert tiers(index, FIVE) == TierBlocks(device=1, host=1)


def test_parent_may_lie_in_any_tier(index: TierIndex) -> None:
    """Offloaded child before parent: the parent is on the device, then outside, then nowhere."""
    index.apply(store(A, FIVE), 0.0)
    assert index.apply(extend(A, [1, 2, 3, 4], [5]), 0.0, Tier.HOST) == Applied(applied=1)
    index.apply(remove(A, FIVE, 5), 0.0)
    assert tiers(index, FIVE) == TierBlocks(device=4, host=1)
    index.apply(store(A, FIVE), 0.0, Tier.EXTERNAL)
    index.apply(Clear(A), 0.0)
    assert index.apply(extend(A, FIVE, [6]), 0.0, Tier.DISK) == Applied(applied=1)
    assert tiers(index, [*FIVE, 6]) == TierBlocks(external=5)
    index.apply(Clear(A), 0.0, Tier.EXTERNAL)
    index.apply(Clear(A), 0.0, Tier.HOST)
    assert index.apply(extend(A, FIVE, [6]), 0.0, Tier.HOST) == Applied(missing_parent=1)
    assert index.apply(extend(B, FIVE, [6]), 0.0, Tier.HOST) == Applied(missing_parent=1)


def test_device_refuses_a_parent_that_left_it(index: TierIndex) -> None:
    index.apply(store(A, FIVE), 0.0, Tier.HOST)
    assert index.apply(extend(A, FIVE, [6]), 0.0) == Applied(missing_parent=1)
    assert index.apply(extend(A, FIVE, [6]), 0.0, Tier.DISK) == Applied(applied=1)


def test_tiers_count_their_own(index: TierIndex) -> None:
    index.apply(store(A, FIVE), 0.0)
    assert index.apply(store(A, FIVE), 0.0, Tier.HOST) == Applied(applied=5)
    assert index.apply(store(A, FIVE), 0.0, Tier.HOST) == Applied(duplicates=5)
    assert index.apply(remove(A, [9]), 0.0, Tier.HOST) == Applied(unknown=1)
    counts = index.statistics()
    assert (counts.blocks, counts.by_tier[Tier.HOST], counts.by_tier[Tier.DISK]) == (10, 5, 0)


def test_departure_empties_every_tier(index: TierIndex) -> None:
    """P46: of one rank, then of its worker."""
    left, right = Rank("w", 0), Rank("w", 1)
    for tier in Tier:
        index.apply(store(left, FIVE), 0.0, tier)
        index.apply(store(right, [1]), 0.0, tier)
    assert index.drop("w", 0) == 20
    assert index.overlap(prompt(*FIVE)).scores() == {right: 1}
    assert index.apply(extend(left, FIVE, [6]), 0.0, Tier.HOST) == Applied(missing_parent=1)
    assert index.drop("w") == 4
    assert index.statistics().blocks == 0


def test_leases_live_on_the_device_only(index: TierIndex) -> None:
    with pytest.raises(MutationInvalid, match="host"):
        index.apply(guess(A, FIVE), 0.0, Tier.HOST)
    index.apply(guess(A, FIVE, ttl=10), 0.0)
    index.apply(store(A, [1, 2, 3]), 0.0, Tier.HOST)
    assert tiers(index, FIVE) == TierBlocks(device=5)
    assert index.expire(11.0).blocks == 5
    assert tiers(index, FIVE) == TierBlocks(host=3)


def test_renamed_and_moved_device_names_are_followed(index: TierIndex) -> None:
    engine = 99
    index.apply(store(A, FIVE), 0.0)
    index.apply(store(A, FIVE, engine), 0.0)
    assert index.apply(extend(A, FIVE, [6]), 0.0, Tier.HOST) == Applied(missing_parent=1)
    assert index.apply(extend(A, FIVE, [6], engine), 0.0, Tier.HOST) == Applied(applied=1)
    assert tiers(index, [*FIVE, 6]) == TierBlocks(device=5, host=1)


def test_digest_tells_tiers_apart() -> None:
    digests = set()
    for tier in Tier:
        index = TierIndex(PositionalIndex(16))
        index.apply(store(A, FIVE), 0.0, tier)
        digests.add(index.digest())
    assert len(digests) == 4


def test_another_block_size_is_refused(index: TierIndex) -> None:
    with pytest.raises(BlockSizeMismatch, match=r"32.*16"):
        index.overlap(Prompt(list(range(64)), 32))


def test_overlap_equals_a_walk_block_by_block() -> None:
    """Random residence of one chain in four tiers, against the definition spelled out."""
    rng = random.Random(46)
    chain = list(range(1, 9))
    for _ in range(300):
        index = TierIndex(PositionalIndex(16))
        held = [{k for k in range(8) if rng.random() < 0.7} for _ in Tier]
        for tier, keep in zip(Tier, held):
            index.apply(store(A, chain), 0.0, tier)
            gone = [k + 1 for k in range(8) if k not in keep]
            if gone:
                index.apply(remove(A, chain, *gone), 0.0, tier)
        expected, depth = [], 0
        for keep in held:
            start = depth
            while depth in keep:
                depth += 1
            expected.append(depth - start)
        assert tiers(index, chain) == TierBlocks(*expected)


def test_names_of_a_departed_rank_are_gone(index: TierIndex) -> None:
    index.apply(store(A, FIVE), 0.0)
    index.drop("a")
    index.apply(remove(A, FIVE), 0.0)
    assert index.apply(extend(A, FIVE, [6]), 0.0, Tier.HOST) == Applied(missing_parent=1)


def test_device_that_gives_up_blocks_by_itself_is_refused() -> None:
    """Nobody would tell the tiers, so their copy of its names would grow for ever."""
    for wrap in (TierIndex, LeaseTable):
        with pytest.raises(BudgetRefused, match="budget_blocks=10"):
            wrap(RadixIndex(16, budget_blocks=10))
        wrap(RadixIndex(16))
