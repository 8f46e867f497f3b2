"""Faults of a stream, one by one, on a virtual clock."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kvlanes.engine.feeds import FeedState
from tests.feeds.frames import CLEARED, store
from tests.feeds.pool import CHAINS, tokens_of
from tests.feeds.scenes import begun, exact, played
from tests.feeds.world import RANK, World, open_world


def test_a_late_joiner_replays_what_it_missed() -> None:
    async def scene(world: World) -> None:
        assert world.feed.state is FeedState.COLD
        await begun(world)
        await exact(world)

    played(scene)


def test_p09_a_gap_is_filled_by_a_replay_and_costs_nothing_else() -> None:
    """P09: sequence numbers are checked, and what is missing is asked for again."""

    async def scene(world: World) -> None:
        await begun(world)
        world.go_on(lost=True)
        world.go_on()
        await trio.testing.wait_all_tasks_blocked()
        assert (world.feed.counts.gaps, world.feed.counts.losses) == (1, 0)
        await exact(world)
        assert world.feed.events.clears == 0

    played(scene)


def test_p42_a_small_gap_keeps_index_and_watermark_while_it_is_filled() -> None:
    """P42: nothing is wiped for a batch that can still be had."""

    async def scene(world: World) -> None:
        await begun(world)
        mark, digest = world.feed.watermark, await world.digest()
        world.replay_faults.append(("truncated", 1))  # the answer stalls after the watermark
        world.go_on(lost=True)
        world.go_on()
        await trio.testing.wait_all_tasks_blocked()
        assert world.feed.counts.gaps == 1
        assert (world.feed.watermark, await world.digest()) == (mark, digest)
        await exact(world)
        assert (world.feed.counts.losses, world.feed.events.clears) == (0, 0)

    played(scene)


def test_a_lost_tail_is_found_when_the_stream_is_idle() -> None:
    async def scene(world: World) -> None:
        await begun(world)
        world.go_on(lost=True)
        await trio.testing.wait_all_tasks_blocked()
        assert world.follower.cursor.expected == 5
        await exact(world)
        assert world.feed.counts.gaps == 0

    played(scene)


def test_live_batches_that_arrive_during_a_replay_are_duplicates_after_it() -> None:
    async def scene(world: World) -> None:
        await begun(world)
        world.go_on(lost=True)
        for _ in range(4):
            world.go_on()
        await exact(world)
        assert world.feed.counts.duplicates == 4
        assert world.feed.counts.gaps == 1

    played(scene)


def test_p10_replays_end_the_watermark_where_the_publisher_is() -> None:
    """P10: recovery takes the publisher's own numbers, so it does not trigger itself again."""

    async def scene(world: World) -> None:
        await begun(world, 30)
        world.disconnect()
        await world.settle()
        gaps, batches = world.feed.counts.gaps, world.feed.counts.batches
        for _ in range(5):
            world.go_on()
            await trio.testing.wait_all_tasks_blocked()
        assert world.feed.counts.gaps == gaps
        assert world.feed.counts.batches == batches + 5
        await exact(world)

    played(scene)


def test_p40_a_reconnect_to_the_same_process_keeps_the_index() -> None:
    """P40: not every interruption is a restart of the engine."""

    async def scene(world: World) -> None:
        await begun(world)
        world.disconnect()
        world.go_on(lost=True)
        await exact(world)
        assert world.feed.counts.restarts == 0
        assert world.feed.events.clears == 0

    played(scene)


@pytest.mark.parametrize("batches", [0, 1, 3, 5, 6, 20])
def test_a_restart_is_seen_with_fewer_equal_and_more_batches(batches: int) -> None:
    async def scene(world: World) -> None:
        await begun(world)
        incarnation = world.lanes.attach(RANK)
        world.restart()
        for _ in range(batches):
            world.go_on(lost=True)
        await exact(world)
        assert world.feed.counts.restarts == 1
        assert world.lanes.attach(RANK) != incarnation

    played(scene)


def test_a_restart_with_the_same_first_events_is_seen_by_its_time_stamps() -> None:
    async def scene(world: World) -> None:
        world.publish(world.process.pool.store(CHAINS[0]))
        await world.settle()
        world.restart()
        world.publish(world.process.pool.store(CHAINS[0]), lost=True)
        await exact(world)
        assert world.feed.counts.restarts == 1

    played(scene)


def test_frames_of_a_dead_connection_never_follow_its_successors() -> None:
    async def scene(world: World) -> None:
        await begun(world)
        world.go_on(lost=True)
        for _ in range(3):
            world.go_on()  # still queued when the process dies
        world.restart(noticed=False)
        for _ in range(6):
            world.go_on(lost=True)
        await exact(world)

    played(scene)


def test_a_replay_without_end_is_asked_for_again_from_where_it_stopped() -> None:
    async def scene(world: World) -> None:
        for _ in range(20):
            world.go_on()
        world.replay_faults.extend([("truncated", 7), ("truncated", 9)])
        await exact(world)
        assert world.feed.counts.truncated_replays == 2
        assert world.feed.counts.losses == 0

    played(scene)


