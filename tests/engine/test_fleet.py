"""How workers come, change and go: whole or not at all, and nothing old reaches what is new."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.engine import (
    BlockSizeMismatch,
    Clear,
    Engine,
    EngineClosed,
    Prompt,
    Rank,
    Store,
    UnknownWorker,
    Worker,
    WorkerExists,
)
from kvlanes.engine.testing import Victim, cancel_everywhere
from tests.engine.scenes import ABC, chosen, conversation, held, load, running, serve
from tests.engine.test_routing import store

PROMPT = conversation(1)


def listed(engine: Engine) -> list[str]:
    return [row.rank for row in engine.statistics().ranks]


async def test_registration_is_all_or_nothing() -> None:
    async with running(Worker("a")) as engine:
        for bad, error in (
            ((Worker("b"), Worker("a")), WorkerExists),
            ((Worker("b"), Worker("b")), WorkerExists),
            ((Worker("b"), Worker("c", block_size=32)), BlockSizeMismatch),
        ):
            with pytest.raises(error):
                engine.register(*bad)
            assert listed(engine) == ["a"]


async def test_a_block_size_mismatch_names_both_sizes() -> None:
    async with running() as engine:
        with pytest.raises(BlockSizeMismatch, match=r"32.*16|16.*32"):
            engine.register(Worker("a", block_size=32))
        engine.register(Worker("a", block_size=16))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dp_size": 0}, ValueError, "dp_size must be an integer >= 1, got 0"),
        ({"dp_size": True}, ValueError, "got True"),
        ({"capacity_blocks": 1.5}, ValueError, "capacity_blocks must be an integer"),
        ({"capabilities": "vision"}, TypeError, "got the string 'vision'"),
    ],
)
def test_a_worker_that_makes_no_sense_is_refused(
    settings: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Worker("a", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_worker_has_a_name(name: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Worker(name)  # type: ignore[arg-type]


async def test_the_unknown_is_refused_by_name() -> None:
    async with running(*ABC) as engine:
        calls: list[Callable[[], object]] = [
            lambda: engine.drain("x"),
            lambda: engine.connect_failed("x"),
            lambda: engine.restarted(Rank("x")),
            lambda: engine.report_load(Rank("a", 1), "engine", 0.5),
        ]
        for call in calls:
            with pytest.raises(UnknownWorker, match="is registered"):
                call()
        for slow in (
            engine.remove("x"),
            engine.update(Worker("x")),
            engine.apply(Clear(Rank("x"))),
        ):
            with pytest.raises(UnknownWorker, match="'x'"):
                await slow


async def test_update_keeps_the_load_and_coverage_of_ranks_that_stay() -> None:
    async with running(Worker("a", dp_size=2), Worker("b")) as engine, engine.request() as request:
        await store(engine, "a", PROMPT)
        await store(engine, "a", PROMPT, dp_rank=1)
        request.route(PROMPT, allowed=[Rank("a")])
        request.route(PROMPT, allowed=[Rank("a", 1)])
        await engine.update(Worker("a", capabilities=frozenset({"json"})))
        assert (load(engine, "a"), held(engine, PROMPT)) == (1, {"a": 4})
        await engine.update(Worker("a", dp_size=2))
        assert (load(engine, "a"), held(engine, PROMPT)) == (1, {"a": 4})
        assert listed(engine) == ["a", "b", "a:1"]


async def test_a_refused_update_changes_nothing() -> None:
    async with running(*ABC) as engine:
        with pytest.raises(BlockSizeMismatch):
            await engine.update(Worker("a", dp_size=3, block_size=64))
        assert listed(engine) == ["a", "b", "c"]


async def test_draining_sends_nothing_new_and_can_be_undone() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        place = request.route(PROMPT, allowed=["a"])
        engine.drain("a")
        assert load(engine, "a") == 1
        assert not place.lost
        assert chosen(engine, PROMPT) == "b"
        engine.drain("a", draining=False)
        assert engine.probe(PROMPT, allowed=["a"]).worker == "a"


async def test_reconcile_makes_the_registry_equal_a_set_and_repeats_for_nothing() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        kept = request.route(PROMPT, allowed=["b"])
        lost = request.route(PROMPT, allowed=["a"])
        wanted = [Worker("d"), Worker("b"), Worker("c", dp_size=2)]
        for _ in range(3):
            await engine.reconcile(wanted)
            assert sorted(listed(engine)) == ["b", "c", "c:1", "d"]
            assert (kept.lost, lost.lost, load(engine, "b")) == (False, True, 1)


async def test_a_refused_reconcile_changes_nothing() -> None:
    async with running(*ABC) as engine:
        for bad, error in (
            ([Worker("d"), Worker("d")], WorkerExists),
            ([Worker("a", block_size=8)], BlockSizeMismatch),
            ([Worker("d", block_size=8)], BlockSizeMismatch),
        ):
            with pytest.raises(error):
                await engine.reconcile(bad)
            assert listed(engine) == ["a", "b", "c"]


async def test_a_known_name_twice_in_one_reconcile_is_refused() -> None:
    async with running(*ABC) as engine:
        with pytest.raises(WorkerExists, match="'a'"):
            await engine.reconcile([Worker("a"), Worker("a", dp_size=2)])
        assert listed(engine) == ["a", "b", "c"]


async def test_a_worker_that_left_is_praised_no_more() -> None:
    """P03: coverage, leases and load go with a departure; the same name starts from nothing."""
    async with running(*ABC) as engine:
        deep = conversation(1, 64)
        await store(engine, "a", deep)
        await store(engine, "b", chain_prefix(deep, 32))
        assert held(engine, deep) == {"a": 64, "b": 32}
        await engine.apply(Clear(Rank("a")))
        assert held(engine, deep) == {"b": 32}
        await engine.remove("b")
        assert held(engine, deep) == {}
        engine.register(Worker("b"))
        assert held(engine, deep) == {}
        await store(engine, "b", chain_prefix(deep, 8))
        assert held(engine, deep) == {"b": 8}


def chain_prefix(prompt: Prompt, blocks: int) -> Prompt:
    return Prompt.from_blocks(prompt.blocks[: 8 * blocks], prompt.block_size)


async def test_a_restart_empties_a_rank_and_fences_what_is_late() -> None:
    """Events and placements of the old life change nothing; the registration stays."""
    async with running(*ABC) as engine, engine.request() as request:
        await store(engine, "a", PROMPT)
        place = request.route(PROMPT)
        assert place.route.worker == "a"
        engine.restarted(Rank("a"))
        assert (held(engine, PROMPT), load(engine, "a"), place.lost) == ({}, 0, True)
        place.succeeded()
        assert held(engine, PROMPT) == {}
        assert listed(engine) == ["a", "b", "c"]
        assert await serve(engine, PROMPT, allowed=["a"]) == "a"
        assert held(engine, PROMPT) == {"a": 4}


async def test_removal_and_registration_in_one_step_never_mix_two_lives() -> None:
    async with running(Worker("a")) as engine, trio.open_nursery() as nursery:
        for number in range(5):
            await store(engine, "a", conversation(number))
            nursery.start_soon(engine.remove, "a")
            await wait_all_tasks_blocked()
            engine.register(Worker("a"))
            assert held(engine, conversation(number)) == {}


Change = Callable[[Engine], Awaitable[None]]

CHANGES: dict[str, tuple[Change, list[str]]] = {
    "update": (lambda engine: engine.update(Worker("a", dp_size=2)), ["a", "a:1", "b", "c"]),
    "shrink": (lambda engine: engine.update(Worker("c")), ["a", "b", "c"]),
    "remove": (lambda engine: engine.remove("a"), ["b", "c"]),
    "reconcile": (
        lambda engine: engine.reconcile([Worker("a", dp_size=2), Worker("d")]),
        ["a", "a:1", "d"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_cancelled_change_leaves_the_old_state_or_the_new_one(name: str) -> None:
    """At every checkpoint; and whoever is listed is heard: its stores are applied."""
    change, after = CHANGES[name]
    before = ["a", "b", "c"]

    async def scenario(victim: Victim) -> None:
        workers = (Worker("a"), Worker("b"), Worker("c"))
        async with running(*workers, lanes=2) as engine:
            for worker in "abc":
                await store(engine, worker, PROMPT)
            with victim:
                await change(engine)
            assert sorted(listed(engine)) in (before, after)
            for rank in listed(engine):
                worker, _, number = rank.partition(":")
                await store(engine, worker, PROMPT, int(number or 0))
            assert sorted(held(engine, PROMPT)) == sorted(listed(engine))

    assert cancel_everywhere(scenario) >= 1


async def test_a_worker_that_never_answers_keeps_nobody_waiting(autojump_clock: MockClock) -> None:
    """P63 in kind: an engine is ready with who answers, and shows who does not.

    Nothing here waits for all workers at a start: of five, one never answers. It is listed, the
    others serve at once, and dropping it ends a wait for its lane immediately.
    """
    names = ["a", "b", "c", "d", "e"]
    async with running(*(Worker(name, feed=True) for name in names)) as engine:
        for name in names[:-1]:
            await store(engine, name, PROMPT)
        assert engine.health().ready
        assert trio.current_time() == 0
        await trio.sleep(9)
        for name in names[:-1]:
            await store(engine, name, PROMPT)
        await trio.sleep(2)
        assert engine.health().problems == ("e: no event for 11 s; its coverage may be stale",)
        began = trio.current_time()
        await engine.remove("e")
        assert (trio.current_time(), engine.health().problems) == (began, ())


async def test_those_that_wait_leave_with_their_own_scope(autojump_clock: MockClock) -> None:
    """P73 in kind: whoever waits for another's permit obeys its own cancellation at once.

    A first turn stalls and three followers wait for its permit. Two are cancelled and leave in
    the same tick; when the first ends, the third is served, and what the first one says late
    changes nothing for it.
    """
    left: list[tuple[str, float]] = []
    async with running(Worker("a"), permits=1, admission_queue=8) as engine:
        scopes = [trio.CancelScope() for _ in range(3)]
        served = trio.Event()

        async def follower(number: int) -> None:
            with scopes[number]:
                async with engine.request(request_id=f"turn-{number}"):
                    served.set()
            left.append((f"turn-{number}", trio.current_time()))

        async with trio.open_nursery() as nursery:
            async with engine.request() as first:
                place = first.route(PROMPT)
                for number in range(3):
                    nursery.start_soon(follower, number)
                    await wait_all_tasks_blocked()
                await trio.sleep(5)
                scopes[0].cancel()
                scopes[1].cancel()
                await wait_all_tasks_blocked()
                assert sorted(left) == [("turn-0", 5), ("turn-1", 5)]
                assert engine.statistics().gate.waiting == 1
            await served.wait()
            engine.restarted(Rank("a"))
            place.succeeded()
            assert held(engine, PROMPT) == {}


async def test_a_closing_engine_registers_nobody() -> None:
    async with running(Worker("a")) as engine:
        pass
    with pytest.raises(EngineClosed):
        engine.register(Worker("b"))
    for change in (engine.reconcile([]), engine.update(Worker("a", dp_size=2))):
        with pytest.raises(EngineClosed):
            await change
    assert listed(engine) == ["a"]


async def test_an_event_of_an_incarnation_that_ended_while_queued_is_stale() -> None:
    """The mutation was accepted for the old life; the new one never sees it."""
    async with running(Worker("a"), lanes=1) as engine:
        life = engine.lanes.attach(Rank("a"))
        engine.restarted(Rank("a"))
        engine.lanes.post(Store(Rank("a"), None, PROMPT.blocks, PROMPT.sequence_hashes), life)
        await engine.lanes.flush()
        assert held(engine, PROMPT) == {}
