"""One line for each request, by its id, and nothing that a client wrote besides."""
# flake8: noqa: ASYNC910 - every wait is in what is called

import logging
import re

import pytest
import trio

from tests.http.raw import PATIENCE_SECONDS
from tests.server.running import FLAGS, nouls, predicates, running

LINE = re.compile(r"\S+ (GET|POST|-) \S+ \d{3} \d+\.\d{3} s")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "examples.server.access"]


async def test_requests_are_logged_by_id_method_path_and_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(*FLAGS, "--access-log") as server, server.client() as client:
        await server.post("/v1/decisions", predicates("mock-fast", 1), "x-request-id: mine\r\n")
        await server.post("/v1/systemone", nouls("nobody", 1), "x-request-id: a b\r\n")
        await client.request(method="BREW", path="/secret?in=the#path")
    found = lines(caplog)
    assert all(LINE.fullmatch(line) for line in found), found
    assert found[0].startswith("mine POST /v1/decisions 200 ")
    assert re.match(r"req_\w+ POST /v1/systemone 404 ", found[1])
    assert re.match(r"req_\w+ - - 404 ", found[2])
    assert "secret" not in caplog.text


async def test_a_client_that_left_is_a_499(caplog: pytest.LogCaptureFixture) -> None:
    async with running(*FLAGS, "--access-log") as server:
        async with server.client() as client:
            await server.occupy(client, "/v1/systemone", nouls("mock-stuck", 1))
        with trio.fail_after(PATIENCE_SECONDS):
            await server.until_free(8)
        assert any(" 499 " in line for line in lines(caplog))


async def test_nothing_is_logged_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("examples.server.access").setLevel(logging.NOTSET)
    async with running(*FLAGS) as server:
        await server.post("/v1/decisions", predicates("mock-fast", 1))
    assert lines(caplog) == []
