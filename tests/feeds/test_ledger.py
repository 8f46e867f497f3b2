"""What the index is told about a rank, against what the engine's own pool says."""

import random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvlanes.engine.feeds._decode import decode
from kvlanes.engine.feeds._events import Batch
from kvlanes.engine.feeds._frames import parse
from kvlanes.engine.feeds._ledger import Ledger
from kvlanes.indexer import Clear, Prompt, RadixIndex, Rank, Remove, Store, multimodal_key
from tests.feeds.frames import CLEARED, payload, recorded, remove, store
from tests.feeds.pool import Encoding, Pool, overlaps, random_events
from tests.support.profiles import budget

RANK = Rank("w0")


class Fed:
    """A ledger and the index it feeds."""

    def __init__(self, block_size: int = 4, **options: Any) -> None:
        self.ledger = Ledger(RANK, block_size, **options)
        self.index = RadixIndex(block_size)

    def take(self, *events: Any) -> list[Any]:
        return self.batch(decode(payload(*events)))

    def batch(self, batch: Batch) -> list[Any]:
        mutations = self.ledger.apply(batch)
        for mutation in mutations:
            applied = self.index.apply(mutation, 0.0)
            assert not applied.missing_parent
        self.ledger.check()
        self.index.check()
        return mutations

    def depth(self, tokens: Any, **identity: Any) -> int:
        prompt = Prompt(list(tokens), self.index.block_size, **identity)
        return self.index.overlap(prompt).of(RANK)


def replayed(name: str, rows: int, **options: Any) -> Fed:
    """The first rows of a recording, applied."""
    fed = Fed(16, **options)
    for message in recorded(name)[:rows]:
        frame = parse(message)
        assert frame is not None
        fed.batch(decode(frame.payload))
    return fed


BASE = range(1000, 1064)


def test_p24_duplicate_store_needs_two_removals() -> None:
    """P24: the same block is announced twice and removed twice."""
    fed = Fed()
    fed.take(store([1, 2], range(8)), store([1, 2], range(8)))
    fed.take(remove(2), remove(1))
    assert fed.depth(range(8)) == 2
    assert fed.ledger.announcements(1) == 1
    assert fed.take(remove(2), remove(1)) == [Remove(RANK, [2, 1])]
    assert fed.depth(range(8)) == 0


def test_recorded_duplicates_outlive_their_first_removal() -> None:
    """Row 2 stores row 0 again, row 10 reports it once more; row 11 removes it twice."""
    before, after = replayed("vllm_0_33_0_int", 11), replayed("vllm_0_33_0_int", 12)
    tokens = [*BASE, *range(2000, 2016)]
    assert (before.depth(tokens), after.depth(tokens)) == (5, 5)
    assert [after.ledger.announcements(block) for block in (935822303561933385, 1)] == [1, 0]


def test_full_report_mode_needs_counting_by_set() -> None:
    """The report of row 10 is no further announcement: with `set` the removals of row 11 hit."""
    fed = replayed("vllm_0_33_0_int", 12, counting="set")
    assert fed.depth([*BASE, *range(2000, 2016)]) == 0
    assert fed.ledger.counts.unknown_removals == 4


def test_non_dense_and_empty_stores_are_left_out() -> None:
    fed = Fed()
    fed.take(store([1, 2], range(4)), store([], range(4)), store([3], [], block_size=4))
    assert len(fed.ledger) == 0
    assert fed.ledger.counts.non_dense == 3
    assert fed.take(remove(1), remove(3)) == []
    assert fed.ledger.counts.unknown_removals == 2


def test_wrong_block_sizes_are_refused_with_their_size() -> None:
    fed = replayed("vllm_0_33_0_int", 15)
    assert fed.ledger.counts.wrong_block_size == 2
    assert fed.ledger.counts.refused_sizes == {2: 32, 0: 4}
    tail = replayed("sglang_0_5_23_default", 6)
    assert tail.depth([*range(7000, 7020)]) == 1
    assert tail.ledger.counts.wrong_block_size == 1


@pytest.mark.parametrize(("block_size", "blocks"), [(4, 16), (16, 4), (32, 2), (64, 1)])
def test_every_block_size_is_followed(block_size: int, blocks: int) -> None:
    fed = Fed(block_size)
    fed.take(store(range(1, blocks + 1), BASE, block_size=block_size))
    assert fed.depth(BASE) == blocks


