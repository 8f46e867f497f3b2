"""Closing: within its bounds where work obeys, open and outspoken where it does not."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.engine import (
    AdmissionGate,
    Applied,
    Engine,
    EngineClosed,
    Failed,
    GateClosed,
    LaneCrashed,
    Mutation,
    Reservation,
    Worker,
    open_engine,
)
from kvlanes.engine.testing import ThreadGate, WorkGate, assert_engine_idle
from tests.engine.scenes import answer, config, conversation, load
from tests.indexer.oracle import Oracle

PROMPT = conversation(1)


class Client:
    """One request in a task of its own; `ended` says what became of its dispatch."""

    def __init__(self, engine: Engine, gate: WorkGate[str]) -> None:
        self.engine = engine
        self.gate = gate
        self.ended: list[object] = []
        self.request_id = ""

    async def run(self) -> None:
        async with self.engine.request(request_id=self.request_id or None) as request:
            self.ended.append(await request.route(PROMPT).dispatch(self.gate))


async def test_closing_waits_for_what_runs(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        async with open_engine(config(close_seconds=5)) as engine:
            engine.register(Worker("a"))
            client = Client(engine, WorkGate())
            nursery.start_soon(client.run)
            await wait_all_tasks_blocked()

            async def finish() -> None:
                await trio.sleep(4)
                client.gate.open("in time")

            nursery.start_soon(finish)
        assert trio.current_time() == 4
        assert str(client.ended) == "[Completed(value='in time')]"
        assert_engine_idle(engine)


@pytest.mark.parametrize("shared", [False, True])
async def test_admitted_requests_may_still_route_while_closing_waits(
    autojump_clock: MockClock, shared: bool
) -> None:
    told: list[object] = []
    gate = AdmissionGate(4) if shared else None
    async with trio.open_nursery() as nursery:
        async with open_engine(config(), gate=gate) as engine:
            engine.register(Worker("a"))

            async def late() -> None:
                async with engine.request() as request:
                    await trio.sleep(2)
                    with pytest.raises(EngineClosed), engine.request_nowait():
                        pass
                    place = request.route(PROMPT)
                    told.append((await place.dispatch(answer, place.route)).unwrap())

            nursery.start_soon(late)
            await wait_all_tasks_blocked()
        assert told == ["a answered"]


async def test_what_outlasts_closing_ends_as_engine_closed(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        async with open_engine(config(close_seconds=5, grace_seconds=2)) as engine:
            engine.register(Worker("a"))
            clients = [Client(engine, WorkGate()) for _ in range(3)]
            for client in clients:
                nursery.start_soon(client.run)
            await wait_all_tasks_blocked()
        assert trio.current_time() == 5
        for client in clients:
            (ended,) = client.ended
            assert isinstance(ended, Failed)
            assert isinstance(ended.error, EngineClosed)
            assert client.gate.cancellations == 1
        errors = [e.error for client in clients for e in client.ended if isinstance(e, Failed)]
        assert len({id(error) for error in errors}) == 3
        assert_engine_idle(engine)


async def test_nothing_routes_or_starts_once_closing_has_ended_the_rest(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        places: list[Reservation] = []
        async with open_engine(config(close_seconds=1, grace_seconds=3)) as engine:
            engine.register(Worker("a"))

            async def stays() -> None:
                async with engine.request() as request:
                    places.append(request.route(PROMPT))
                    await trio.sleep(2)
                    with pytest.raises(EngineClosed, match="has closed"):
                        request.route(PROMPT)
                    ended = await places[0].dispatch(answer, places[0].route)
                    assert isinstance(ended, Failed)
                    assert isinstance(ended.error, EngineClosed)

            nursery.start_soon(stays)
            await wait_all_tasks_blocked()
        assert trio.current_time() == 2
        assert_engine_idle(engine)


async def test_work_that_ignores_its_cancellation_keeps_closing_open_and_is_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 5: a task cannot be abandoned; a line every `grace_seconds` says who holds what."""
    settings = {"close_seconds": 1, "grace_seconds": 2}
    async with trio.open_nursery() as nursery:
        async with open_engine(config(**settings)) as engine:
            engine.register(Worker("a"))
            client = Client(engine, WorkGate(stubborn=True))
            client.request_id = "stubborn"
            nursery.start_soon(client.run)
            await wait_all_tasks_blocked()

            async def release() -> None:
                await trio.sleep(10)
                assert (load(engine, "a"), engine.statistics().dispatched) == (1, 1)
                client.gate.open("at last")

            nursery.start_soon(release)
        assert trio.current_time() == 10
        assert isinstance(client.ended[0], Failed)
        assert_engine_idle(engine)
    lines = [r.getMessage() for r in caplog.records if r.name == "kvlanes.engine"]
    assert len(lines) == 4
    assert all("still held by stubborn (1, " in line for line in lines)
    assert lines[-1] == "closing the engine: still held by stubborn (1, dispatched)"


