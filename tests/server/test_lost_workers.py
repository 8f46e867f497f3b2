"""The rows about workers that are lost, on both routes, in front of engines that can be killed."""
# flake8: noqa: ASYNC910 - every request is one

from typing import Any

import pytest

from tests.front.fakes import STAGES, Answer, FakeEngine, completions, vllm
from tests.front.fronted import fronting
from tests.server.rows import PATHS, check, questions


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stage", STAGES)
async def test_503_the_only_worker_is_lost(path: str, stage: str) -> None:
    fake = vllm()
    async with fronting(fake) as fronted:
        fake.die_at = stage
        response = await fronted.ask(questions(path, "m", 1), path=path)
        message = check(response, path, 503, "server_error")
        assert message == "no worker can serve this model now"
        assert (await fronted.ask(questions(path, "m", 1), path=path)).status == 200


@pytest.mark.parametrize("path", PATHS)
async def test_503_further_questions_cannot_follow_the_first(path: str) -> None:
    """They are not asked elsewhere: their shared prefix is where the first one was."""

    def serve_one(engine: FakeEngine, body: Any) -> Answer:
        engine.die_at = "begun"  # at the next request
        return completions(engine, body)

    fakes = (vllm(), vllm())
    async with fronting(*fakes) as fronted:
        for fake in fakes:
            fake.routes["/v1/completions"] = serve_one
        response = await fronted.ask(questions(path, "m", 2), path=path)
        check(response, path, 503, "server_error")
        assert sorted(len(fake.served) for fake in fakes) == [0, 1]
