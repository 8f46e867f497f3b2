"""Responses as bytes: what a client that follows the standard reads is what the handler gave."""
# flake8: noqa: ASYNC910 - handlers are asynchronous by contract

from collections.abc import Sequence

import h11
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlanes.engine.http import HttpLimits, HttpRequest, HttpResponse, Send, plain_refusal
from kvlanes.engine.http._bodies import Bodies
from kvlanes.engine.http._connection import Connection
from kvlanes.engine.http._responses import chunk, response_head
from tests.support.profiles import budget

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.!#$%&'*+^`|~", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"))
FRAMING = {"content-length", "transfer-encoding", "connection", "content-type"}
HEADERS = st.lists(
    st.tuples(TOKEN.filter(lambda name: name not in FRAMING), VALUE.map(str.strip)), max_size=4
)
PIECES = st.lists(st.binary(max_size=50), max_size=4)


def answer(
    status: int, headers: Sequence[tuple[str, str]], pieces: list[bytes], *, streamed: bool
) -> HttpResponse:
    async def stream(send: Send) -> None:
        for piece in pieces:
            await send(piece)

    if streamed:
        return HttpResponse(status, headers=tuple(headers), stream=stream)
    return HttpResponse(status, b"".join(pieces), tuple(headers))


async def asked(method: str, version: str, response: HttpResponse) -> bytes:
    """All bytes of the answer to one request."""

    async def handle(request: HttpRequest) -> HttpResponse:
        return response

    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        connection = Connection(theirs, handle, plain_refusal, HttpLimits(), Bodies(1000))
        nursery.start_soon(connection.serve)
        await ours.send_all(f"{method} / HTTP/{version}\r\nhost: a\r\n\r\n".encode())
        await trio.testing.wait_all_tasks_blocked()
        connection.stop()
        return b"".join([data async for data in ours])


def read(method: str, received: bytes) -> tuple[h11.Response, bytes]:
    """How h11 understands it, as the client."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(received)
    client.receive_data(b"")
    head, body = client.next_event(), b""
    assert isinstance(head, h11.Response)
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert client.trailing_data == (b"", True)
    return head, body


@given(
    st.sampled_from(["GET", "HEAD", "POST"]),
    st.sampled_from(["1.0", "1.1", "1.2"]),
    st.integers(200, 599),
    HEADERS,
    PIECES,
    st.booleans(),
)
@settings(max_examples=budget(ci=150, deep=5000))
def test_a_client_reads_what_the_handler_gave(
    method: str,
    version: str,
    status: int,
    headers: list[tuple[str, str]],
    pieces: list[bytes],
    streamed: bool,
) -> None:
    given_response = answer(status, headers, pieces, streamed=streamed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    head, body = read(method, trio.run(asked, method, version, given_response, clock=clock))
    assert head.status_code == status
    expected = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    found = [(name, value) for name, value in head.headers if name.decode() not in FRAMING]
    assert found == expected
    bodiless = method == "HEAD" or status in (204, 304)
    assert body == (b"" if bodiless else b"".join(pieces))
    framing = {name for name, _ in head.headers} & {name.encode() for name in FRAMING}
    assert bodiless or framing - {b"content-type"}, "nothing says where the body ends"


def test_the_head_says_how_long_the_body_is_and_whether_it_is_the_last() -> None:
    said = response_head(HttpResponse(200, b"12345"), chunked=True, close=True).split(b"\r\n")
    assert said == [
        b"HTTP/1.1 200 OK",
        b"content-type: application/json",
        b"content-length: 5",
        b"connection: close",
        b"",
        b"",
    ]


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_without_a_body_has_no_length_either(status: int) -> None:
    assert b"length" not in response_head(HttpResponse(status), chunked=True, close=False)


@pytest.mark.parametrize(
    "header",
    [
        ("a", "b\r\nset-cookie: c"),
        ("a", "b\nc"),
        ("a", "b\rc"),
        ("a", "\0"),
        ("a: b\r\nc", "d"),
        ("", "a"),
        ("a b", "c"),
        ("é", "c"),
        ("a", "\N{SNOWMAN}"),
    ],
)
def test_a_header_that_is_not_one_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"is not one header|codec can't encode"):
        response_head(HttpResponse(200, headers=(header,)), chunked=True, close=False)


@pytest.mark.parametrize("status", [100, 199, 600])
def test_a_status_that_ends_no_exchange_is_refused(status: int) -> None:
    with pytest.raises(ValueError, match=f"200 to 599, got {status}"):
        response_head(HttpResponse(status), chunked=True, close=False)


def test_an_empty_piece_does_not_end_a_chunked_body() -> None:
    assert (chunk(b""), chunk(b"a" * 17)) == (b"", b"11\r\n" + b"a" * 17 + b"\r\n")
