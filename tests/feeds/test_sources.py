"""Where sources dial and listen, which ranks they feed, and what they refuse."""

import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from kvlanes.engine.feeds import (
    CurveKeys,
    FeedsExtraMissing,
    FeedState,
    FollowOptions,
    LaneSink,
    SglangEvents,
    SourceInvalid,
    VllmEvents,
    open_listener,
)
from kvlanes.engine.feeds._options import of_rank
from kvlanes.indexer import Prompt, RadixIndex, Rank
from kvlanes.nursery import open_lanes
from tests.feeds.engines import PATIENCE_SECONDS, QUICK, Engine, Room, dialling, engine, followed
from tests.feeds.pool import BLOCK_SIZE, CHAINS, tokens_of
from tests.support.schedule import scheduled


@pytest.mark.parametrize(
    ("endpoint", "number", "expected"),
    [
        ("tcp://10.0.0.1:5557", 0, "tcp://10.0.0.1:5557"),
        ("tcp://host:5557", 3, "tcp://host:5560"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("ipc:///run/kv", 0, "ipc:///run/kv"),
        ("ipc:///run/kv", 2, "ipc:///run/kv_dp2"),
    ],
)
def test_ranks_are_at_ports_above_the_first(endpoint: str, number: int, expected: str) -> None:
    assert of_rank(endpoint, number) == expected


@pytest.mark.parametrize(
    "endpoint", ["tcp://*:5557", "tcp://:5557", "tcp://host", "tcp://host:0", "udp://x:1", "x", ""]
)
def test_endpoints_that_cannot_be_dialled_are_refused(endpoint: str) -> None:
    with pytest.raises(SourceInvalid):
        VllmEvents(endpoint)
    with pytest.raises(SourceInvalid):
        VllmEvents("tcp://host:5557", endpoint)


def test_ranks_past_the_last_port_are_refused() -> None:
    with pytest.raises(SourceInvalid, match="rank 3"):
        VllmEvents("tcp://host:65533", ranks=4)
    with pytest.raises(SourceInvalid, match=r"1\.\.256, got 257"):
        VllmEvents("tcp://host:5557", ranks=257)


@pytest.mark.parametrize(
    "wrong",
    [{"idle_seconds": 0}, {"replay_seconds": float("nan")}, {"counting": "x"}, {"limit_hashes": 0}],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SourceInvalid, match=next(iter(wrong))):
        FollowOptions(**wrong)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FeedsExtraMissing, match=r"kvlanes\[zmq\]"):
        SglangEvents("tcp://host:5557")


def test_curve_keys_of_another_length_are_refused_without_being_shown() -> None:
    good = b"x" * 40
    for wrong in ((b"short", good), (good, b"s" * 41), (good, good, b"")):
        with pytest.raises(SourceInvalid, match="40 bytes") as refused:
            CurveKeys(*wrong)
        assert "short" not in str(refused.value)


@pytest.mark.parametrize("steps", range(12))
def test_a_source_that_is_cancelled_early_ends_cleanly(steps: int, tmp_path: Path) -> None:
    source = VllmEvents(f"ipc://{tmp_path}/nobody", f"ipc://{tmp_path}/nobody-either", ranks=3)

    async def main() -> None:
        async with open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes:
            sink = LaneSink(lanes, "w0", block_size=BLOCK_SIZE, dp_size=3)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(source.run, sink)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

    for seed in range(5):
        with scheduled(seed):
            trio.run(main)


async def test_endpoints_that_no_socket_takes_are_connections_that_are_lost() -> None:
    source = VllmEvents("ipc://" + "x" * 300, options=QUICK)
    async with followed(source) as room:
        await room.feed.until(lambda feed: feed.counts.failures > 0)
        assert "name too long" in room.feed.error


# -- ranks


