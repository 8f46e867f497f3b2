"""The reference router's index tests, line by line: which test of ours covers it, or why none does.

Paths are relative to `tests/`. A reason stands word for word in DESIGN.md, section "Index test
inventory: what we leave out".
"""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
DESIGN = TESTS.parent / "DESIGN.md"
SECTION = "## Index test inventory: what we leave out"

COVERAGE = "indexer/contract.py::CoverageContract"
RANKS = "indexer/contract_ranks.py::RankContract"
NAMES = "indexer/contract_ranks.py::NameContract"
OVERLAP = "indexer/contract_ranks.py::OverlapContract"
LONG = "indexer/contract_long.py::LongContract"
GUESSES = "indexer/contract_guesses.py::GuessContract"
LEASES = "indexer/contract_leases.py::LeaseContract"
CAPACITY = "indexer/test_capacity.py"
POOLS = "nursery/test_capacity_lanes.py"
DUMP = "indexer/contract_dump.py::DumpContract"
RADIX = "indexer/test_radix.py"
MACHINES = "indexer/test_machines.py::test_backend_agrees_with_the_oracle"

COVERED = {
    # -- shared matrix ----------------------------------------------------------------------
    "a duplicate store changes nothing and is counted once": [
        f"{COVERAGE}::test_duplicate_store_changes_nothing_and_counts_once"
    ],
    "a continuation is no duplicate": [f"{COVERAGE}::test_continuation_is_no_duplicate"],
    "store and find": [f"{COVERAGE}::test_stored_chain_is_found"],
    "the size is stable through duplicates, continuations and removals": [
        f"{COVERAGE}::test_size_follows_stores_continuations_and_removals"
    ],
    "removal in the middle of a chain, then restored": [
        f"{COVERAGE}::test_hole_hides_and_restoring_reveals"
    ],
    "a parent that the rank lacks is refused, others are untouched": [
        f"{RANKS}::test_parent_held_by_others_only_is_missing"
    ],
    "a rank with the prefix only reuses the suffix, then appends": [
        f"{RANKS}::test_prefix_only_rank_reuses_the_suffix_then_appends"
    ],
    "a partial match ends at the divergence": [
        f"{COVERAGE}::test_partial_match_ends_at_the_divergence"
    ],
    "removing everything leaves nothing": [f"{COVERAGE}::test_removing_all_leaves_nothing"],
    "two ranks share the first block and diverge at the second": [
        f"{RANKS}::test_two_ranks_share_one_block_and_diverge"
    ],
    "removing a worker leaves the others": [
        f"{RANKS}::test_departure_takes_all_ranks_of_the_worker_only"
    ],
    "a dump restores the same coverage": [
        f"{DUMP}::test_coverage_of_several_ranks",
        f"{DUMP}::test_names_of_every_engine",
        f"{DUMP}::test_holes_stay_holes_until_they_are_filled",
        f"{DUMP}::test_another_backend_restores_it",
    ],
    "a clear removes one rank only": [f"{RANKS}::test_clear_is_scoped_to_its_rank"],
    "an empty query, and one that misses": [f"{COVERAGE}::test_empty_prompt_and_miss"],
    "shutting down twice": ["nursery/test_lane_order.py::test_closed_lanes_refuse"],
    "found by tokens": [f"{COVERAGE}::test_tokens_find_what_tokens_stored"],
    "chains of parents": [f"{COVERAGE}::test_chain_of_parents"],
    "three ranks of one worker are scored apart": [f"{RANKS}::test_ranks_of_one_worker_are_apart"],
    "removing a rank removes that rank only": [f"{RANKS}::test_departure_of_one_rank"],
    "an acknowledged rank reset orders after accepted events": [
        "nursery/test_departures.py::test_p28_store_reset_store_ends_as_the_second_store",
        "nursery/test_departures.py::test_a_queued_store_does_not_survive_a_reset",
    ],
    "removing the last block shortens by one": [
        f"{COVERAGE}::test_removing_the_last_block_shortens_by_one"
    ],
    "a removal in the middle leaves the prefix, flat index included": [
        f"{COVERAGE}::test_hole_hides_and_restoring_reveals",
        "indexer/test_positional.py::test_hole_counts_as_a_hole_however_many_still_match_behind_it",
    ],
    "removing unknown workers and blocks is harmless": [
        f"{COVERAGE}::test_removal_from_strangers_is_harmless",
        f"{COVERAGE}::test_batch_with_unknown_names_processes_all",
    ],
    "cleared, then used again": [f"{RANKS}::test_cleared_rank_can_be_used_again"],
    "several sequences of one worker": [f"{COVERAGE}::test_several_chains_of_one_rank"],
    "cycles of adding and removing, interleaved three ways": [
        f"{RANKS}::test_cycles_of_adding_and_removing_leave_no_trace"
    ],
    # -- adapters and namespaces ------------------------------------------------------------
    "base model and adapter, two adapters, two namespaces never collide": [
        f"{OVERLAP}::test_adapters_and_tenants_are_disjoint",
        "indexer/test_identity.py::test_adapters_and_tenants_never_share_a_block",
    ],
    # -- long sequences ---------------------------------------------------------------------
    "branches of 30 after a prefix of 30": [f"{LONG}::test_branches_after_a_shared_prefix"],
    "100 blocks shortened to 79": [f"{LONG}::test_partial_removal_of_a_long_chain"],
    "lengths 31 to 96": [f"{LONG}::test_lengths_around_powers_of_two"],
    "divergence at 31 to 97": [f"{LONG}::test_divergence_at_any_place"],
    "twenty continuations of ten": [f"{LONG}::test_twenty_continuations_of_ten"],
    "cleared and built again": [f"{LONG}::test_cleared_and_built_again"],
    "three ranks diverge at 40": [f"{LONG}::test_three_ranks_diverge_at_forty"],
    "staggered at 10, 20, 35, 64, 100": [f"{LONG}::test_staggered_depths"],
    "1,000 blocks with a divergence in the middle": [
        f"{LONG}::test_thousand_blocks_with_a_divergence_in_the_middle"
    ],
    # -- approximate ------------------------------------------------------------------------
    "a routing decision makes a match": [f"{LEASES}::test_guess_makes_coverage_that_ends"],
    "hashes that do not fit together are refused": [
        f"{COVERAGE}::test_malformed_store_is_refused_before_it_writes",
        f"{GUESSES}::test_malformed_guess_is_refused_before_it_writes",
    ],
    "expiry removes": [f"{LEASES}::test_guess_makes_coverage_that_ends"],
    "removing a rank or a worker cleans its timers": [
        f"{LEASES}::test_clear_and_departure_leave_no_timer",
        f"{LEASES}::test_lease_removes_only_what_a_lease_created",
    ],
    "removing whole workers reaches every lane before it returns": [
        "nursery/test_departures.py::test_p26_what_was_queued_for_a_departed_worker_never_reappears"
    ],
    "events never expire": [f"{LEASES}::test_events_never_end_by_themselves"],
    "after shutdown nothing is recorded": ["nursery/test_lane_order.py::test_closed_lanes_refuse"],
    "a worker seen first in a decision can be removed": [
        f"{LEASES}::test_first_seen_worker_can_be_guessed_and_dropped"
    ],
    # -- pruning ----------------------------------------------------------------------------
    "a deadline fires, and not before": [f"{LEASES}::test_guess_makes_coverage_that_ends"],
    "refreshes leave one timer entry a block": [
        f"{LEASES}::test_endless_refreshes_leave_one_entry_a_block",
        "indexer/test_lease_table.py::test_timers_follow_live_blocks_not_refreshes",
    ],
    "nearby deadlines share a bucket": [
        "indexer/test_lease_table.py::test_lease_ends_never_early_and_at_most_a_tick_late"
    ],
    "a TTL of zero ends at once": [f"{LEASES}::test_zero_ttl_ends_at_the_next_expiry"],
    "a refresh extends": [f"{LEASES}::test_refresh_extends"],
    "staggered ranks end in order": [f"{LEASES}::test_ranks_end_apart"],
    "stale timer entries are ignored": [
        f"{LEASES}::test_old_timer_cannot_end_a_new_lease",
        "indexer/test_lease_table.py::test_revoked_leases_leave_no_timer_behind",
    ],
    "a TTL for each insert; the later deadline wins; the age counts": [
        f"{LEASES}::test_shorter_lease_never_shortens",
        f"{LEASES}::test_age_counts_from_when_the_guess_became_true",
    ],
    "a refresh revokes an expiry that is due": [
        f"{LEASES}::test_refresh_between_slices_saves_the_block",
        "nursery/test_lane_leases.py::test_p05_a_refresh_revokes_an_expiry_that_is_already_due",
    ],
    "a refreshed block ends eventually": [f"{LEASES}::test_refresh_extends"],
    "a cancelled store keeps its timer": [
        "nursery/test_lane_leases.py::test_p06_a_cancelled_queued_store_is_applied_with_its_lease"
    ],
    "a refused store gets no timer": [
        "nursery/test_lane_leases.py::test_a_refused_store_leases_nothing"
    ],
    # -- capacity ---------------------------------------------------------------------------
    "within one release the suffix goes first": [
        f"{CAPACITY}::test_within_one_release_the_suffix_goes_first"
    ],
    "streamed output joins the release order": [
        f"{CAPACITY}::test_streamed_output_joins_the_release_order"
    ],
    "the life of vLLM's pool: 4, 5, 7, 6, 5, 10 blocks": [
        f"{CAPACITY}::test_life_of_an_engine_s_pool"
    ],
    "a shared copy goes by its last release": [
        f"{CAPACITY}::test_shared_copy_goes_by_its_last_release"
    ],
    "more than the pool is settled at release": [
        f"{CAPACITY}::test_more_than_the_pool_is_reported_and_settled_at_release"
    ],
    "a late acquire after a reset is ignored": [
        f"{POOLS}::test_a_late_release_after_a_reset_is_nothing"
    ],
    "a cached prefix is referenced": [f"{CAPACITY}::test_resident_prefix_is_referenced_not_copied"],
    "a duplicate physical block is removed with its last copy": [
        f"{CAPACITY}::test_duplicate_copy_is_removed_with_the_last_only"
    ],
    "a reset fences late releases and output, the attempt's name reused": [
        f"{POOLS}::test_a_late_release_after_a_reset_is_nothing"
    ],
    "hand-over from leases to the pool": [
        f"{CAPACITY}::test_capacity_that_becomes_known_takes_leases_over",
        f"{CAPACITY}::test_queued_expiry_cannot_end_what_the_pool_holds",
    ],
    # -- radix ------------------------------------------------------------------------------
    "a block that is its own parent is refused": [
        f"{COVERAGE}::test_malformed_store_is_refused_before_it_writes"
    ],
    "a batched removal equals its members one by one": [
        f"{COVERAGE}::test_batched_removal_equals_serial"
    ],
    "the same block at another depth is not confused": [
        f"{COVERAGE}::test_repeated_blocks_are_different_places",
        "indexer/test_positional.py::test_same_block_at_another_depth_is_another_entry",
    ],
    "splits repair the names of every rank": [
        f"{NAMES}::test_names_of_engines_survive_a_split_by_a_third"
    ],
    "two engines name one block apart": [f"{NAMES}::test_two_engines_name_one_chain_apart"],
    "a chain is one edge, however it came, and identical tails are one": [
        f"{RADIX}::test_one_chain_is_one_segment_however_it_came",
        f"{RADIX}::test_splits_of_one_chain_merge_back_to_one_segment",
    ],
    "what names a block is gone with it, after splits and clears": [
        f"{RADIX}::test_churn_under_a_live_prefix_leaves_nothing",
        f"{RANKS}::test_cycles_of_adding_and_removing_leave_no_trace",
    ],
    "an uncovered parent is refused": [f"{COVERAGE}::test_removed_block_is_no_parent"],
    "dead children go, a live prefix stays": [
        f"{LONG}::test_churn_under_a_shared_prefix_leaves_no_trace"
    ],
    "a rank's slot, used again, brings nothing back": [
        f"{RADIX}::test_slots_are_used_again",
        f"{RANKS}::test_worker_that_left_comes_back_empty",
        f"{OVERLAP}::test_overlap_does_not_change_with_the_index",
    ],
    "thousands of random steps equal an exact model": [MACHINES],
}