def test_salt_is_inherited_and_keeps_tenants_apart() -> None:
    fed = replayed("vllm_0_33_0_int", 5)
    assert fed.depth(BASE, namespace="tenant-42") == 4
    fed.batch(decode(payload(store([77], range(16), parent=8932286469076373195, block_size=16))))
    longer = [*BASE, *range(16)]
    assert fed.depth(longer, namespace="tenant-42") == 5
    assert fed.depth(longer) == 4


def test_adapters_do_not_match_the_base_model() -> None:
    fed = Fed()
    fed.take(store([1], range(4), lora_name="sql"), store([2], range(4, 8), parent=1))
    assert fed.depth(range(8), adapter="sql") == 2
    assert fed.depth(range(8)) == 0


def test_numbered_adapters_do_not_match_the_base_model() -> None:
    fed = replayed("sglang_0_5_3_positional", 2)
    assert fed.depth(range(48)) == 2


def test_images_are_part_of_the_identity() -> None:
    fed = replayed("vllm_0_33_0_int", 6)
    tokens = [5] * 8 + [151655] * 30 + [6] * 26
    a, b = multimodal_key("img-sha-aaaa"), multimodal_key("img-sha-bbbb")
    assert a is not None
    assert b is not None
    assert fed.depth(tokens, multimodal=[[a], [b, a], [b]]) == 4
    assert fed.depth(tokens, multimodal=[[b], [b, a], [b]]) == 0
    assert fed.depth(tokens) == 0


def test_overlapping_windows_match_overlapping_prompts() -> None:
    fed = Fed()
    pairs = [[at, at + 1] for at in range(8)]
    fed.take(store([1, 2], pairs))  # type: ignore[arg-type]
    assert fed.depth(range(9), overlapping=True) == 2
    assert fed.depth(range(9)) == 0


def test_digests_and_numbers_name_the_same_blocks() -> None:
    numbers, digests = (replayed(f"vllm_0_33_0_{kind}", 6) for kind in ("int", "bytes"))
    assert numbers.index.digest() == digests.index.digest()


def test_clear_then_store_in_a_later_batch() -> None:
    fed = Fed()
    fed.take(store([1], range(4)), store([1], range(4)))
    assert fed.take(CLEARED, store([2], range(4, 8))) == [
        Clear(RANK),
        Store(RANK, None, Prompt(range(4, 8), 4).blocks, [2]),
    ]
    fed.take(store([1], range(4)))
    fed.take(remove(1))
    assert (fed.depth(range(4)), fed.depth(range(4, 8))) == (0, 1)


def test_removal_before_store_is_a_no_op() -> None:
    fed = Fed()
    assert fed.take(remove(1), store([1], range(4)))[0].blocks == Prompt(range(4), 4).blocks
    assert fed.depth(range(4)) == 1


def test_orphans_are_counted_and_never_at_a_wrong_depth() -> None:
    fed = Fed()
    assert fed.take(store([2], range(4), parent=1)) == []
    assert fed.ledger.counts.orphans == 1
    assert fed.depth(range(4)) == 0
    fed.take(store([1], range(4)), store([2], range(4, 8), parent=1), remove(1))
    assert fed.take(store([3], range(8, 12), parent=1)) == []


def test_blocks_that_name_themselves_are_malformed() -> None:
    fed = Fed()
    fed.take(store([1, 1], range(8)), store([5], range(4), parent=5))
    assert fed.ledger.counts.malformed == 2
    assert len(fed.ledger) == 0


def test_one_name_for_two_contents_ends_with_its_first_removal() -> None:
    """SGLang's default format gives salted blocks the names of unsalted ones."""
    fed = Fed()
    fed.take(store([1], range(4)), store([1], range(4), cache_salt="t"), store([1], range(4)))
    assert fed.ledger.counts.conflicts == 1
    assert fed.depth(range(4), namespace="t") == 0
    fed.take(remove(1))
    assert fed.depth(range(4)) == 0


def test_a_contradiction_ends_a_run_where_it_stands() -> None:
    fed = Fed()
    fed.take(store([2], range(4)))
    fed.take(store([1, 2, 3], range(12)))
    assert (fed.depth(range(12)), len(fed.ledger)) == (1, 2)


