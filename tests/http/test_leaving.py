"""Clients that leave, stop reading, or send ahead; and a server that stops."""
# flake8: noqa: ASYNC113, ASYNC124, ASYNC910, ASYNC912 - handlers are asynchronous by contract

import pytest
import trio
import trio.testing

from kvlanes.engine.http import HttpRequest, HttpResponse
from tests.http.raw import PATIENCE_SECONDS, echo, head, serving


class Work:
    """A handler that runs until it is cancelled or released."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.cancelled = trio.Event()
        self.release = trio.Event()

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        await request.read()
        self.entered.set()
        try:
            await self.release.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return HttpResponse(200, b"done")

    async def seen_cancelled(self) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            await self.cancelled.wait()


ASK = head(headers="content-length: 2\r\n") + b"ab"


@pytest.mark.parametrize("ask", [ASK, head("GET", headers="")], ids=["with body", "without"])
async def test_a_client_that_leaves_cancels_its_handler(ask: bytes) -> None:
    work = Work()
    async with serving(work) as served, served.client() as client:
        await client.send(ask)
        await work.entered.wait()
        await client.stream.aclose()
        await work.seen_cancelled()


async def test_a_client_that_leaves_later_on_a_kept_connection_cancels_too() -> None:
    work = Work()
    work.release.set()
    async with serving(work) as served, served.client() as client:
        assert (await client.request(b"ab")).status == 200
        work.release, work.entered = trio.Event(), trio.Event()
        await client.send(ASK)
        await work.entered.wait()
        await client.stream.aclose()
        await work.seen_cancelled()


async def test_a_half_closed_client_counts_as_gone() -> None:
    work = Work()
    async with serving(work) as served, served.client() as client:
        await client.send(ASK)
        await work.entered.wait()
        await client.stream.send_eof()
        await work.seen_cancelled()
        assert await client.closed() == b""


async def test_a_reset_counts_as_gone() -> None:
    work = Work()
    async with serving(work) as served, served.client() as client:
        await client.send(ASK)
        await work.entered.wait()
        linger_of_zero = b"\x01\0\0\0\0\0\0\0"
        client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, linger_of_zero)
        await client.stream.aclose()
        await work.seen_cancelled()


async def test_a_client_that_leaves_during_its_upload_cancels_its_handler() -> None:
    entered, cancelled = trio.Event(), trio.Event()

    async def read(request: HttpRequest) -> HttpResponse:
        entered.set()
        try:
            return HttpResponse(200, await request.read())
        except trio.Cancelled:
            cancelled.set()
            raise

    async with serving(read) as served, served.client() as client:
        await client.send(head(headers="content-length: 10\r\n") + b"abc")
        await entered.wait()
        await client.stream.aclose()
        with trio.fail_after(PATIENCE_SECONDS):
            await cancelled.wait()


async def test_a_client_that_sent_ahead_is_still_seen_leaving() -> None:
    work = Work()
    async with serving(work, pipelined_bytes=1000) as served, served.client() as client:
        await client.send(ASK)
        await work.entered.wait()
        await client.send(b"x" * 1_000_000)
        await client.stream.aclose()
        await work.seen_cancelled()


async def test_a_client_that_sent_too_much_ahead_gets_its_answer_and_no_more() -> None:
    work = Work()
    async with serving(work, pipelined_bytes=1000) as served, served.client() as client:
        await client.send(ASK)
        await work.entered.wait()
        await client.send(b"x" * 1_000_000)  # returns only because the server reads on
        work.release.set()
        response = await client.response()
        assert (response.body, response.headers["connection"]) == (b"done", "close")


async def test_a_client_that_does_not_read_is_given_up() -> None:
    async def flood(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"x" * 50_000_000)

    async with serving(flood, send_seconds=0.05) as served, served.client() as client:
        await client.send(head("GET"))
        with trio.fail_after(PATIENCE_SECONDS):
            while len(await client.closed()) == 0:
                pass  # what the kernel had room for
        # That `serving` ends shows that nothing waits for this client any more.


async def test_a_client_that_does_not_read_cannot_hold_stopping() -> None:
    async def flood(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"x" * 50_000_000)

    server = serving(flood, stop_seconds=0.05, cut_seconds=0.05)
    async with server as served, served.client() as client:
        await client.send(head("GET"))
        await client.stream.receive_some(1)
        served.stopping.set()
        with trio.fail_after(PATIENCE_SECONDS):
            await served.finished.wait()


async def test_stopping_closes_idle_connections_at_once() -> None:
    async with serving(echo) as served, served.client() as fresh, served.client() as used:
        assert (await used.request(b"a")).body == b"a"
        served.stopping.set()
        assert await fresh.closed() == b""
        assert await used.closed() == b""


async def test_stopping_lets_running_requests_finish_and_then_closes() -> None:
    work = Work()
    async with serving(work) as served, served.client() as client:
        await client.send(ASK)
        await work.entered.wait()
        served.stopping.set()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="all attempts"):
            await trio.open_tcp_stream("127.0.0.1", served.port)
        work.release.set()
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (200, "close")


async def test_stopping_refuses_what_does_not_finish_in_time() -> None:
    work = Work()
    async with serving(work, stop_seconds=0.05) as served, served.client() as client:
        await client.send(ASK)
        await work.entered.wait()
        served.stopping.set()
        assert (await client.response()).status == 503
        await work.seen_cancelled()


async def test_one_client_that_fails_does_not_end_the_others() -> None:
    work = Work()
    async with serving(work) as served, served.client() as stays:
        await stays.send(ASK)
        await work.entered.wait()
        for garbage in (b"\0\n\r\n\r\n", ASK[:20], b""):
            async with served.client() as leaves:
                await leaves.send(garbage)
        work.release.set()
        assert (await stays.response()).body == b"done"
