"""Real workers behind the whole server: routed by prefix, lost at every stage, books balanced."""
# flake8: noqa: ASYNC910 - every wait is in what is called

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from typesafe_sdk import Noul, Score

from tests.decisions.bodies import decisions
from tests.front.fakes import STAGES, Answer, FakeEngine, plain, sglang, vllm
from tests.front.fakes import running as serving_fake
from tests.front.fronted import PATIENCE_SECONDS, context, fronting, native, worker_of
from tests.server.running import Body, predicates, send

ROOT = Path(__file__).parents[2]


async def test_same_prompts_go_to_the_same_worker_of_a_mixed_fleet() -> None:
    fakes = (native(), native(), vllm(), vllm())
    async with fronting(*fakes) as fronted:
        chosen: dict[int, list[str]] = {
            i: [worker_of(await fronted.ask(predicates("m", 1, context(i)))) for _ in range(3)]
            for i in range(12)
        }
        assert all(len(set(workers)) == 1 for workers in chosen.values()), chosen
        spread = Counter(workers[0] for workers in chosen.values())
        assert set(spread) == {fake.name for fake in fakes}, spread
        for fake in fakes:
            assert len(fake.served) == 3 * spread[fake.name]
        # Seen by the engines too: of three askings the last two find the prompt cached.
        for row in (await fronted.status())["models"][0]["workers"]:
            assert row["measured_tokens"] > 0
            assert row["coverage_blocks"] > 0


@pytest.mark.parametrize("make", [native, vllm, sglang])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_worker_killed_before_its_answer_began_is_replaced_and_after_it_named(
    make: Callable[[], FakeEngine], stage: str
) -> None:
    first, second = make(), make()
    async with fronting(first, second) as fronted:
        body = predicates("m", 1, context(1))
        victim = fronted.by_name(worker_of(await fronted.ask(body)))
        other = second if victim is first else first
        victim.die_at = stage
        response = await fronted.ask(body)
        if stage in ("begun", "read"):
            assert worker_of(response) == other.name
        else:
            assert response.status == 503
            assert json.loads(response.body)["error"]["code"] == "server_error"
        assert victim.deaths == 1
        await fronted.balanced()
        assert worker_of(await fronted.ask(body)) in (victim.name, other.name)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_kill_in_a_busy_fleet_of_four_balances_the_books(stage: str) -> None:
    fakes = (native(), native(), vllm(), vllm())
    flags = ["--permits=64"]
    async with fronting(*fakes, flags=flags) as fronted:
        statuses: Counter[int] = Counter()

        async def ask(number: int) -> None:
            statuses[(await fronted.ask(predicates("m", 2, context(number)))).status] += 1

        for fake in fakes:
            fake.die_at = stage
        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(ask, number)
        # 429: more come at once than threads prepare.
        assert set(statuses) <= {200, 429, 503}, statuses
        assert statuses[503] <= 4, "each kill costs one request at most"
        assert [fake.deaths for fake in fakes] == [1, 1, 1, 1]
        await fronted.balanced()


@pytest.mark.parametrize("make", [native, vllm, sglang])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_worker_that_stands_still_is_left_at_the_deadline(
    make: Callable[[], FakeEngine], stage: str
) -> None:
    fake = make()
    async with fronting(fake, flags=["--deadline=1"]) as fronted:
        fake.stall_at = stage
        response = await fronted.ask(predicates("m", 1, context(1)))
        assert response.status == 504
        with trio.fail_after(PATIENCE_SECONDS):
            await fake.left.wait()


@pytest.mark.parametrize("make", [native, vllm, sglang])
async def test_a_client_that_hangs_up_ends_the_stream_to_the_worker(
    make: Callable[[], FakeEngine],
) -> None:
    fake = make()
    async with fronting(fake) as fronted:
        fake.stall_at = "first"
        async with fronted.server.client() as client:
            await send(client, "/v1/decisions", predicates("m", 1, context(1)))
            with trio.fail_after(PATIENCE_SECONDS):
                await fake.stalled.wait()
        with trio.fail_after(PATIENCE_SECONDS):
            await fake.left.wait()
        fake.stall_at = None
        assert worker_of(await fronted.ask(predicates("m", 1, context(1)))) == fake.name


async def test_a_worker_that_is_gone_is_passed_over_then_left_out() -> None:
    async with trio.open_nursery() as nursery:
        first, second = vllm(), vllm()
        killed = await nursery.start(_until_killed, first)
        async with fronting(second, flags=[f"--worker=m={first.url}"]) as fronted:
            killed.cancel()
            for i in range(8):
                assert worker_of(await fronted.ask(predicates("m", 1, context(i)))) == second.name
            (model,) = (await fronted.status())["models"]
            assert any(first.name in problem for problem in model["problems"]), model
            assert model["ready"]
        nursery.cancel_scope.cancel()


