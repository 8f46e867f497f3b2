"""One connection over memory streams: any split of the bytes, any order of the tasks."""
# flake8: noqa: ASYNC910 - handlers are asynchronous by contract

import gzip
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlanes.engine.http import HttpLimits, HttpRequest, HttpResponse, plain_refusal
from kvlanes.engine.http._bodies import Bodies
from kvlanes.engine.http._connection import Connection
from tests.http.raw import head
from tests.support.profiles import budget
from tests.support.schedule import scheduled

LIMITS = HttpLimits(body_bytes=1000, pipelined_bytes=64)
CHUNKED = "transfer-encoding: chunked\r\n"
CHUNKS = b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
ZIPPED = gzip.compress(b"zipped" * 20, mtime=0)
UNREAD = head("POST", "/unread", "content-length: 4\r\n") + b"abcd"
REQUESTS = (
    head("GET", "/"),
    head("HEAD", "/", "content-length: 3\r\n") + b"abc",
    head("POST", "/", "content-length: 5\r\n") + b"hello",
    head("POST", "/", CHUNKED) + CHUNKS,
    head("POST", "/", f"content-length: {len(ZIPPED)}\r\ncontent-encoding: gzip\r\n") + ZIPPED,
    UNREAD,
    head("POST", "/", "content-length: 300\r\n") + b"x" * 300,
)
ENDINGS = (
    b"",
    head("POST", "/", "content-length: 1001\r\n"),
    head("POST", "/", CHUNKED) + b"zz\r\n",
    b"no request\r\n\r\n",
)


class Books:
    """What one connection did: handlers that started, and those that ended."""

    def __init__(self) -> None:
        self.started = self.ended = 0
        self.bodies = Bodies(LIMITS.bodies_bytes)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        self.started += 1
        try:
            body = b"" if request.path == "/unread" else await request.read()
            await trio.lowlevel.checkpoint()
            return HttpResponse(200, body)
        finally:
            self.ended += 1

    def check(self) -> None:
        assert self.started == self.ended
        assert self.bodies.used_bytes == 0


def pieces(requests: Sequence[bytes], cuts: Sequence[int]) -> list[bytes]:
    """Cut anywhere, but where it does matter: a body that nobody reads must be here in time."""
    data, ends = b"".join(requests), list(accumulate(map(len, requests)))
    kept = {
        place
        for request, end in zip(requests, ends, strict=True)
        if request == UNREAD
        for place in range(end - 4, end)
    }
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)} - kept)
    return [data[start:end] for start, end in pairwise(edges)]


async def answers(sent: Sequence[bytes], *, one_by_one: bool) -> bytes:
    """All bytes that come back while the client stays until it has been served."""
    books = Books()
    ours, theirs = trio.testing.memory_stream_pair()
    received = bytearray()

    async def collect() -> None:
        async for data in ours:
            received.extend(data)

    async with trio.open_nursery() as nursery:
        connection = Connection(theirs, books.handle, plain_refusal, LIMITS, books.bodies)
        nursery.start_soon(connection.serve)
        nursery.start_soon(collect)
        for piece in sent:
            await ours.send_all(piece)
            if one_by_one:
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        await ours.send_eof()
    books.check()
    return bytes(received)


@given(
    st.lists(st.sampled_from(REQUESTS), max_size=4),
    st.sampled_from(ENDINGS),
    st.lists(st.integers(0, 2000), max_size=12),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=budget(ci=40, deep=5000))
def test_the_answers_do_not_depend_on_how_the_bytes_are_cut(
    requests: list[bytes], ending: bytes, cuts: list[int], seed: int
) -> None:
    """The bytes of a request at a time, against any pieces of all of them, one by one."""

    def run(sent: Sequence[bytes]) -> bytes:
        main = partial(answers, one_by_one=True)
        return trio.run(main, sent, clock=trio.testing.MockClock(autojump_threshold=0))

    expected = run([*requests, ending])
    with scheduled(seed):
        assert run(pieces([*requests, ending], cuts)) == expected
    assert expected.count(b"HTTP/1.1 200") == len(requests)
    assert expected.count(b"HTTP/1.1 4") == bool(ending)


async def left_after(sent: bytes, stays_for_steps: int) -> None:
    books = Books()
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        connection = Connection(theirs, books.handle, plain_refusal, LIMITS, books.bodies)
        nursery.start_soon(connection.serve)
        await ours.send_all(sent)
        for _ in range(stays_for_steps):
            await trio.lowlevel.checkpoint()
        await ours.aclose()
    books.check()


@given(
    st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=3).map(b"".join),
    st.integers(0, 2000),
    st.integers(0, 30),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=budget(ci=80, deep=10_000))
def test_a_client_may_leave_at_any_byte_and_any_step(
    sent: bytes, cut: int, stays_for_steps: int, seed: int
) -> None:
    with scheduled(seed):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(left_after, sent[: cut % (len(sent) + 1)], stays_for_steps, clock=clock)


@pytest.mark.parametrize("steps", range(0, 60))
def test_stopping_at_any_step_answers_what_was_accepted(steps: int) -> None:
    """A request that a handler has seen is answered, by the handler or by name."""

    async def main() -> None:
        books = Books()
        ours, theirs = trio.testing.memory_stream_pair()
        connection = Connection(theirs, books.handle, plain_refusal, LIMITS, books.bodies)
        received = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            await ours.send_all(REQUESTS[2] * 2)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            connection.stop()
            connection.cut()
            async for data in ours:
                received.extend(data)
            await ours.aclose()
        books.check()
        assert bytes(received).count(b"HTTP/1.1") == books.started

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
