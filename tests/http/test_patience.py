"""How long each wait may last, to the second of a virtual clock."""
# flake8: noqa: ASYNC910 - handlers are asynchronous by contract

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from kvlanes.engine.http import HttpLimits, HttpRequest, HttpResponse, Send, plain_refusal
from kvlanes.engine.http._bodies import Bodies
from kvlanes.engine.http._connection import Connection
from tests.http.raw import head
from tests.support.schedule import scheduled

LIMITS = HttpLimits(
    head_seconds=10, idle_seconds=75, body_seconds=30, send_seconds=3, linger_seconds=20
)
ASK = head("GET")
Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
Stream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


async def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, await request.read())


@attrs.define
class Peer:
    """A client over a memory stream, and when its connection ended."""

    stream: Stream
    connection: Connection
    theirs: Stream
    ended: float = -1.0

    async def serve(self) -> None:
        await self.connection.serve()
        self.ended = trio.current_time()

    def deaf(self) -> None:
        """From now on nothing that is sent to this client is taken."""
        self.theirs.send_stream.send_all_hook = trio.sleep_forever


def run(
    client: Callable[[Peer], Awaitable[None]], handler: Handler = answer, seed: int | None = None
) -> float:
    """When the connection ended; it began at 0."""

    async def main() -> float:
        stream, theirs = trio.testing.memory_stream_pair()
        connection = Connection(theirs, handler, plain_refusal, LIMITS, Bodies(1000))
        peer = Peer(stream, connection, theirs)
        with trio.fail_after(10_000):  # of the virtual clock
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.serve)
                await client(peer)
        return peer.ended

    clock = trio.testing.MockClock(autojump_threshold=0)
    if seed is None:
        return trio.run(main, clock=clock)
    with scheduled(seed):
        return trio.run(main, clock=clock)


async def received(peer: Peer) -> bytes:
    """All that comes until the server ends its side; the client then ends its own."""
    data = b"".join([data async for data in peer.stream])
    await peer.stream.aclose()
    return data


def test_a_client_that_says_nothing() -> None:
    async def client(peer: Peer) -> None:
        assert await received(peer) == b""

    assert run(client) == 10


def test_a_head_that_does_not_end_is_given_its_time_from_its_first_byte() -> None:
    async def client(peer: Peer) -> None:
        await trio.sleep(4)
        await peer.stream.send_all(ASK[:5])
        await trio.sleep(6)
        await peer.stream.send_all(ASK[5:9])  # this does not move it
        assert (await received(peer)).startswith(b"HTTP/1.1 408")

    assert run(client) == 4 + 10  # and not a second of lingering, as the client has left


def test_an_idle_connection() -> None:
    async def client(peer: Peer) -> None:
        await peer.stream.send_all(ASK)
        await trio.sleep(70)
        await peer.stream.send_all(ASK)
        assert (await received(peer)).count(b"HTTP/1.1 200") == 2

    assert run(client) == 70 + 75


def test_a_handler_has_all_the_time() -> None:
    async def slow(request: HttpRequest) -> HttpResponse:
        await trio.sleep(1000)
        return HttpResponse(200)

    async def client(peer: Peer) -> None:
        await peer.stream.send_all(ASK)
        assert (await received(peer)).startswith(b"HTTP/1.1 200")

    assert run(client, slow) == 1000 + 75


@pytest.mark.parametrize("leaves", [False, True])
def test_a_client_that_does_not_take_its_answer(leaves: bool) -> None:
    async def client(peer: Peer) -> None:
        peer.deaf()
        await peer.stream.send_all(ASK)
        await trio.sleep(1)
        if leaves:
            await peer.stream.send_eof()  # the reader ends, but goes on to keep the time

    assert run(client) == 3


def test_a_stream_may_pause_for_longer_than_a_piece_may_take() -> None:
    async def stream(send: Send) -> None:
        for _ in range(3):
            await send(b"piece")
            await trio.sleep(100)

    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=stream)

    async def client(peer: Peer) -> None:
        await peer.stream.send_all(ASK)
        assert (await received(peer)).count(b"piece") == 3

    assert run(client, handle) == 300 + 75


def test_a_piece_that_is_not_taken_ends_the_stream() -> None:
    async def client(peer: Peer) -> None:
        async def stream(send: Send) -> None:
            await trio.sleep(100)
            peer.deaf()
            await send(b"piece")

        async def handle(request: HttpRequest) -> HttpResponse:
            return HttpResponse(200, stream=stream)

        handler.append(handle)
        await peer.stream.send_all(ASK)

    handler: list[Handler] = []
    assert run(client, lambda request: handler[0](request)) == 103


def test_a_body_that_was_asked_for_may_take_longer_than_the_asking() -> None:
    async def client(peer: Peer) -> None:
        expecting = "content-length: 1\r\nexpect: 100-continue\r\n"
        await peer.stream.send_all(head("POST", "/", expecting))
        await trio.sleep(20)
        await peer.stream.send_all(b"a")
        said = await received(peer)
        assert (said.count(b"HTTP/1.1 100"), said.count(b"HTTP/1.1 200")) == (1, 1)

    assert run(client) == 20 + 75


def test_a_body_that_does_not_come() -> None:
    async def client(peer: Peer) -> None:
        await peer.stream.send_all(head("POST", "/", "content-length: 2\r\n") + b"a")
        assert (await received(peer)).startswith(b"HTTP/1.1 408")

    assert run(client) == 30


def test_a_refused_client_is_lingered_for() -> None:
    async def client(peer: Peer) -> None:
        await peer.stream.send_all(b"nonsense\r\n\r\n")

    assert run(client) == 20


def jump(seconds: float) -> None:
    """This process did not run for that long."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(seconds)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("before", [b"", ASK[:9]], ids=["all of it", "the rest of it"])
def test_a_head_that_came_in_time_counts_however_late_it_is_read(before: bytes, seed: int) -> None:
    async def client(peer: Peer) -> None:
        if before:
            await peer.stream.send_all(before)
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.send_all(ASK[len(before) :])
        jump(50)  # in the same step
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.send_all(ASK)
        said = await received(peer)
        assert said.count(b"HTTP/1.1 200") == said.count(b"HTTP/1.1") == 2

    assert run(client, seed=seed) == 50 + 75


@pytest.mark.parametrize("seed", range(20))
def test_a_head_of_which_only_a_part_came_in_time_is_late(seed: int) -> None:
    async def client(peer: Peer) -> None:
        await peer.stream.send_all(ASK[:5])
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.send_all(ASK[5:9])
        jump(50)
        assert (await received(peer)).startswith(b"HTTP/1.1 408")

    assert run(client, seed=seed) == 50
