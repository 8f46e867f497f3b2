"""Workers without events but with a known size: their block pool is modelled from our requests."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import trio
from trio.testing import MockClock

from kvlanes.engine import Clear, Engine, Failed, Rank, Worker
from tests.engine.scenes import chain, conversation, held, running, serve
from tests.engine.test_routing import store

SMALL = Worker("a", capacity_blocks=8)


def known(engine: Engine, *numbers: int) -> list[int]:
    """Blocks that the worker is believed to hold of each conversation."""
    return [held(engine, conversation(number)).get("a", 0) for number in numbers]


async def test_a_full_pool_evicts_what_was_released_first() -> None:
    async with running(SMALL) as engine:
        for number in (1, 2, 1, 3):
            await serve(engine, conversation(number))
        assert known(engine, 1, 2, 3) == [4, 0, 4]


async def test_modelled_coverage_does_not_end_by_time(autojump_clock: MockClock) -> None:
    async with running(SMALL, ttl_seconds=5, predicted_ttl_seconds=1) as engine:
        await serve(engine, conversation(1))
        await trio.sleep(3600)
        assert known(engine, 1) == [4]
        assert engine.probe(conversation(1)).source == "modelled"


async def test_a_running_request_keeps_its_blocks_from_eviction() -> None:
    async with running(SMALL) as engine, engine.request() as request:
        with request.route(conversation(1)) as place:
            place.first_output()
            for number in (2, 3, 4):
                await serve(engine, conversation(number))
            assert known(engine, 1, 2, 3, 4) == [4, 0, 0, 4]
        await serve(engine, conversation(5))
        assert known(engine, 1, 4, 5) == [4, 0, 4]
        await serve(engine, conversation(6))
        assert known(engine, 1, 5, 6) == [0, 4, 4]


async def test_output_takes_room_until_the_request_ends() -> None:
    async with running(SMALL) as engine, engine.request() as request:
        await serve(engine, conversation(2))
        with request.route(conversation(1)) as place:
            place.first_output()
            assert known(engine, 1, 2) == [4, 4]
            place.grow(1)
            place.grow(2)
            assert known(engine, 1, 2) == [4, 1]
        await serve(engine, conversation(3))
        assert known(engine, 1, 2, 3) == [4, 0, 4]


async def test_a_request_takes_its_room_once_and_leaves_all_of_it() -> None:
    """First output and success, the latter twice: one stay, which ends with the reservation."""
    async with running(SMALL) as engine, engine.request() as request:
        with request.route(conversation(1)) as place:
            place.first_output()
            place.succeeded()
            place.succeeded(cached_tokens=0)
        for number in (2, 3):
            await serve(engine, conversation(number))
        assert known(engine, 1, 2, 3) == [0, 4, 4]


async def test_a_shared_prefix_takes_room_once() -> None:
    async with running(SMALL) as engine:
        await serve(engine, chain(1, 2, 3, 4, 5, 6))
        await serve(engine, chain(1, 2, 3, 4, 7, 8))
        assert held(engine, chain(1, 2, 3, 4, 5, 6)) == {"a": 6}
        assert held(engine, chain(1, 2, 3, 4, 7, 8)) == {"a": 6}


async def test_failure_before_the_first_output_takes_no_room() -> None:
    """P70 in this mode: only a first output or a success says that the worker has the prompt."""

    async def fail() -> None:
        raise ConnectionResetError

    async with running(SMALL) as engine, engine.request() as request:
        assert isinstance(await request.route(conversation(1)).dispatch(fail), Failed)
        assert known(engine, 1) == [0]


async def test_room_is_left_once_and_a_late_success_leaves_it_at_once() -> None:
    async with running(SMALL) as engine, engine.request() as request:
        place = request.route(conversation(1))
        place.close()
        place.succeeded()
        place.close()
        for number in (2, 3):
            await serve(engine, conversation(number))
        assert known(engine, 1, 2, 3) == [0, 4, 4]


async def test_a_restart_or_departure_empties_the_pool_and_fences_late_requests() -> None:
    async with running(SMALL) as engine, engine.request() as request:
        for change in ("restart", "return"):
            await serve(engine, conversation(1))
            place = request.route(conversation(2))
            place.first_output()
            if change == "restart":
                engine.restarted(Rank("a"))
            else:
                await engine.remove("a")
                engine.register(SMALL)
            place.grow(3)
            place.close()
            assert known(engine, 1, 2) == [0, 0]
            for number in (3, 4, 5):
                await serve(engine, conversation(number))
            assert known(engine, 3, 4, 5) == [0, 4, 4]  # the new life has a pool of its own


async def test_an_update_resizes_the_pool() -> None:
    async with running(SMALL) as engine:
        for number in (1, 2):
            await serve(engine, conversation(number))
        await engine.update(Worker("a", capacity_blocks=4))
        assert known(engine, 1, 2) == [0, 4]
        await engine.update(Worker("a", capacity_blocks=16))
        for number in (3, 4, 5):
            await serve(engine, conversation(number))
        assert known(engine, 2, 3, 4, 5) == [4, 4, 4, 4]


async def test_an_unknown_size_falls_back_to_leases(autojump_clock: MockClock) -> None:
    async with running(SMALL, ttl_seconds=5) as engine:
        await serve(engine, conversation(1))
        await engine.update(Worker("a"))
        assert known(engine, 1) == [0]
        await serve(engine, conversation(2))
        assert known(engine, 2) == [4]
        await trio.sleep(6)
        assert known(engine, 2) == [0]


async def test_events_replace_the_model() -> None:
    """The first event ends the guesswork: what was modelled goes, what is told stays."""
    async with running(SMALL) as engine:
        await serve(engine, conversation(1))
        await store(engine, "a", conversation(2))
        assert known(engine, 1, 2) == [0, 4]
        for number in (3, 4, 5):
            await store(engine, "a", conversation(number))
        assert known(engine, 2, 3, 4, 5) == [4, 4, 4, 4]
        await engine.apply(Clear(Rank("a")))
        assert known(engine, 2) == [0]


async def test_each_rank_has_a_pool_of_its_own() -> None:
    async with running(Worker("a", dp_size=2, capacity_blocks=4)) as engine:
        for number in (1, 2):
            for dp_rank in (0, 1):
                await serve(
                    engine, conversation(10 * dp_rank + number), allowed=[Rank("a", dp_rank)]
                )
        assert held(engine, conversation(2)) == {"a": 4}
        assert held(engine, conversation(12)) == {"a:1": 4}
        assert held(engine, conversation(1)) == {}
