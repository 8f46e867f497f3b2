"""Who is told what when a backend that waits breaks: reference section 3.5, row by row."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.indexer import Applied, Rank, Remove
from kvlanes.nursery import (
    AcknowledgementMissing,
    LaneCrashed,
    LaneTask,
    Read,
    ServedTooShort,
    TaskReceiver,
)
from tests.nursery.scenes import (
    A,
    B,
    Broken,
    advance,
    checked_lanes,
    confirmed,
    depth,
    leased,
    prompt,
)
from tests.nursery.served import (
    Backends,
    GatedBackend,
    ScriptedBackend,
    Serve,
    acknowledge_then_return,
    recovered,
    scripted,
)


async def acknowledge_then_raise(backend: GatedBackend, tasks: TaskReceiver) -> None:
    await acknowledge_then_return(backend, tasks)
    raise Broken


async def return_holding(backend: GatedBackend, tasks: TaskReceiver) -> None:
    backend.log.append(type((await tasks.receive()).work).__name__)


async def raise_holding(backend: GatedBackend, tasks: TaskReceiver) -> None:
    await return_holding(backend, tasks)
    raise Broken


async def ask_without_acknowledging(backend: GatedBackend, tasks: TaskReceiver) -> None:
    await tasks.receive()
    await tasks.receive()


async def ask_again_and_again(backend: GatedBackend, tasks: TaskReceiver) -> None:
    await tasks.receive()
    with pytest.raises(AcknowledgementMissing):
        await tasks.receive()
    with pytest.raises(trio.ClosedResourceError):
        await tasks.receive()


ACKNOWLEDGED = [(acknowledge_then_return, ServedTooShort), (acknowledge_then_raise, Broken)]
MISSING = [
    (return_holding, ServedTooShort),
    (raise_holding, Broken),
    (ask_without_acknowledging, AcknowledgementMissing),
    (ask_again_and_again, ServedTooShort),
]


@pytest.mark.parametrize(("script", "cause"), ACKNOWLEDGED)
async def test_an_acknowledged_store_is_settled_however_serve_ends(
    script: Serve, cause: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Acknowledged, then returned or raised without asking again: settled at the end."""
    backends = scripted(script)
    async with checked_lanes(backends, lanes=1) as lanes:
        assert await lanes.apply(leased(A, 2)) == Applied(applied=2)
        await wait_all_tasks_blocked()
        (record,) = caplog.records
        assert record.exc_info is not None
        assert record.exc_info[0] is cause
        await recovered(lanes, backends)


@pytest.mark.parametrize(("script", "cause"), MISSING)
async def test_a_store_without_its_acknowledgement_is_told_so_and_leases_nothing(
    mock_clock: MockClock, script: Serve, cause: type[Exception]
) -> None:
    """Returned, raised or asked on with the acknowledgement missing: `LaneCrashed`."""
    backends = scripted(script)
    async with checked_lanes(backends, lanes=1) as lanes:
        with pytest.raises(LaneCrashed) as caught:
            await lanes.apply(leased(A, 2, 5.0))
        assert isinstance(caught.value.__cause__, cause)
        assert lanes.statistics().total("applied") == 0
        await recovered(lanes, backends)
        await advance(mock_clock, 5.1)
        assert depth(lanes) == 3  # nothing of the lost store's lease is left to end it


@pytest.mark.parametrize(("script", "cause"), MISSING)
async def test_a_departure_without_its_acknowledgement_is_told_so(
    script: Serve, cause: type[Exception]
) -> None:
    backends = scripted(script)
    async with checked_lanes(backends, lanes=1) as lanes:
        lanes.attach(A)
        with pytest.raises(LaneCrashed) as caught:
            await lanes.drop("a")
        assert isinstance(caught.value.__cause__, cause)
        assert lanes.statistics().total("ranks") == 0
        assert lanes.overlap(prompt(1)).scores() == {}  # and no rank stays masked


@pytest.mark.parametrize(("script", "cause"), ACKNOWLEDGED)
async def test_an_acknowledged_departure_is_settled_however_serve_ends(
    script: Serve, cause: type[Exception]
) -> None:
    async with checked_lanes(scripted(script), lanes=1) as lanes:
        lanes.attach(A)
        await lanes.drop("a")
        assert lanes.statistics().total("ranks") == 0


async def test_what_a_broken_instance_had_still_to_do_is_not_done_by_the_next(
    mock_clock: MockClock,
) -> None:
    async def break_at_a_removal(backend: GatedBackend, tasks: TaskReceiver) -> None:
        async for task in tasks:
            if isinstance(task.work, Remove):
                raise Broken
            task.acknowledge(backend.work(task))

    backends = scripted(break_at_a_removal)
    async with checked_lanes(backends, lanes=1) as lanes:
        await lanes.apply(leased(A, 1, 5.0))
        await lanes.apply(leased(B, 1, 5.0))
        await advance(mock_clock, 6.0)  # two removals, and the first breaks it
        assert await lanes.apply(leased(A, 1)) == Applied(applied=1)
        assert backends.current.log == ["Store"]
        assert len(backends.made) == 2