def test_a_hole_in_a_replay_is_filled_by_another() -> None:
    async def scene(world: World) -> None:
        for _ in range(10):
            world.go_on()
        world.replay_faults.append(("hole", 4))
        await exact(world)
        assert world.feed.counts.truncated_replays == 1
        assert world.feed.counts.losses == 0

    played(scene)


def test_a_hole_that_stays_costs_the_coverage_and_nothing_more() -> None:
    async def scene(world: World) -> None:
        for _ in range(10):
            world.go_on()
        del world.process.buffer[4]
        await world.settle()
        assert world.feed.state is FeedState.PARTIAL
        assert world.feed.counts.losses == 1
        assert world.follower.cursor.expected == 10
        world.check_current()

    played(scene)


def test_a_silent_replay_socket_leaves_the_stream_untrusted_but_followed() -> None:
    async def scene(world: World) -> None:
        world.replay_faults.extend([("truncated", 0)] * 1000)
        await world.settle()
        assert world.feed.state is FeedState.UNTRUSTED
        world.go_on()
        await trio.testing.wait_all_tasks_blocked()
        assert world.follower.cursor.expected == 1
        world.replay_faults.clear()
        await exact(world)

    played(scene)


def test_a_publisher_without_answer_is_not_asked_all_the_time() -> None:
    async def scene(world: World) -> None:
        world.replay_faults.extend([("truncated", 0)] * 1000)
        await trio.sleep(3600)
        assert world.feed.counts.replays <= 3 * (3600 / 30)

    played(scene)


def test_a_buffer_rotated_past_the_watermark_under_reports_until_a_clear() -> None:
    async def scene(world: World) -> None:
        await begun(world, 3)
        world.disconnect()
        world.reachable = False
        for _ in range(10):
            world.go_on(lost=True)
        await world.settle()
        assert world.feed.state.value == "stale"
        world.reachable = True
        await world.settle()
        assert world.feed.state.value == "partial"
        world.check_current()
        world.publish(world.process.pool.clear())
        world.go_on()
        await exact(world)

    played(scene, buffer_steps=4)


def test_an_unreadable_live_batch_is_taken_from_a_replay() -> None:
    async def scene(world: World) -> None:
        await begun(world)
        world.go_on(damaged=True)
        world.go_on()
        await exact(world)
        assert world.feed.counts.unreadable_batches == 1
        assert world.feed.events.clears == 0

    played(scene)


def test_a_batch_that_is_unreadable_for_good_is_passed_once() -> None:
    async def scene(world: World) -> None:
        await begun(world)
        world.publish([["BlockRemoved", "?"], *world.process.pool.store(CHAINS[0])])
        world.go_on()
        await world.settle()
        assert world.follower.cursor.expected == 7
        assert world.feed.state is FeedState.PARTIAL
        assert world.feed.events.unreadable_events == 1
        replays = world.feed.counts.replays
        await world.settle()
        assert world.feed.counts.unreadable_batches == 1
        assert world.feed.counts.replays > replays

    played(scene)


def test_an_index_that_was_reset_by_others_is_filled_again() -> None:
    async def scene(world: World) -> None:
        await begun(world)
        await world.lanes.reset(RANK)
        world.go_on()
        await exact(world)
        await world.lanes.reset(RANK)
        await exact(world)  # also when nothing is published
        assert world.feed.counts.restarts == 0

    played(scene)


def test_a_cancelled_replay_gives_its_slot_back_and_leaves_no_half_batch() -> None:
    async def scene(world: World) -> None:
        for _ in range(30):
            world.go_on()
        world.replay_faults.append(("truncated", 9))
        await trio.testing.wait_all_tasks_blocked()
        assert world.sink.replays.borrowed_tokens == 1
        await world.lanes.drop(RANK.worker_id)  # the worker is removed while its replay runs

    async def main() -> None:
        async with open_world() as world:
            await scene(world)
        assert world.sink.replays.borrowed_tokens == 0
        world.check()
        assert all(reported == 0 for reported in [world.lanes.overlap(_prompt()).of(RANK)])

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def _prompt() -> Any:
    from kvlanes.indexer import Prompt

    return Prompt(tokens_of(CHAINS[0]), 4)


def test_clear_and_store_keep_their_order_across_batches() -> None:
    async def scene(world: World) -> None:
        world.publish(world.process.pool.store(CHAINS[0]))
        world.publish(world.process.pool.clear())
        world.publish(world.process.pool.store(CHAINS[1]))
        await exact(world)

    played(scene)


def test_foreign_events_do_not_disturb() -> None:
    async def scene(world: World) -> None:
        world.publish([{"type": "Later"}, *world.process.pool.store(CHAINS[0])])
        world.publish([store([9], range(16), block_size=16), store([8], range(4), parent=7)])
        await exact(world)
        counts = world.feed.events
        assert (counts.unknown_events, counts.wrong_block_size, counts.orphans) == (1, 1, 1)

    played(scene)


def test_an_engines_clear_makes_a_partial_stream_exact() -> None:
    async def scene(world: World) -> None:
        await begun(world)
        world.disconnect()
        for _ in range(3):
            world.go_on(lost=True)
        del world.process.buffer[:-1]
        await world.settle()
        assert world.feed.state is FeedState.PARTIAL
        world.process.pool.clear()
        world.publish([CLEARED])
        await exact(world)

    played(scene)