async def test_p45_ranks_have_streams_of_their_own(tmp_path: Path) -> None:
    """P45: two ranks number their batches alike; neither is a gap or a restart of the other."""
    live, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    async with (
        engine(dp_rank=0, seed=1, endpoint=live, replay=replay) as first,
        engine(dp_rank=1, seed=2, endpoint=f"{live}_dp1", replay=f"{replay}_dp1") as second,
    ):
        await first.tell("step", batches=6)
        await second.tell("step", batches=9)
        async with followed(VllmEvents(live, replay, ranks=2, options=QUICK), ranks=2) as room:
            await _reached(room, [6, 9])
            await first.tell("step", batches=1, lost=True)
            await _reached(room, [7, 9])
            for number, publisher in enumerate([first, second]):
                counts = room.sink.feeds[number].counts
                assert (counts.restarts, counts.losses, counts.rank_mismatches) == (0, 0, 0)
                await _exact(room, Rank("w0", number), publisher)


async def test_a_rank_that_another_stream_follows_is_taken_for_its_ports(tmp_path: Path) -> None:
    live, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    async with (
        engine(dp_rank=0, seed=1, endpoint=live, replay=replay) as first,
        engine(dp_rank=0, seed=2, endpoint=f"{live}_dp1", replay=f"{replay}_dp1") as second,
    ):
        await first.tell("step", batches=6)
        await second.tell("step", batches=9)
        async with followed(VllmEvents(live, replay, ranks=2, options=QUICK), ranks=2) as room:
            await _reached(room, [6, 9])
            assert room.sink.feeds[1].counts.rank_mismatches == 9
            await _exact(room, Rank("w0", 0), first)
            await _exact(room, Rank("w0", 1), second)


async def _reached(room: Room, sequences: list[int]) -> None:
    for number, sequence in enumerate(sequences):
        await room.reached(sequence, number)


async def _exact(room: Room, rank: Rank, publisher: Engine) -> None:
    for tokens, depth in await publisher.tell("depths"):
        assert room.lanes.overlap(Prompt(tokens, BLOCK_SIZE)).of(rank) == depth


async def test_the_rank_in_the_batch_is_trusted_and_flagged() -> None:
    async with engine(dp_rank=1) as publisher:
        await publisher.tell("store", chain=0)
        async with followed(dialling(publisher), ranks=2) as room:
            await room.reached(1)
            overlap = room.lanes.overlap(Prompt(tokens_of(CHAINS[0]), BLOCK_SIZE))
            assert (overlap.of(Rank("w0", 0)), overlap.of(Rank("w0", 1))) == (0, 2)
            assert room.feed.counts.rank_mismatches == 1


async def test_a_rank_that_the_worker_lacks_is_taken_for_its_ports() -> None:
    async with engine(dp_rank=7) as publisher:
        await publisher.tell("store", chain=0)
        async with followed(dialling(publisher)) as room:
            await room.reached(1)
            overlap = room.lanes.overlap(Prompt(tokens_of(CHAINS[0]), BLOCK_SIZE))
            assert overlap.scores() == {Rank("w0", 0): 2}
            assert room.feed.counts.rank_mismatches == 1


async def test_more_ranks_than_the_worker_has_are_refused() -> None:
    async with open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes:
        sink = LaneSink(lanes, "w0", block_size=BLOCK_SIZE, dp_size=2)
        with pytest.raises(SourceInvalid, match="follows 3 ranks, the worker has 2"):
            await VllmEvents("tcp://127.0.0.1:5557", ranks=3).run(sink)
        assert sink.feeds == []


# -- removal


async def test_a_worker_removed_during_its_replay_leaves_nothing() -> None:
    async with engine() as publisher:
        await publisher.tell("step", batches=50)
        await publisher.tell("truncate_replays", after=20)
        async with followed(dialling(publisher, options=QUICK)) as room:
            await room.reached(20)
            room.lanes.drop_nowait("w0")
        for chain in CHAINS:
            prompt = Prompt(tokens_of(chain), BLOCK_SIZE)
            assert room.lanes.overlap(prompt).scores() == {}
        assert room.sink.replays.borrowed_tokens == 0


# -- publishers that dial us


