"""Bodies: encoded, oversized, broken, late, too many at once."""
# flake8: noqa: ASYNC113, ASYNC124, ASYNC910, ASYNC912 - handlers are asynchronous by contract

import gzip
import io
import zlib
from contextlib import suppress

import pytest
import trio
import zstandard

from kvlanes.engine.http import HttpRequest, HttpResponse
from tests.http.raw import Client, echo, head, serving

LIMIT = 100_000
FULL = b"x" * LIMIT


def zstd(data: bytes, *, sized: bool = True, window_log: int = 10) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_content_size=sized
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    if sized:
        return compressor.compress(data)
    pieces = compressor.compressobj()
    return pieces.compress(data) + pieces.flush()


ENCODINGS = {
    "identity": ("identity", bytes),
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZIP", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "zstd": ("zstd", zstd),
    "zstd of unknown size": ("zstd", lambda data: zstd(data, sized=False)),
}
COMPRESSED = {name: case for name, case in ENCODINGS.items() if name != "identity"}


def encoded(encoding: str) -> str:
    return f"content-encoding: {encoding}\r\n"


@pytest.mark.parametrize(("name", "encode"), ENCODINGS.values(), ids=ENCODINGS.keys())
async def test_an_encoded_body_is_decoded_up_to_the_limit(name: str, encode: object) -> None:
    assert callable(encode)
    async with serving(echo, body_bytes=LIMIT) as served, served.client() as client:
        for body in (b"", b"some text", FULL):
            response = await client.request(encode(body), headers=encoded(name))
            assert (response.status, response.body) == (200, body)
        response = await client.request(encode(FULL + b"x"), headers=encoded(name))
        assert response.status == 413


@pytest.mark.parametrize(("name", "encode"), COMPRESSED.values(), ids=COMPRESSED.keys())
async def test_a_bomb_is_refused_while_it_grows(name: str, encode: object) -> None:
    assert callable(encode)
    bomb = encode(b"\0" * 50_000_000)
    async with serving(echo, body_bytes=LIMIT) as served, served.client() as client:
        assert (await client.request(bomb, headers=encoded(name))).status == 413


@pytest.mark.parametrize(("name", "encode"), COMPRESSED.values(), ids=COMPRESSED.keys())
async def test_a_broken_encoding_is_refused(name: str, encode: object) -> None:
    assert callable(encode)
    whole: bytes = encode(b"some text" * 100)
    for broken in (whole[:-3], whole + b"x", whole * 2, b"plain text", b"\0" * 100):
        async with serving(echo) as served, served.client() as client:
            assert (await client.request(broken, headers=encoded(name))).status == 400


async def test_a_zstd_window_beyond_the_limit_is_refused() -> None:
    body = zstd(b"x" * 3_000_000, sized=False, window_log=21)
    for window_bytes, status in ((2**21, 200), (2**20, 400)):
        async with serving(echo, window_bytes=window_bytes) as served, served.client() as client:
            assert (await client.request(body, headers=encoded("zstd"))).status == status


@pytest.mark.parametrize("name", ["br", "gzip, gzip", "zstd,gzip", "x"])
async def test_another_encoding_is_refused(name: str) -> None:
    async with serving(echo) as served, served.client() as client:
        assert (await client.request(b"a", headers=encoded(name))).status == 415


async def test_a_declared_oversize_is_refused_before_it_is_sent() -> None:
    async with serving(echo, body_bytes=10) as served, served.client() as client:
        await client.send(head(headers="content-length: 11\r\n"))
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (413, "close")


async def test_size_is_judged_before_the_encoding() -> None:
    async with serving(echo, body_bytes=10) as served, served.client() as client:
        assert (await client.request(b"x" * 11, headers=encoded("br"))).status == 413


async def test_a_declared_oversize_gets_413_instead_of_continue() -> None:
    async with serving(echo, body_bytes=10) as served, served.client() as client:
        await client.send(head(headers="content-length: 11\r\nexpect: 100-continue\r\n"))
        assert (await client.response()).status == 413


