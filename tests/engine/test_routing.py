"""Where requests go: filters first, one cost, ties that spread, and probes that change nothing."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import contextlib
import pickle
from array import array
from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kvlanes.engine import (
    BlockSizeMismatch,
    Engine,
    Held,
    Lease,
    NoEligibleWorker,
    Prompt,
    Rank,
    Request,
    Store,
    TierWeights,
    Weights,
    Worker,
)
from kvlanes.indexer import RadixIndex, Tier, TierIndex
from tests.engine.scenes import ABC, ABCD, BLOCK, chain, conversation, load, running, serve
from tests.indexer.chains import names, packed


async def store(engine: Engine, worker: str, prompt: Prompt, dp_rank: int = 0) -> None:
    """The worker's engine says that it holds the prompt."""
    await engine.apply(Store(Rank(worker, dp_rank), None, prompt.blocks, prompt.sequence_hashes))


async def test_equal_routes_in_one_tick_spread_evenly() -> None:
    """P35: each caller sees those before it, because choosing and booking are one step."""
    async with running(*ABCD, permits=40) as engine, contextlib.AsyncExitStack() as stack:
        requests = [await stack.enter_async_context(engine.request()) for _ in range(40)]
        tick = trio.current_time()
        places = [request.route(conversation(i)) for i, request in enumerate(requests)]
        assert Counter(place.route.worker for place in places) == dict.fromkeys("abcd", 10)
        assert [load(engine, worker) for worker in "abcd"] == [10] * 4
        assert trio.current_time() - tick < 1


async def test_equal_tasks_in_one_tick_spread_evenly() -> None:
    """P35 with tasks: no await stands between a choice and its booking."""
    seen: Counter[str] = Counter()
    async with running(*ABCD, permits=40) as engine:
        done = trio.Event()

        async def one() -> None:
            async with engine.request() as request:
                seen[request.route(conversation(1)).route.worker] += 1
                await done.wait()

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            assert seen == dict.fromkeys("abcd", 10)
            done.set()


async def test_sequential_misses_are_spread_and_a_conversation_stays() -> None:
    """P14: 400 unique prompts one after the other, then one conversation of 20 turns."""
    async with running(*ABCD) as engine:
        served = Counter([await serve(engine, conversation(i)) for i in range(400)])
        assert served == dict.fromkeys("abcd", 100)
        turns = [
            await serve(engine, chain(*range(9_000_000, 9_000_004 + 3 * t))) for t in range(20)
        ]
        assert len(set(turns)) == 1


@pytest.mark.parametrize("temperature", [0.0, 0.5])
async def test_misses_spread_within_five_at_any_temperature(temperature: float) -> None:
    """P14 where the choice is drawn: the seed makes it repeatable."""
    weights = {"temperature": temperature}
    async with running(*ABCD, weights=weights, seed=1) as engine:
        served = Counter([await serve(engine, conversation(i)) for i in range(400)])
        assert all(abs(served[worker] - 100) <= 5 for worker in "abcd"), served


async def test_one_hot_worker_does_not_end_the_affinity_of_others() -> None:
    """P13: with 40 requests on a, 1,000 prompts held by b or c all find their holder."""
    async with running(*ABC, permits=64) as engine, engine.request(weight=40) as busy:
        for number in range(40):
            busy.route(conversation(number), allowed=["a"])
        for number in range(1000):
            holder = "bc"[number % 2]
            prompt = conversation(100 + number, 16)
            await store(engine, holder, prompt)
            with engine.request_nowait() as request:
                assert request.route(prompt).route.worker == holder
        hot = conversation(5000, 16)
        await store(engine, "a", hot)
        assert engine.probe(hot).worker in "bc"


def decide(request: Request, routes: int) -> list[str]:
    """Route prompts of several sizes, some known, and keep the places, so that costs differ."""
    sizes = (1, 5, 2, 9, 4)
    prompts = [conversation(number % 30, sizes[number % 5]) for number in range(routes)]
    return [request.route(prompt).route.worker for prompt in prompts]


