"""Real sockets and real processes: the same faults as `test_follow`, on the wire."""

from pathlib import Path

import pytest
import trio
import zmq

from kvlanes.engine.feeds import CurveKeys, FeedState, FollowOptions
from tests.feeds.engines import QUICK, dialling, engine, followed


async def test_late_joiner_replays_and_then_follows_live() -> None:
    async with engine(topic="kv@pod-a@model") as publisher:
        await publisher.tell("step", batches=20)
        async with followed(dialling(publisher)) as room:
            await room.reached(20)
            await room.synced(FeedState.LIVE)
            sent = await publisher.tell("step", batches=5)
            await room.reached(sent)
            await room.equals(publisher)


@pytest.mark.parametrize("topic", [True, False])
@pytest.mark.parametrize("encoding", ["map", "positional", "bytes"])
async def test_every_encoding_over_the_wire(encoding: str, topic: bool) -> None:
    async with engine(encoding=encoding, replay_topic=topic, topic="kv-events") as publisher:
        await publisher.tell("step", batches=10)
        async with followed(dialling(publisher)) as room:
            await room.reached(10)
            await room.equals(publisher)


async def test_p09_lost_batches_are_replayed() -> None:
    async with engine() as publisher, followed(dialling(publisher)) as room:
        await room.synced(FeedState.LIVE)
        await publisher.tell("subscribed")
        await publisher.tell("step", batches=3, lost=True)
        await room.reached(await publisher.tell("step"))
        await room.equals(publisher)
        assert room.feed.counts.losses == 0


async def test_lost_tail_is_found_by_an_idle_replay() -> None:
    async with engine() as publisher, followed(dialling(publisher)) as room:
        await room.synced(FeedState.LIVE)
        await publisher.tell("subscribed")
        await room.reached(await publisher.tell("step", batches=3, lost=True))
        await room.equals(publisher)
        assert room.feed.counts.gaps == 0


@pytest.mark.parametrize("batches", [2, 8, 30])
async def test_killed_engine_comes_back_with_fewer_equal_and_more_batches(batches: int) -> None:
    async with engine(seed=1) as first:
        await first.tell("step", batches=8)
        async with followed(dialling(first)) as room:
            await room.reached(8)
            await first.kill()
            await room.feed.until(lambda feed: feed.state is FeedState.STALE)
            where = {"endpoint": first.endpoint, "replay": first.replay}
            async with engine(seed=2, **where) as second:
                await room.reached(await second.tell("step", batches=batches))
                await room.feed.until(lambda feed: feed.counts.restarts == 1)
                await room.reached(batches)
                await room.synced(FeedState.LIVE)
                await room.equals(second)


async def test_truncated_replay_is_taken_up_again() -> None:
    async with engine() as publisher:
        await publisher.tell("step", batches=10)
        await publisher.tell("truncate_replays", after=4)
        quick = FollowOptions(idle_seconds=0.1, replay_idle_seconds=0.2)
        async with followed(dialling(publisher, options=quick)) as room:
            await room.reached(10)
            await room.equals(publisher)
            assert room.feed.counts.truncated_replays >= 1


async def test_silent_replay_leaves_the_stream_untrusted_until_it_answers() -> None:
    async with engine() as publisher:
        await publisher.tell("step", batches=4)
        await publisher.tell("silence_replays", count=3)
        quick = FollowOptions(idle_seconds=0.1, replay_idle_seconds=0.1, replay_pause_seconds=0.1)
        async with followed(dialling(publisher, options=quick)) as room:
            await room.feed.until(lambda feed: feed.state is FeedState.UNTRUSTED)
            await room.synced(FeedState.LIVE)
            await room.reached(4)
            await room.equals(publisher)


async def test_rotated_buffer_under_reports_until_the_engine_clears() -> None:
    async with engine(buffer_steps=3) as publisher:
        await publisher.tell("step", batches=9)
        async with followed(dialling(publisher)) as room:
            await room.reached(9)
            await room.synced(FeedState.PARTIAL)
            await room.under_reports(publisher)
            await publisher.tell("clear")
            await room.reached(await publisher.tell("step"))
            await room.synced(FeedState.LIVE)
            await room.equals(publisher)