async def test_a_chunked_oversize_is_refused_while_it_arrives() -> None:
    async with serving(echo, body_bytes=10) as served, served.client() as client:
        await client.send(head(headers="transfer-encoding: chunked\r\n"))
        await client.send(b"6\r\nabcdef\r\n5\r\nabcde\r\n")
        assert (await client.response()).status == 413


async def test_a_body_that_is_long_only_as_sent_is_refused_too() -> None:
    named = io.BytesIO()
    with gzip.GzipFile("x" * 2000, "wb", fileobj=named) as file:
        file.write(b"short")
    sent = named.getvalue()
    async with serving(echo, body_bytes=1000) as served, served.client() as client:
        headers = f"transfer-encoding: chunked\r\n{encoded('gzip')}"
        await client.send(head(headers=headers) + b"%x\r\n" % len(sent) + sent)
        assert (await client.response()).status == 413


async def test_a_client_that_goes_on_sending_still_reads_its_413() -> None:
    async with serving(echo, body_bytes=10) as served, served.client() as client:
        await client.send(head(headers="content-length: 4000000\r\n"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all_or_fail, client, b"x" * 4_000_000)
            assert (await client.response()).status == 413


async def send_all_or_fail(client: Client, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # the server lingers for a moment, not for ever
        await client.send(data)


async def test_broken_chunks_are_refused() -> None:
    async with serving(echo) as served, served.client() as client:
        await client.send(head(headers="transfer-encoding: chunked\r\n") + b"zz\r\nabc\r\n")
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (400, "close")


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with serving(echo, body_seconds=0.05) as served, served.client() as client:
        await client.send(head(headers="content-length: 10\r\n") + b"abc")
        assert (await client.response()).status == 408
        assert await client.closed() == b""


async def test_a_body_that_trickles_is_given_up() -> None:
    """The deadline is for the whole body: a byte now and then does not move it."""
    async with serving(echo, body_seconds=0.1) as served, served.client() as client:
        await client.send(head(headers="content-length: 1000\r\n"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle, client)
            assert (await client.response()).status == 408
            nursery.cancel_scope.cancel()


async def trickle(client: Client) -> None:
    while True:
        await client.send(b"x")
        await trio.sleep(0.01)


async def test_headers_that_do_not_come_are_given_up() -> None:
    async with serving(echo, head_seconds=0.05) as served, served.client() as client:
        await client.send(b"POST / HTTP/1.1\r\nhost: te")
        assert (await client.response()).status == 408
        assert await client.closed() == b""


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(echo, head_seconds=0.05) as served, served.client() as client:
        assert await client.closed() == b""


async def test_an_idle_connection_is_closed() -> None:
    async with serving(echo, idle_seconds=0.05) as served, served.client() as client:
        assert (await client.request(b"a")).body == b"a"
        assert await client.closed() == b""


async def test_bodies_in_flight_are_bounded_over_all_connections() -> None:
    entered, release = trio.Event(), trio.Event()

    async def hold(request: HttpRequest) -> HttpResponse:
        body = await request.read()
        if body.startswith(b"h"):
            entered.set()
            await release.wait()
        return HttpResponse(200, body)

    async with serving(hold, bodies_bytes=100) as served:
        async with served.client() as holder, served.client() as other:
            await holder.send(head(headers="content-length: 60\r\n") + b"h" * 60)
            await entered.wait()
            assert (await other.request(b"o" * 40)).status == 200
            assert (await other.request(b"o" * 41)).status == 429
            release.set()
            assert (await holder.response()).status == 200
        async with served.client() as other:
            assert (await other.request(b"o" * 100)).status == 200


async def test_bodies_of_clients_that_left_do_not_count() -> None:
    async with serving(echo, bodies_bytes=100) as served:
        for _ in range(3):
            async with served.client() as client:
                await client.send(head(headers="content-length: 100\r\n") + b"x" * 90)
        async with served.client() as client:
            while (response := await client.request(b"x" * 100)).status == 429:
                pass  # the server has not seen all of them leave
            assert response.status == 200