async def test_a_thread_that_outlives_the_engine_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody waits for it: its permit dies with the gate that the engine owned."""
    settings = {"close_seconds": 0, "grace_seconds": 0}
    thread = ThreadGate[int]()
    async with trio.open_nursery() as nursery:
        async with open_engine(config(**settings)) as engine:

            async def blocked() -> None:
                with trio.CancelScope() as scope:
                    async with engine.request(request_id="deep") as request:
                        scopes.append(scope)
                        await request.preflight(thread)

            scopes: list[trio.CancelScope] = []
            nursery.start_soon(blocked)
            await thread.entered.wait()
            scopes[0].cancel()
        lines = [r.getMessage() for r in caplog.records if r.name == "kvlanes.engine"]
        assert lines == ["closing the engine: still held by deep (1, preflight)"]
        thread.open(1)
        await engine.gate.wait_idle()


async def test_a_host_that_is_cancelled_waits_for_the_grace_alone(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            async with open_engine(config(close_seconds=60, grace_seconds=2)) as engine:
                engine.register(Worker("a"))
                client = Client(engine, WorkGate())
                nursery.start_soon(client.run)
                await trio.sleep_forever()
        assert trio.current_time() == 1
        assert isinstance(client.ended[0], Failed)
        assert_engine_idle(engine)


async def test_own_waiters_are_refused_at_once() -> None:
    settings = {"permits": 1, "admission_queue": 4, "close_seconds": 0, "grace_seconds": 0}
    refused: list[str] = []
    async with trio.open_nursery() as nursery:
        async with open_engine(config(**settings)) as engine:
            blocker = engine.gate.admit_nowait()

            async def waiter() -> None:
                try:
                    async with engine.request():
                        raise AssertionError("admitted by a closed engine")
                except GateClosed:
                    refused.append("gate closed")

            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert refused == ["gate closed"]
        blocker.close()


async def test_a_shared_gate_outlives_each_engine_and_counts_for_both() -> None:
    gate = AdmissionGate(2)
    async with open_engine(config(), gate=gate) as one:
        async with open_engine(config(), gate=gate) as other:
            with one.request_nowait(), other.request_nowait():
                assert gate.free == 0
        with one.request_nowait(weight=2):
            assert gate.free == 0
    gate.admit_nowait(2).close()


async def test_closing_does_not_wait_for_what_others_hold_at_a_shared_gate(
    autojump_clock: MockClock,
) -> None:
    gate = AdmissionGate(2)
    with gate.admit_nowait():
        async with open_engine(config(close_seconds=5), gate=gate):
            pass
        assert trio.current_time() == 0


async def test_a_single_error_of_the_block_leaves_as_itself() -> None:
    """Design rule 11: the engine's own exception-group layers come off."""

    async def body() -> None:
        async with open_engine(config()) as engine, engine.request():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        await body()
    assert caught.value.__context__ is None


async def test_a_group_of_the_user_stays_whole() -> None:
    async def fail(name: str) -> None:
        raise ValueError(name)

    async def two_tasks() -> None:
        async with open_engine(config()), trio.open_nursery() as nursery:
            nursery.start_soon(fail, "one")
            nursery.start_soon(fail, "two")

    async def own_group() -> None:
        async with open_engine(config()):
            raise ExceptionGroup("mine", [ValueError("alone")])

    with pytest.raises(ExceptionGroup) as caught:
        await two_tasks()
    assert sorted(str(error) for error in caught.value.exceptions) == ["one", "two"]
    with pytest.raises(ExceptionGroup) as caught:
        await own_group()
    assert (caught.value.message, len(caught.value.exceptions)) == ("mine", 1)


async def test_an_error_leaves_after_the_work_that_runs_was_ended(
    autojump_clock: MockClock,
) -> None:
    clients: list[Client] = []

    async def body(nursery: trio.Nursery) -> None:
        async with open_engine(config(close_seconds=3)) as engine:
            engine.register(Worker("a"))
            clients.append(Client(engine, WorkGate()))
            nursery.start_soon(clients[0].run)
            await wait_all_tasks_blocked()
            raise KeyError("body")

    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError):
            await body(nursery)
        assert trio.current_time() == 3
        assert isinstance(clients[0].ended[0], Failed)
        assert_engine_idle(clients[0].engine)


class Broken(Oracle):
    """An index that no mutation survives."""

    def apply(self, mutation: Mutation, now: float) -> Applied:
        raise ZeroDivisionError("broken index")


async def test_an_index_that_keeps_crashing_ends_the_engine_by_name() -> None:
    async def body() -> None:
        async with open_engine(config(), make_index=lambda: Broken(16)) as engine:
            engine.register(Worker("a"))
            for _ in range(4):
                async with engine.request() as request:
                    place = request.route(PROMPT)
                    assert (await place.dispatch(answer, place.route)).unwrap()
            await trio.sleep_forever()

    with pytest.raises(LaneCrashed, match="4 times in a minute") as caught:
        await body()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_after_one_crash_the_engine_serves_on_and_says_what_was_lost() -> None:
    made: list[Oracle] = []

    def make() -> Oracle:
        made.append(Oracle(16) if made else Broken(16))
        return made[-1]

    async with open_engine(config(), make_index=make) as engine:
        engine.register(Worker("a"))
        for _ in range(2):
            async with engine.request() as request:
                place = request.route(PROMPT)
                assert (await place.dispatch(answer, place.route)).unwrap() == "a answered"
        assert engine.probe(PROMPT).overlap == 4
        assert engine.health().problems == ("a: its coverage was lost in a crash of the index",)
        assert engine.health().ready


async def test_a_closed_engine_refuses_requests_by_its_own_name() -> None:
    gate = AdmissionGate(2)
    for shared in (None, gate):
        async with open_engine(config(), gate=shared) as engine:
            pass
        with pytest.raises(EngineClosed):
            async with engine.request():
                pass
        with pytest.raises(EngineClosed), engine.request_nowait():
            pass
    assert gate.free == 2