async def test_without_replay_the_coverage_starts_with_the_connection() -> None:
    async with engine() as publisher:
        await publisher.tell("step", batches=3)
        async with followed(dialling(publisher, replay=False)) as room:
            await room.synced(FeedState.PARTIAL)
            await publisher.tell("subscribed")
            await room.reached(await publisher.tell("step", batches=2))
            await room.synced(FeedState.PARTIAL)
            await room.under_reports(publisher)


async def test_flood_is_followed_to_its_end() -> None:
    async with engine() as publisher, followed(dialling(publisher)) as room:
        await room.synced(FeedState.LIVE)
        await publisher.tell("subscribed")
        await room.reached(await publisher.tell("flood", batches=3_000))
        await room.equals(publisher)
        assert room.feed.counts.losses == 0


async def test_junk_and_old_frames_change_nothing() -> None:
    async with engine(topic="t") as publisher, followed(dialling(publisher)) as room:
        await room.synced(FeedState.LIVE)
        await publisher.tell("subscribed")
        await publisher.tell("step", batches=4)
        await publisher.tell("junk", frames=[])
        await publisher.tell("junk", frames=["00" * 8, "ff"])
        await publisher.tell("junk", frames=["ff" * 8, ""])
        await publisher.tell("again", sequence=1)
        await publisher.tell("junk", frames=["00" * 3, "ff"])
        await room.reached(await publisher.tell("step"))
        await room.synced(FeedState.LIVE)
        await room.equals(publisher)


async def test_oversized_message_ends_the_connection_and_is_passed_by() -> None:
    async with engine() as publisher:
        source = dialling(publisher, limit_bytes=20_000)
        async with followed(source) as room:
            await room.synced(FeedState.LIVE)
            await publisher.tell("subscribed")
            await room.reached(await publisher.tell("step", batches=3))
            await publisher.tell("long_store", tokens=20_000)
            await room.feed.until(lambda feed: feed.counts.failures > 0)
            await publisher.tell("drop_from_buffer", sequence=3)
            await room.reached(await publisher.tell("step", batches=2))
            await room.under_reports(publisher)


async def test_sequence_frames_of_24_bytes_carry_the_incarnation() -> None:
    async with engine(incarnation="ab" * 16) as publisher, followed(dialling(publisher)) as room:
        await room.synced(FeedState.LIVE)
        await publisher.tell("subscribed")
        await room.reached(await publisher.tell("step", batches=2))
        assert room.feed.watermark is not None
        assert room.feed.watermark.incarnation == b"\xab" * 16
        await room.equals(publisher)


async def test_unix_sockets_are_dialled(tmp_path: Path) -> None:
    where = {"endpoint": f"ipc://{tmp_path}/live", "replay": f"ipc://{tmp_path}/replay"}
    async with engine(**where) as publisher:
        await publisher.tell("step", batches=3)
        async with followed(dialling(publisher)) as room:
            await room.reached(3)
            await room.equals(publisher)


async def test_curve_keys_pass_through() -> None:
    server_public, server_secret = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    curve = [server_public.decode(), server_secret.decode()]
    async with engine(curve=curve) as publisher:
        await publisher.tell("step", batches=3)
        keys = CurveKeys(public, secret, server_public)
        async with followed(dialling(publisher, curve=keys)) as room:
            await room.reached(3)
            await room.equals(publisher)
        assert secret.decode() not in repr(keys)


async def test_engine_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """P63: a source for an engine that does not exist holds up nobody and says so."""
    where = {"endpoint": f"ipc://{tmp_path}/live", "replay": f"ipc://{tmp_path}/replay"}
    async with engine(**where) as publisher:
        await publisher.kill()
        async with followed(dialling(publisher)) as room:
            await room.feed.until(lambda feed: feed.counts.failures >= 2)
            assert room.feed.state is FeedState.COLD
            assert room.feed.error
            async with engine(**where) as late:
                await room.reached(await late.tell("step", batches=2))
                await room.equals(late)


async def test_cancelled_follower_lets_go_at_once() -> None:
    async with engine() as publisher:
        await publisher.tell("step", batches=5)
        await publisher.tell("silence_replays", count=100)
        async with followed(dialling(publisher, options=QUICK)) as room:
            await room.feed.until(lambda feed: feed.counts.replays > 0)
            before = trio.current_time()
        assert room.sink.replays.borrowed_tokens == 0
        assert trio.current_time() - before < QUICK.replay_idle_seconds