def observable(engine: Engine) -> bytes:
    """Everything that a probe could disturb."""
    told = engine.statistics()
    return pickle.dumps((told.ranks, told.open_requests, told.dispatched, engine.digest()))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_probes_change_nothing(temperature: float) -> None:
    """1,000 probes leave loads, leases, digest and random state; the next routes are the same."""
    routes: list[list[str]] = []
    for probes in (0, 1000):
        async with running(*ABCD, weights={"temperature": temperature}, seed=7) as engine:
            for number in range(8):
                await serve(engine, conversation(number))
            async with engine.request() as request:
                decide(request, 8)
                before, leases = observable(engine), engine.lanes.statistics()
                for number in range(probes):
                    engine.probe(conversation(number % 16), exclude=["a"] if number % 3 else ())
                assert (observable(engine), engine.lanes.statistics()) == (before, leases)
                routes.append(decide(request, 50))
    assert routes[0] == routes[1]
    assert len(set(routes[0])) == 4


async def test_a_probe_tells_what_the_route_will_be() -> None:
    async with running(*ABCD, weights={"temperature": 1.0}) as engine, engine.request() as request:
        for number in range(60):
            told = engine.probe(conversation(number % 7))
            route = request.route(conversation(number % 7)).route
            assert told.rank == route.rank
            assert str(told.explanation) == str(route.explanation)


async def digest_of(seed: int) -> str:
    async with running(*ABCD, weights={"temperature": 0.8}, seed=seed) as engine:
        for number in range(20):
            await serve(engine, conversation(number))
        async with engine.request() as request:
            decide(request, 80)
        return engine.digest()


@pytest.mark.parametrize("seed", [0, 1, 2**63])
async def test_the_same_seed_gives_the_same_digest(seed: int) -> None:
    assert await digest_of(seed) == await digest_of(seed)


async def test_another_seed_gives_another_digest() -> None:
    assert len({await digest_of(seed) for seed in range(5)}) == 5


async def test_the_unavailable_are_left_out_before_anything_is_scored() -> None:
    """P69: a holds everything and is ejected, b is overloaded, c is fine: 100 of 100 go to c."""
    async with running(*ABC, connect_failures=1) as engine:
        prompt = conversation(1, 64)
        await store(engine, "a", prompt)
        engine.connect_failed("a")
        engine.report_load(Rank("b"), "engine", 0.99)
        for _ in range(100):
            assert await serve(engine, prompt) == "c"


async def test_when_nobody_is_left_one_error_lists_the_reason_of_each(
    autojump_clock: MockClock,
) -> None:
    """P69: all three bad."""
    async with running(*ABC, connect_failures=1, ejection_seconds=8) as engine:
        engine.connect_failed("a")
        engine.report_load(Rank("b"), "engine", 0.99)
        engine.drain("c")
        await trio.sleep(3)
        with pytest.raises(NoEligibleWorker) as refused:
            await serve(engine, conversation(1))
        assert refused.value.reasons == {
            "a": "ejected for 5.0 s more",
            "b": "overloaded: 99% busy says engine",
            "c": "draining",
        }
        assert refused.value.retry_after_seconds == pytest.approx(5)
        assert "a: ejected for 5.0 s more, b: overloaded" in str(refused.value)


async def test_an_engine_without_workers_says_so() -> None:
    async with running() as engine:
        with pytest.raises(NoEligibleWorker, match="none registered"):
            engine.probe(conversation(1))


async def test_a_pin_beats_every_cost_but_no_filter() -> None:
    async with running(*ABC) as engine:
        prompt = conversation(1)
        await store(engine, "a", prompt)
        assert engine.probe(prompt, allowed=["b"]).worker == "b"
        assert engine.probe(prompt, allowed=[Rank("c")]).worker == "c"
        engine.drain("b")
        with pytest.raises(NoEligibleWorker) as refused:
            engine.probe(prompt, allowed=["b", "nobody"])
        assert refused.value.reasons["b"] == "draining"
        assert refused.value.reasons["nobody"] == "not registered"
        assert refused.value.reasons["a"] == "not among those allowed"


async def test_a_worker_s_name_stands_for_all_its_ranks() -> None:
    async with running(Worker("a", dp_size=2), Worker("b")) as engine:
        assert engine.probe(conversation(1), exclude=["a"]).rank == Rank("b")
        assert engine.probe(conversation(1), exclude=[Rank("a"), "b"]).rank == Rank("a", 1)
        await store(engine, "a", conversation(1), dp_rank=1)
        assert engine.probe(conversation(1)).rank == Rank("a", 1)