async def test_a_crash_frees_the_lane_in_which_the_instance_is_stuck(
    autojump_clock: MockClock,
) -> None:
    async def stuck_or_broken(backend: GatedBackend, tasks: TaskReceiver) -> None:
        task = await tasks.receive()
        if task.work == confirmed(A, 1):
            await trio.sleep_forever()
        raise Broken

    async with checked_lanes(scripted(stuck_or_broken), lanes=2) as lanes:
        assert lanes.post(confirmed(A, 1))
        await wait_all_tasks_blocked()
        with pytest.raises(LaneCrashed):
            await lanes.apply(confirmed(B, 1))
        with trio.fail_after(1):
            assert await lanes.apply(confirmed(A, 1)) == Applied(applied=1)


def test_a_read_is_acknowledged_with_its_overlap() -> None:
    with pytest.raises(ValueError, match="a Read is acknowledged with the overlap"):
        LaneTask(Read(prompt(1))).acknowledge()


async def test_a_late_acknowledgement_reaches_nobody() -> None:
    kept: list[LaneTask] = []

    async def keep(backend: GatedBackend, tasks: TaskReceiver) -> None:
        kept.append(await tasks.receive())

    backends = scripted(keep)
    async with checked_lanes(backends, lanes=1) as lanes:
        with pytest.raises(LaneCrashed):
            await lanes.apply(leased(A, 2))
        await lanes.apply(leased(A, 1))
        kept[0].acknowledge()
        await wait_all_tasks_blocked()
        assert depth(lanes) == 1
        assert lanes.statistics().total("applied") == 1


@pytest.mark.parametrize(
    ("script", "crashes"), [(s, 1) for s, _ in MISSING] + [(s, 0) for s, _ in ACKNOWLEDGED]
)
async def test_closing_lanes_crash_over_a_missing_acknowledgement_and_only_then(
    script: Serve, crashes: int
) -> None:
    async with checked_lanes(scripted(script), lanes=1) as lanes:
        lanes.attach(A)
        await wait_all_tasks_blocked()
        assert lanes.post(confirmed(A, 1))
    statistics = lanes.statistics()
    assert (statistics.crashes, statistics.total("applied")) == (crashes, 1 - crashes)


async def test_the_receiver_of_an_ended_serve_hands_out_nothing(autojump_clock: MockClock) -> None:
    kept: list[TaskReceiver] = []

    async def leak(backend: GatedBackend, tasks: TaskReceiver) -> None:
        kept.append(tasks)

    async with checked_lanes(scripted(leak), lanes=1) as lanes:
        await wait_all_tasks_blocked()
        with trio.fail_after(1), pytest.raises(trio.ClosedResourceError):
            await kept[0].receive()
        assert await lanes.apply(leased(A, 2)) == Applied(applied=2)


async def test_a_read_without_its_answer_is_told_so() -> None:
    backends = scripted(return_holding)
    shape = backends.shape

    def reads_in_lane() -> GatedBackend:
        made = shape()
        made.reads_in_caller = False
        return made

    backends.shape = reads_in_lane
    async with checked_lanes(backends, lanes=1) as lanes:
        with pytest.raises(LaneCrashed):
            await lanes.read(prompt(1))
        assert (await lanes.read(prompt(1))).scores() == {}


async def test_one_lanes_crash_ends_the_instance_on_all_lanes() -> None:
    first: list[object] = []

    async def scripted_by_lane(backend: GatedBackend, tasks: TaskReceiver) -> None:
        first.append(backend)
        serve = raise_holding if len(first) == 1 else GatedBackend.serve
        await serve(backend, tasks)

    backends = scripted(scripted_by_lane)
    async with checked_lanes(backends, lanes=3) as lanes:
        for number in range(6):
            lanes.attach(Rank("w", number))
        ends: list[object] = []

        async def call(rank: Rank) -> None:
            end: object
            try:
                end = await lanes.apply(confirmed(rank, 1))
            except LaneCrashed as error:
                end = type(error.__cause__)
            await trio.lowlevel.checkpoint()
            ends.append(end)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(call, Rank("w", number))
        assert len(ends) == 6
        assert ends.count(Broken) >= 1
        assert len(backends.made) == 2
        assert lanes.statistics().crashes == 1
        await lanes.flush()
        held = backends.current.oracle.overlap(prompt(1)).scores()
        assert len(held) <= ends.count(Applied(applied=1))


async def test_serve_that_breaks_at_once_every_time_lets_others_run_and_reaches_the_owner() -> None:
    turns = 0
    attempts: list[int] = []

    async def broken(backend: GatedBackend, tasks: TaskReceiver) -> None:
        attempts.append(turns)
        raise Broken

    async def owner() -> None:
        nonlocal turns
        async with checked_lanes(Backends(lambda: ScriptedBackend(broken)), lanes=1):
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

    with pytest.raises(LaneCrashed, match="4 times in a minute"):
        await owner()
    # Four attempts, a turn each, in whichever order the tasks of a turn run.
    assert attempts[3] - attempts[0] >= 2