async def test_publishers_that_dial_are_told_apart_by_topic() -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            open_listener("tcp://127.0.0.1:0") as listener,
            open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes,
            engine(dial=listener.endpoint, topic="kv@a@m", seed=1) as a,
            engine(dial=listener.endpoint, topic="kv@b@m", seed=2) as b,
            engine(dial=listener.endpoint, topic="kv@b@m-other", seed=3) as other,
            trio.open_nursery() as nursery,
        ):
            rooms = []
            for name, publisher in (("a", a), ("b", b)):
                sink = LaneSink(lanes, name, block_size=BLOCK_SIZE)
                source = listener.topic(f"kv@{name}@m", replay=publisher.replay, options=QUICK)
                nursery.start_soon(source.run, sink)
                rooms.append(Room(lanes, sink, name))
            await trio.testing.wait_all_tasks_blocked()
            for publisher in (a, b, other):
                await publisher.tell("subscribed")
                await publisher.tell("step", batches=5)
            for room, publisher in zip(rooms, (a, b)):
                await room.reached(await publisher.tell("step"))
                await room.synced(FeedState.LIVE)
                await _exact(room, Rank(room.worker_id), publisher)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("replay", [True, False])
async def test_a_restart_of_a_dialling_publisher_is_seen(replay: bool) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            open_listener("tcp://127.0.0.1:0") as listener,
            engine(dial=listener.endpoint, topic="t", seed=1) as first,
        ):
            where = first.replay if replay else None
            source = listener.topic("t", replay=where, options=QUICK)
            async with followed(source) as room:
                await first.tell("subscribed")
                await room.reached(await first.tell("step", batches=9))
                await first.kill()
                options = {"dial": listener.endpoint, "topic": "t", "replay": first.replay}
                async with engine(seed=2, **options) as second:
                    await second.tell("subscribed")
                    sent = await second.tell("step", batches=4)
                    await room.feed.until(lambda feed: feed.counts.restarts == 1)
                    await room.reached(sent)
                    await room.under_reports(second)
                    if replay:
                        await room.equals(second)


async def test_ranks_that_share_a_topic_are_told_apart_by_their_batches() -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            open_listener("tcp://127.0.0.1:0") as listener,
            engine(dial=listener.endpoint, topic="t", seed=1, dp_rank=0) as first,
            engine(dial=listener.endpoint, topic="t", seed=2, dp_rank=1) as second,
            followed(listener.topic("t", ranks=2, options=QUICK), ranks=2) as room,
        ):
            for publisher in (first, second):
                await publisher.tell("subscribed")
                await publisher.tell("step", batches=5)
            await _reached(room, [5, 5])
            assert [feed.counts.gaps for feed in room.sink.feeds] == [0, 0]


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://10.1.2.3:0"])
async def test_open_addresses_are_refused(endpoint: str) -> None:
    with pytest.raises(SourceInvalid, match="open to others"):
        async with open_listener(endpoint):
            raise AssertionError("it must not open")


async def test_an_open_address_can_be_asked_for() -> None:
    async with open_listener("tcp://0.0.0.0:0", insecure=True) as listener:
        assert listener.endpoint.startswith("tcp://0.0.0.0:")


async def test_topics_are_registered_once_and_never_empty() -> None:
    async with (
        open_listener("tcp://127.0.0.1:0") as listener,
        open_lanes(lambda: RadixIndex(BLOCK_SIZE)) as lanes,
        trio.open_nursery() as nursery,
    ):
        with pytest.raises(SourceInvalid, match="empty topic"):
            listener.topic("")
        sink = LaneSink(lanes, "w0", block_size=BLOCK_SIZE)
        nursery.start_soon(listener.topic("t").run, sink)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SourceInvalid, match="registered already"):
            await listener.topic("t").run(sink)
        nursery.cancel_scope.cancel()
    async with open_listener("tcp://127.0.0.1:0") as first:
        with pytest.raises(SourceInvalid, match="cannot bind"):
            async with open_listener(first.endpoint):
                raise AssertionError("it must not open")
