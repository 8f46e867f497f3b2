"""Moments that only an exact order of steps brings about."""
# flake8: noqa: ASYNC910 - handlers are asynchronous by contract

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from kvlanes.engine.http import HttpLimits, HttpRequest, HttpResponse, plain_refusal
from kvlanes.engine.http._bodies import Bodies
from kvlanes.engine.http._connection import Connection
from kvlanes.engine.http._inbox import Inbox
from tests.http.raw import head

Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
Stream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]
LIMITS = HttpLimits(body_bytes=1000)
BODIES = Bodies(2**30)
ASK = head("GET")


@asynccontextmanager
async def connected(handler: Handler) -> AsyncIterator[tuple[Stream, Connection]]:
    ours, theirs = trio.testing.memory_stream_pair()
    connection = Connection(theirs, handler, plain_refusal, LIMITS, Bodies(1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        yield ours, connection
        await ours.aclose()


async def test_a_reader_that_was_held_back_goes_on_when_nobody_wants_bytes() -> None:
    """Or it would not see the client leave while the handler runs."""
    inbox = Inbox(4)
    inbox.put(b"12345")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.room)
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        inbox.watch(True)
        await trio.testing.wait_all_tasks_blocked()
        held_back = len(nursery.child_tasks)
        nursery.cancel_scope.cancel()
    assert held_back == 0
    inbox.put(b"6")
    assert inbox.overflowed
    assert inbox.take_nowait() == b"12345"


async def test_a_client_that_left_before_its_handler_started_is_not_worked_for() -> None:
    """Its end was read while an earlier response went out: there was no handler to cancel."""
    paths: list[str] = []

    async def note(request: HttpRequest) -> HttpResponse:
        paths.append(request.path)
        return HttpResponse(200)

    async def leave_meanwhile() -> None:
        theirs.receive_stream.put_eof()
        await trio.testing.wait_all_tasks_blocked()

    ours, theirs = trio.testing.memory_stream_pair()
    theirs.send_stream.send_all_hook = leave_meanwhile
    await ours.send_all(head("GET", "/first") + head("GET", "/second"))
    await Connection(theirs, note, plain_refusal, LIMITS, Bodies(1000)).serve()
    assert paths == ["/first"]


async def test_an_answer_that_was_ready_when_the_server_cut_is_sent() -> None:
    ready = trio.Event()

    async def answer(request: HttpRequest) -> HttpResponse:
        await ready.wait()
        return HttpResponse(200, b"ready")

    async with connected(answer) as (ours, connection):
        await ours.send_all(ASK)
        await trio.testing.wait_all_tasks_blocked()
        ready.set()  # the handler will run again, and has no checkpoint left
        connection.stop()
        connection.cut()
        received = b"".join([data async for data in ours])
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"ready")
    assert received.count(b"HTTP/1.1") == 1


async def test_a_refused_client_may_end_its_sending() -> None:
    """Closing at once would reset the connection, and the reset can overtake the refusal."""

    async def read(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, await request.read())

    async with connected(read) as (ours, _):
        await ours.send_all(head("POST", "/", "content-length: 1001\r\n"))
        await trio.testing.wait_all_tasks_blocked()
        await ours.send_all(b"x" * 1001)
        await trio.testing.wait_all_tasks_blocked()
        await ours.send_all(b"and more")
        received = b"".join([data async for data in ours])
    assert received.startswith(b"HTTP/1.1 413")


async def test_what_was_sent_ahead_is_put_before_what_comes_later() -> None:
    inbox = Inbox(10)
    inbox.put(b"later")
    inbox.put_back(b"first ")
    assert await inbox.take() == b"first later"


async def answered(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, await request.read())


class Upload(trio.abc.HalfCloseableStream):
    """A client that always has more of a body to send."""

    def __init__(self, reads: list[int]) -> None:
        self._reads = reads
        self._begun = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self._reads.append(1)
        if self._begun:
            return bytes(max_bytes or 1)
        self._begun = True
        return head("POST", "/", "content-length: 1000000000\r\n")

    async def send_all(self, data: object) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_an_ordinary_request_is_served_between_few_pieces_of_many_uploads() -> None:
    """In one pass of the loop at most 16 uploads are read from, however many there are."""
    reads: list[int] = []
    limits = HttpLimits(body_bytes=2**30)
    async with connected(answered) as (ours, _), trio.open_nursery() as nursery:
        for _ in range(200):
            upload = Connection(Upload(reads), answered, plain_refusal, limits, BODIES)
            nursery.start_soon(upload.serve)
        while len(reads) < 1000:
            await trio.lowlevel.checkpoint()
        await ours.send_all(ASK)
        await ours.receive_some()
        passes = 10  # at most: to read, to serve, to send, to receive
        assert len(reads) - 1000 < 16 * passes
        nursery.cancel_scope.cancel()