async def test_capabilities_are_required_and_the_missing_ones_named() -> None:
    able = Worker("b", capabilities=frozenset({"vision", "json"}))
    async with running(Worker("a", capabilities={"json"}), able) as engine:
        assert engine.probe(conversation(1), requires=["vision", "json"]).worker == "b"
        with pytest.raises(NoEligibleWorker) as refused:
            engine.probe(conversation(1), requires=["audio", "vision"])
        assert refused.value.reasons == {"a": "lacks audio, vision", "b": "lacks audio"}


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"exclude": "ab"}, "exclude must be a collection .* got 'ab'"),
        ({"allowed": Rank("a")}, "allowed must be a collection"),
        ({"allowed": [("a", None)]}, r"allowed names workers .* got \('a', None\)"),
        ({"allowed": [("a", 0)]}, r"got \('a', 0\)"),
        ({"exclude": [None]}, "exclude names workers by string or ranks by Rank, got None"),
        ({"requires": "vision"}, "requires must be a collection of words, got 'vision'"),
    ],
)
async def test_wishes_of_another_kind_are_refused_by_name(
    wish: dict[str, Any], message: str
) -> None:
    """A string is no collection of names, and a rank `None` is never rank 0."""
    async with running(*ABC) as engine, engine.request() as request:
        for ask in (request.route, engine.probe):
            with pytest.raises(TypeError, match=message):
                ask(conversation(1), **wish)


async def test_an_empty_pin_allows_nobody() -> None:
    async with running(*ABC) as engine:
        with pytest.raises(NoEligibleWorker):
            engine.probe(conversation(1), allowed=[])


async def test_a_prompt_of_other_blocks_is_refused() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        with pytest.raises(BlockSizeMismatch):
            request.route(Prompt(range(64), 32))
        assert load(engine, "a") == 0


async def test_tokens_and_prompts_are_the_same_to_route() -> None:
    async with running(*ABC) as engine:
        tokens = list(range(70))
        await store(engine, "b", engine.prompt(tokens))
        for prompt in (tokens, array("I", tokens), engine.prompt(tokens), Prompt(tokens, BLOCK)):
            assert engine.probe(prompt).rank == Rank("b")
        assert engine.probe(engine.prompt(tokens, namespace="other")).overlap == 0
        assert engine.probe(engine.prompt(tokens, adapter="other")).overlap == 0
        assert engine.probe(engine.prompt(tokens, multimodal=[None, [7]])).overlap == 1


async def test_a_prompt_without_a_full_block_still_finds_a_worker() -> None:
    async with running(*ABC) as engine:
        for tokens in ([], [1, 2, 3]):
            async with engine.request() as request:
                reservation = request.route(tokens)
                assert reservation.route.overlap == 0
                reservation.succeeded(cached_tokens=0)
        assert engine.lanes.statistics().total("applied") == 0


async def test_the_deeper_holder_wins_until_its_load_costs_more() -> None:
    async with running(*ABC, permits=64) as engine, engine.request(weight=20) as request:
        tokens = [*range(9 * BLOCK)]
        await store(engine, "b", engine.prompt(tokens))
        picked = [request.route([*tokens, *[number] * BLOCK]).route.worker for number in range(20)]
        assert picked[0] == "b"
        assert set(picked) == {"a", "b", "c"}


async def test_slower_tiers_count_less_and_a_worker_may_say_how_much() -> None:
    """Device 2, host 3, disk 9: worth 2 + 0.75 * 3 + 0.25 * 9 blocks here, else where 0."""
    index = TierIndex(RadixIndex(BLOCK))
    slow = Worker("b", tier_weights=TierWeights(host=0.0, disk=0.0))
    async with running(Worker("a"), slow, make_index=lambda: index) as engine:
        whole = [*range(14)]
        for rank in (Rank("a"), Rank("b")):
            index.apply(Store(rank, None, packed(whole[:2]), names(whole[:2])), 0.0)
            index.apply(Store(rank, None, packed(whole[:5]), names(whole[:5])), 0.0, Tier.HOST)
            index.apply(Store(rank, None, packed(whole), names(whole)), 0.0, Tier.DISK)
        route = engine.probe(chain(*whole))
        assert (route.held, route.overlap) == (Held(2, 3, 9), 14)
        saved = {str(row.rank): row.saved for row in route.explanation.rows}
        assert saved == {"a": 2 + 0.75 * 3 + 0.25 * 9, "b": 2}
        with engine.request_nowait() as request:
            request.route(chain(*whole))
            assert engine.statistics().ranks[0].prefill_tokens == (14 * BLOCK) - 6.5 * BLOCK