async def _until_killed(fake: FakeEngine, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        async with serving_fake(fake):
            task_status.started(scope)
            await trio.sleep_forever()


async def test_without_any_worker_left_the_request_ends_by_name() -> None:
    fake = vllm()
    async with fronting(fake) as fronted:
        fake.die_at = "read"
        response = await fronted.ask(predicates("m", 1))
        assert response.status == 503
        assert json.loads(response.body)["error"]["message"].startswith("no worker can serve")


async def test_siblings_go_where_the_first_branch_went() -> None:
    first, second = vllm(), vllm()
    async with fronting(first, second) as fronted:
        worker = fronted.by_name(worker_of(await fronted.ask(predicates("m", 5, context(1)))))
        assert len(worker.served) == 5
        assert len(first.served) + len(second.served) == 5


def wide(options: int, given: str = "It rains.") -> Body:
    choices = [{"value": str(i)} for i in range(options)]
    question = {"type": "choice", "instructions": "Which?", "choices": choices}
    return {"model": "m", "input": given, "questions": [question]}


async def test_more_labels_than_an_engine_reads_is_a_missing_capability() -> None:
    async with fronting(vllm()) as fronted:
        response = await fronted.ask(wide(129))
        assert response.status == 400
        assert json.loads(response.body)["error"]["code"] == "unsupported_capability"
        assert "129" in json.loads(response.body)["error"]["message"]


async def test_a_request_goes_past_workers_that_cannot_take_it() -> None:
    able = native()
    # Labels are tokenised one by one, each once in the life of the server.
    async with fronting(vllm(), vllm(), able) as fronted:
        for i in range(6):
            assert worker_of(await fronted.ask(wide(129, context(i)))) == able.name


async def test_both_contracts_reach_an_engine_that_knows_them() -> None:
    fake = native()
    async with fronting(fake) as fronted:
        noul = {"q": {"type": "noul", "instructions": "Is it so?"}}
        body = {"model": "jev-latest", "state": {"a": 1}, "questions": noul}
        response = await fronted.ask(body, path="/v1/systemone")
        assert response.status == 200
        answer = json.loads(response.body)
        assert answer["model"] == "m"
        assert answer["answers"]["q"]["type"] == "noul"
        assert fake.served[-1]["state"] == {"a": 1}, "the whole request went there"


async def test_tenants_have_salts_of_their_own() -> None:
    fakes = (native(), vllm(), sglang())
    keys = ("--api-key=one", "--api-key=two")
    async with fronting(*fakes, flags=keys) as fronted:
        for key in ("one", "two"):
            for i in range(6):
                await fronted.ask(
                    predicates("m", 1, context(i)), f"authorization: Bearer {key}\r\n"
                )
        salts = {salt for fake in fakes for salt in fake.salts}
        assert len(salts) == 2
        assert not any(key in salt for key in ("one", "two") for salt in salts)


async def test_text_routes_where_every_engine_answers_by_itself() -> None:
    """Nobody is asked to tokenise: the text is the prompt's identity."""
    fakes = [native(), native()]
    for fake in fakes:
        del fake.routes["/tokenize"], fake.routes["/v1/completions"]
    async with fronting(*fakes) as fronted:
        for i in range(4):
            workers = [
                worker_of(await fronted.ask(predicates("m", 2, context(i)))) for _ in range(3)
            ]
            assert len(set(workers)) == 1
        assert all(fake.served for fake in fakes)


async def test_an_engine_without_room_is_a_429() -> None:
    fake = native()
    async with fronting(fake) as fronted:
        fake.routes["/v1/decisions"] = lambda engine, body: plain(503, {"error": "queue is full"})
        response = await fronted.ask(predicates("m", 1))
        assert (response.status, response.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/decisions"])
async def test_an_answer_without_end_is_malformed(path: str) -> None:
    fake = native() if path == "/v1/decisions" else vllm()
    async with fronting(fake) as fronted:
        fake.routes[path] = lambda engine, body: Answer(200, [b"data: 1\n" * 100_000] * 8)
        response = await fronted.ask(predicates("m", 1))
        assert response.status == 500
        assert json.loads(response.body)["error"]["message"] == "worker result is malformed"


@pytest.mark.parametrize("status", [500, 502, 400, 404, 301])
async def test_an_engine_that_refuses_is_named_without_its_words(status: int) -> None:
    fake = native()
    async with fronting(fake) as fronted:
        fake.routes["/v1/decisions"] = lambda engine, body: plain(status, "It rains, you said.")
        response = await fronted.ask(predicates("m", 1, "It rains."))
        expected = {400: 400, 404: 503}.get(status, 500)
        assert response.status == expected
        assert b"rains" not in response.body


def refusal(url: str, *flags: str) -> str:
    command = [sys.executable, "-m", "examples.server", "--port=0", f"--worker=m={url}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


async def test_two_keys_and_an_engine_without_salt_do_not_start() -> None:
    fake = vllm(salted=False)
    keys = ("--api-key=a", "--api-key=b")
    async with serving_fake(fake):
        why = await trio.to_thread.run_sync(refusal, fake.url, *keys)
        assert "salt that keeps tenants apart" in why
        assert "--cache-scope server" in why
    for flags in (keys[:1], (*keys, "--cache-scope=server")):
        async with fronting(vllm(salted=False), flags=flags) as fronted:
            key = "authorization: Bearer a\r\n"
            assert (await fronted.ask(predicates("m", 1), key)).status == 200


@pytest.mark.parametrize("make", [native, vllm, sglang])
async def test_the_official_clients_read_what_engines_answered(
    make: Callable[[], FakeEngine],
) -> None:
    async with fronting(make()) as fronted:
        openai = fronted.server.async_openai(_strict_response_validation=True)
        async with openai, fronted.server.async_typesafe() as typesafe:
            decision = await openai.decisions.create(
                **{**decisions(), "model": "m", "input": context(1), "prompt_cache_key": "k"}
            )
            assert [answer.type for answer in decision.answers] == ["choice", "predicate", "score"]
            assert decision.usage.input_tokens > 0
            asked: dict[str, Any] = {
                "urgent": Noul(instructions="Action is needed today."),
                "severity": Score(instructions="Rate it.", criteria=["Low", "Moderate", "High"]),
            }
            found = await typesafe.system_one(context(1), asked, model="m")
            assert found.model == "m"
            assert sum(found.scores["severity"].probabilities.values()) == pytest.approx(1)
