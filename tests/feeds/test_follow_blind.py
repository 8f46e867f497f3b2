"""Streams that cannot be asked for what is past, and streams whose publisher dials us."""

import trio

from kvlanes.engine.feeds import FeedState
from tests.feeds.scenes import begun, exact, played
from tests.feeds.world import World


def test_without_a_replay_socket_only_a_first_batch_makes_a_stream_exact() -> None:
    async def scene(world: World) -> None:
        await world.settle()
        assert world.feed.state is FeedState.PARTIAL
        await begun(world)
        await exact(world)

    played(scene, replayable=False)


def test_without_a_replay_socket_a_gap_costs_the_coverage() -> None:
    async def scene(world: World) -> None:
        await trio.testing.wait_all_tasks_blocked()
        await begun(world)
        world.go_on(lost=True)
        world.go_on()
        await world.settle()
        assert world.feed.state is FeedState.PARTIAL
        assert world.feed.counts.losses == 1
        world.check_current()

    played(scene, replayable=False)


def test_without_a_replay_socket_a_reconnect_begins_anew() -> None:
    async def scene(world: World) -> None:
        await trio.testing.wait_all_tasks_blocked()
        await begun(world)
        world.disconnect()
        await trio.sleep(1)
        world.go_on()
        await world.settle()
        assert world.feed.state is FeedState.PARTIAL
        world.check_current()

    played(scene, replayable=False)


def test_an_incarnation_shows_a_restart_without_any_replay() -> None:
    async def scene(world: World) -> None:
        await trio.testing.wait_all_tasks_blocked()
        await begun(world)
        world.restart()
        world.process.incarnation = b"b" * 16
        for _ in range(4):
            world.process.publish([])
        for _ in range(3):
            world.go_on()
        await world.settle()
        world.check_current()

    played(scene, replayable=False, scoped=False, incarnation=b"a" * 16)


def test_a_publisher_that_dials_us_restarts_when_its_numbers_go_back() -> None:
    async def scene(world: World) -> None:
        await trio.testing.wait_all_tasks_blocked()
        await begun(world, 8)
        world.restart()
        for _ in range(3):
            world.go_on()
        await exact(world)
        assert world.feed.counts.restarts == 1

    played(scene, replayable=False, scoped=False)


def test_late_frames_are_no_restart_when_a_replay_says_so() -> None:
    async def scene(world: World) -> None:
        await begun(world, 8)
        assert world.link is not None
        world.link.put(world.process.buffer[2])
        await exact(world)
        assert world.feed.counts.restarts == 0

    played(scene, scoped=False)