def test_other_tiers_and_groups_change_nothing() -> None:
    fed = Fed()
    fed.take(store([1], range(4)))
    noise = [
        remove(1, medium="CPU_PINNED"),
        remove(1, group_idx=1),
        store([2], range(4), medium="STORAGE"),
        store([2], range(4), group_idx=1, kv_cache_spec_kind="sliding_window"),
    ]
    assert fed.take(*noise) == []
    assert (fed.ledger.counts.other_tiers, fed.ledger.counts.other_groups) == (2, 2)


def test_a_tier_can_be_followed_on_its_own() -> None:
    fed = Fed(tier="host")
    fed.take(store([1], range(4), medium="cpu"), store([2], range(4, 8), medium="GPU"))
    assert (fed.depth(range(4)), fed.depth(range(4, 8))) == (1, 0)


def test_the_group_with_full_attention_is_followed() -> None:
    fed = Fed()
    window: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    full: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    fed.take(store([1], range(4), **window), store([2], range(4, 8), **full))
    assert (fed.depth(range(4)), fed.depth(range(4, 8))) == (0, 1)
    fed.take(remove(2, group_idx=0))
    assert fed.depth(range(4, 8)) == 1
    fed.take(remove(2, group_idx=1))
    assert fed.depth(range(4, 8)) == 0


def test_a_chosen_group_is_followed_and_stays_chosen() -> None:
    fed = Fed(group=2)
    for _ in range(2):
        fed.take(store([1], range(4)), store([2], range(4, 8), group_idx=2))
        assert (fed.depth(range(4)), fed.depth(range(4, 8))) == (0, 1)
        fed.ledger.restart()
        fed.index.apply(Clear(RANK), 0.0)


def test_a_found_group_is_found_anew_after_a_restart() -> None:
    fed = Fed()
    fed.take(store([1], range(4), group_idx=1, kv_cache_spec_kind="mla_attention"))
    assert fed.depth(range(4)) == 1
    fed.ledger.restart()
    fed.index.apply(Clear(RANK), 0.0)
    fed.take(store([1], range(4)))
    assert fed.depth(range(4)) == 1


def test_what_was_held_before_the_ledger_makes_it_incomplete() -> None:
    assert not Fed(complete=False).ledger.complete
    assert Fed().ledger.complete


def test_digests_in_extra_keys_are_part_of_the_identity() -> None:
    fed = Fed()
    fed.take(store([1], range(4), extra_keys=[[b"embedding"]]))
    assert fed.depth(range(4), multimodal=[[xxh3_64_intdigest(b"embedding")]]) == 1
    assert fed.depth(range(4)) == 0


def test_a_lost_store_only_under_reports() -> None:
    fed = Fed()
    fed.take(store([1], range(4)))
    fed.take(["BlockStored", "?"], store([2], range(4, 8), parent=1))
    assert (fed.depth(range(8)), fed.ledger.complete) == (2, False)


def test_a_lost_removal_costs_what_it_may_have_removed() -> None:
    fed = Fed()
    fed.take(store([1], range(4)))
    mutations = fed.take(["BlockRemoved", "?"], store([2], range(4, 8)))
    assert mutations[0] == Clear(RANK)
    assert (fed.depth(range(4)), fed.depth(range(4, 8))) == (0, 1)
    assert not fed.ledger.complete
    fed.take(CLEARED)
    assert fed.ledger.complete


def test_unreadable_tokens_cost_one_store() -> None:
    fed = Fed()
    fed.take(store([1], ["x"]), store([2], range(4)))  # type: ignore[list-item]
    assert (len(fed.ledger), fed.ledger.counts.malformed) == (1, 1)


@settings(max_examples=budget(ci=60, deep=2_000))
@given(st.integers(0, 2**32), st.sampled_from(get_args(Encoding)), st.booleans())
def test_index_equals_the_engines_own_table(seed: int, encoding: Encoding, holes: bool) -> None:
    pool, fed, draw = Pool(encoding), Fed(), random.Random(seed)
    for _ in range(40):
        fed.take(*random_events(pool, draw, holes=holes))
        assert fed.index.digest() == pool.digest(RANK)
    assert all(reported == true for reported, true in overlaps(fed.index, pool, RANK))
