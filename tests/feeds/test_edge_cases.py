"""Which test shows which edge case of event feeds, so that none is lost."""

import importlib

import pytest

CASES = {
    "four encodings": "decode.test_four_encodings_of_one_history_decode_alike",
    "replay with and without topic": (
        "decode.test_replays_with_and_without_topic_bring_the_live_batches"
    ),
    "end marker, payload empty": "decode.test_every_replay_ends_with_the_end_marker",
    "duplicate store, two removes": "ledger.test_p24_duplicate_store_needs_two_removals",
    "report-mode re-store": "ledger.test_full_report_mode_needs_counting_by_set",
    "non-dense and empty stores": "ledger.test_non_dense_and_empty_stores_are_left_out",
    "block sizes and tail page": "ledger.test_wrong_block_sizes_are_refused_with_their_size",
    "every block size": "ledger.test_every_block_size_is_followed",
    "salt on the first block only": "ledger.test_salt_is_inherited_and_keeps_tenants_apart",
    "LoRA against base": "ledger.test_adapters_do_not_match_the_base_model",
    "multimodal keys": "ledger.test_images_are_part_of_the_identity",
    "bytes hashes": "ledger.test_digests_and_numbers_name_the_same_blocks",
    "clear, then store later": "ledger.test_clear_then_store_in_a_later_batch",
    "remove before store": "ledger.test_removal_before_store_is_a_no_op",
    "orphan parent": "ledger.test_orphans_are_counted_and_never_at_a_wrong_depth",
    "gap of one": "follow.test_p09_a_gap_is_filled_by_a_replay_and_costs_nothing_else",
    "gap at the tail": "follow.test_a_lost_tail_is_found_when_the_stream_is_idle",
    "gap while replaying": (
        "follow.test_live_batches_that_arrive_during_a_replay_are_duplicates_after_it"
    ),
    "restart with fewer, equal, more": (
        "follow.test_a_restart_is_seen_with_fewer_equal_and_more_batches"
    ),
    "restart with the same first batch": (
        "follow.test_a_restart_with_the_same_first_events_is_seen_by_its_time_stamps"
    ),
    "stale frames of a dead connection": (
        "follow.test_frames_of_a_dead_connection_never_follow_its_successors"
    ),
    "truncated replay": (
        "follow.test_a_replay_without_end_is_asked_for_again_from_where_it_stopped"
    ),
    "replay with a hole": "follow.test_a_hole_in_a_replay_is_filled_by_another",
    "replay of an end only": "cursor.test_nothing_but_an_end_is_another_process",
    "rotated buffer": "follow.test_a_buffer_rotated_past_the_watermark_under_reports_until_a_clear",
    "two ranks": "sources.test_p45_ranks_have_streams_of_their_own",
    "another rank in the envelope": "sources.test_the_rank_in_the_batch_is_trusted_and_flagged",
    "publisher that dials": "sources.test_publishers_that_dial_are_told_apart_by_topic",
    "sequence frame of 24 bytes": "decode.test_sequence_frame_of_24_bytes_carries_an_incarnation",
    "unknown tags and fields": "decode.test_unknown_events_and_fields_are_ignored",
    "cancel during replay": "cancel.test_a_follower_can_be_cancelled_at_every_step",
    "removal during replay": "sources.test_a_worker_removed_during_its_replay_leaves_nothing",
    "P10": "follow.test_p10_replays_end_the_watermark_where_the_publisher_is",
    "P24": "ledger.test_recorded_duplicates_outlive_their_first_removal",
    "P40": "follow.test_p40_a_reconnect_to_the_same_process_keeps_the_index",
    "P42": "follow.test_p42_a_small_gap_keeps_index_and_watermark_while_it_is_filled",
    "P63": "sockets.test_engine_that_is_not_there_yet_is_waited_for",
}


@pytest.mark.parametrize("case", CASES)
def test_every_edge_case_has_its_test(case: str) -> None:
    module, _, name = CASES[case].partition(".")
    assert callable(getattr(importlib.import_module(f"tests.feeds.test_{module}"), name))