async def test_the_explanation_tells_terms_exclusions_and_regret() -> None:
    async with running(*ABC, permits=64) as engine, engine.request(weight=20) as request:
        prompt = conversation(1, 8)
        await store(engine, "a", prompt)
        for number in range(10):
            request.route(conversation(50 + number), allowed=["a"])
        engine.drain("c")
        told = engine.probe(prompt).explanation
        assert [str(row.rank) for row in told.rows] == ["b", "a"]
        assert (told.best_overlap, told.regret) == (8, 8)
        text = str(told)
        assert "c left out: draining" in text
        assert "best overlap 8, regret 8" in text


async def test_the_explanation_stays_what_it_was_when_it_was_decided() -> None:
    async with running(*ABC) as engine, engine.request() as request:
        reservation = request.route(conversation(1))
        before = [row.requests for row in reservation.route.explanation.rows]
        for number in range(9):
            request.route(conversation(10 + number))
        assert [row.requests for row in reservation.route.explanation.rows] == before == [0, 0, 0]


async def test_where_events_confirm_a_placement_only_bridges(autojump_clock: MockClock) -> None:
    """A fed rank gets the short TTL; the event revokes the lease, its absence ends the guess."""
    async with running(Worker("a"), predicted_ttl_seconds=5, ttl_seconds=60) as engine:
        await store(engine, "a", conversation(9))
        await serve(engine, conversation(1))
        await serve(engine, conversation(2))
        await store(engine, "a", conversation(1))
        assert engine.probe(conversation(2)).source == "confirmed"
        await trio.sleep(6)
        assert engine.probe(conversation(1)).overlap == 4
        gone = engine.probe(conversation(2))
        assert (gone.overlap, gone.source) == (0, "none")


async def test_a_ttl_of_one_store_beats_the_default(autojump_clock: MockClock) -> None:
    """P65: 3 s on a default of 60 is 3 s, through every public way in."""
    async with running(Worker("a"), ttl_seconds=60) as engine:
        ways = [engine.apply, engine.lanes.apply]
        for number, way in enumerate(ways):
            blocks = conversation(number).blocks
            await way(Store(Rank("a"), None, blocks, lease=Lease(3.0)))
        engine.lanes.post(Store(Rank("a"), None, conversation(2).blocks, lease=Lease(3.0)))
        await trio.sleep(2.9)
        assert [engine.probe(conversation(number)).overlap for number in range(3)] == [4, 4, 4]
        await trio.sleep(0.3)
        assert [engine.probe(conversation(number)).overlap for number in range(3)] == [0, 0, 0]
        assert not any(row.fed for row in engine.statistics().ranks)


async def test_a_draining_worker_does_not_hide_the_others_from_each_other() -> None:
    """The kept candidates follow their books also while somebody drains or is let back in."""
    async with running(*ABCD, permits=64) as engine, engine.request() as request:
        engine.drain("b")
        places = [request.route(conversation(number)) for number in range(30)]
        assert Counter(place.route.worker for place in places) == {"a": 10, "c": 10, "d": 10}
        engine.drain("b", draining=False)
        assert {request.route(conversation(99)).route.worker for _ in range(5)} == {"b"}
        engine.report_load(Rank("a"), "engine", 1.0)
        for place in places:
            place.close()
        engine.report_load(Rank("a"), "engine", 0.0)
        assert engine.probe(conversation(99)).explanation.rows[0].requests == 0


async def test_weights_reach_the_choice() -> None:
    """Without overlap credit the index does not matter; with a request cost, counts do."""
    async with running(*ABC, weights={"overlap": 0.0}) as engine:
        await store(engine, "b", conversation(1, 32))
        assert engine.probe(conversation(1, 32)).worker == "a"
    heavy = Weights(request=100.0)
    async with running(*ABC, weights=heavy) as engine, engine.request() as request:
        request.route([], allowed=["a"])
        await store(engine, "a", conversation(1, 32))
        assert engine.probe(conversation(1, 32)).worker == "b"