NOT_OURS = {
    "a decision with precomputed hashes": "A decision always carries a `Prompt`, whose hashes are "
    "computed once; there is no second way in that could disagree.",
    "the dump of absolute positions, and both search modes of the flat index": "A store has no "
    "start position of its own: its place follows from its parent. The flat index has one way to "
    "search, block by block, since jumping overcounts across holes.",
    "early exit of a search": "Searches have no early exit: an overlap is exact, or it is not "
    "asked for.",
    "the worker-side ring of recent events": "Replay is the engine's own buffer; we keep no "
    "second one, so there are no id ranges, dump caches or append budgets to test.",
    "entry order by position, heap rebuilds": "Timers are buckets of ticks, one entry a leased "
    "segment or block; there is no heap to rebuild, and the order within a tick is free.",
    "finish cannot overtake acquire; a cancelled acquire still releases": "The capacity model is "
    "synchronous, and acquire and release are entries of one lane's queue: there is no moment at "
    "which one could pass the other.",
    "missing capacity pins a rank to TTL until its reset": "A capacity that becomes known takes "
    "over at once. Requests that began under leases are not part of the pool; their blocks end "
    "with their leases.",
    "races of concurrent writers: stale plans, promotions, bit flips in 32 threads, repairs": "An "
    "index has one writer at a time and no lock, so plans cannot go stale and nothing is repaired "
    "later; tests of the lanes cover what can interleave.",
    "an internal node is never opened again": "Segments are merged again as soon as they can be, "
    "so no node stays internal for ever.",
    "the hint chain": "It is an allocation detail of the reference's tree.",
    "capacity exhausted after 256 inline slots": "Sets of ranks are integers of any width; no "
    "rank is ever left unindexed for want of a slot.",
}


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Every test of a file, as `name` or `Class::name`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        found |= {prefix + m.name for m in members if isinstance(m, functions)}
    return frozenset(found)


def exists(test: str) -> bool:
    file, name = test.split("::", 1)
    return name.rsplit("::", 1)[-1].startswith("test_") and name in functions_of(TESTS / file)


@pytest.mark.parametrize("line", COVERED)
def test_line_is_covered_by_tests_that_exist(line: str) -> None:
    missing = [test for test in COVERED[line] if not exists(test)]
    assert COVERED[line]
    assert missing == []


def test_the_check_sees_a_test_that_is_gone() -> None:
    assert not exists(f"{COVERAGE}::test_of_yesterday")
    assert not exists(f"{CAPACITY}::NaivePool")


@pytest.mark.parametrize("line", NOT_OURS)
def test_line_left_out_has_its_reason_in_the_design(line: str) -> None:
    section = DESIGN.read_text().split(SECTION, 1)[1].split("\n## ", 1)[0]
    words = " ".join(section.split())
    assert NOT_OURS[line] in words
    assert line in words
