"""Requests and responses on a healthy connection."""
# flake8: noqa: ASYNC113, ASYNC124, ASYNC910, ASYNC912 - handlers are asynchronous by contract

import pytest

from kvlanes.engine.http import BodyBroken, HttpLimits, HttpRequest, HttpResponse
from tests.http.raw import echo, head, serving


async def test_a_connection_carries_request_after_request() -> None:
    async with serving(echo) as served, served.client() as client:
        for body in (b"one", b"", b"three"):
            assert (await client.request(body)).body == body


async def test_the_handler_sees_what_was_asked() -> None:
    seen: list[HttpRequest] = []

    async def note(request: HttpRequest) -> HttpResponse:
        seen.append(request)
        return HttpResponse(204)

    async with serving(note) as served, served.client() as client:
        headers = "X-Some: a\r\nx-some: b\r\n"
        await client.request(path="/v1/x?a=b&c", method="GET", headers=headers)
    (request,) = seen
    assert (request.method, request.path, request.query) == ("GET", "/v1/x", "a=b&c")
    assert request.header("X-SOME") == "a, b"
    assert request.header("x-other") is None


async def test_a_chunked_body_is_put_together() -> None:
    async with serving(echo) as served, served.client() as client:
        chunked = head(headers="transfer-encoding: chunked\r\n")
        await client.send(chunked + b"3\r\nabc\r\n")
        await client.send(b"2;x=y\r\nde\r\n0\r\ntrailer: t\r\n\r\n")
        assert (await client.response()).body == b"abcde"
        assert (await client.request(b"again")).body == b"again"


async def test_head_is_answered_without_a_body() -> None:
    async with serving(echo) as served, served.client() as client:
        response = await client.request(b"12345", method="HEAD")
        assert (response.status, response.headers["content-length"]) == (200, "5")
        assert (await client.request(b"next")).body == b"next"


async def test_continue_is_said_when_the_body_is_wanted() -> None:
    async with serving(echo) as served, served.client() as client:
        await client.send(head(headers="content-length: 3\r\nexpect: 100-continue\r\n"))
        assert (await client.response()).status == 100
        await client.send(b"abc")
        assert (await client.response()).body == b"abc"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(echo) as served, served.client() as client:
        one = head(headers="content-length: 1\r\n")
        await client.send(one + b"1" + one + b"2" + one + b"3")
        assert [(await client.response()).body for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_client_that_asks_to_close_is_closed() -> None:
    async with serving(echo) as served, served.client() as client:
        response = await client.request(b"a", headers="connection: close\r\n")
        assert response.headers["connection"] == "close"
        assert await client.closed() == b""


async def test_http_1_0_is_answered_and_closed() -> None:
    async with serving(echo) as served, served.client() as client:
        await client.send(b"POST / HTTP/1.0\r\ncontent-length: 1\r\n\r\na")
        assert (await client.response()).body == b"a"
        assert await client.closed() == b""


async def test_an_unread_body_that_has_arrived_does_not_cost_the_connection() -> None:
    async def ignore(request: HttpRequest) -> HttpResponse:
        return HttpResponse(404)

    async with serving(ignore) as served, served.client() as client:
        assert (await client.request(b"unread")).status == 404
        assert (await client.request(b"unread")).status == 404


async def test_a_crashing_handler_answers_500_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def crash(request: HttpRequest) -> HttpResponse:
        await request.read()
        raise KeyError("secret")

    async with serving(crash) as served, served.client() as client:
        for _ in range(2):
            response = await client.request(b"a")
            assert (response.status, response.body) == (500, b"Internal Server Error")
    assert "handler failed on POST /" in caplog.text


async def test_an_error_that_the_handler_lets_through_has_its_own_status() -> None:
    async def refuse(request: HttpRequest) -> HttpResponse:
        raise BodyBroken("no")

    async with serving(refuse) as served, served.client() as client:
        assert (await client.request()).status == 400


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\n", 400),  # no host
        (head(headers="content-length: 1\r\ncontent-length: 2\r\n"), 400),
        (head(headers="content-length: -1\r\n"), 400),
        (head(headers="transfer-encoding: gzip\r\n"), 501),
        (head(headers="bad header: x\r\n"), 400),
        (head(headers=f"x: {'a' * 17_000}\r\n"), 431),
        (b"GET /" + b"a" * 20_000, 431),
    ],
)
async def test_what_is_no_request_is_refused_and_closed(data: bytes, status: int) -> None:
    async with serving(echo) as served, served.client() as client:
        await client.send(data)
        assert (await client.response()).status == status
        assert await client.closed() == b""


async def test_what_the_server_refuses_by_itself_is_worded_by_its_owner() -> None:
    def refuse(status: int) -> HttpResponse:
        return HttpResponse(status, b"{}", (("x-request-id", "r1"),))

    async with serving(echo, refuse) as served, served.client() as client:
        await client.send(b"nonsense\r\n\r\n")
        response = await client.response()
        assert (response.headers["x-request-id"], response.body) == ("r1", b"{}")


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_must_be_positive(value: float) -> None:
    with pytest.raises(ValueError, match="send_seconds must be positive"):
        HttpLimits(send_seconds=value)


async def test_connections_beyond_the_limit_wait_their_turn() -> None:
    async with serving(echo, connections=1) as served, served.client() as first:
        assert (await first.request(b"a")).body == b"a"
        async with served.client() as second:
            await second.send(head(headers="content-length: 1\r\n") + b"b")
            assert (await first.request(b"c")).body == b"c"  # the second is in the backlog
            await first.stream.aclose()
            assert (await second.response()).body == b"b"
