"""Built-in clients over real sockets, so that the page lives; at the end every permit is back.

Some wait for their answers, some hang up, some are slow, and some ask for work that ignores its
cancellation. All of them are rude on purpose in a way that a server must survive.
"""
# flake8: noqa: ASYNC910 - clients that wait for the network, each in its own way

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count

import attrs
import trio

FLAGS = (
    "--permits=12",
    "--deadline=3",
    "--grace=0.5",
    "--mock=mock-fast:latency=0.25",
    "--mock=mock-slow:latency=1.2",
    "--mock=mock-stubborn:latency=60,stubborn=2",
    "--alias=jev-latest=mock-fast",
)

_CONTEXTS = tuple(
    f"Case {i}. " + (12 + 6 * i) * "A customer was charged twice, wrote and got no answer. "
    for i in range(6)
)
_QUESTIONS = ("Is action needed today?", "Is a refund due?", "Is the tone angry?", "Is it a bug?")


@attrs.frozen
class Demo:
    """The clients of one demonstration. Their counter is written by `_count` alone.

    Attributes:
        port: Where the server listens, on loopback.
        authorization: The header that lets these clients in.
        admin: The header that shows the status.
        settle_seconds: How long to wait at the end for work that ignores its cancellation.
    """

    port: int
    authorization: str | None = attrs.field(repr=False)
    admin: str | None = attrs.field(repr=False)
    settle_seconds: float = 15.0
    _ended: Counter[str] = attrs.field(factory=Counter)
    _serial: "count[int]" = attrs.field(factory=lambda: count(1))
    _random: random.Random = attrs.field(factory=lambda: random.Random(7))

    async def run(self, seconds: float, enough: trio.Event) -> bool:
        """Let clients come and go, then wait for the permits. Always a checkpoint.

        Args:
            seconds: For how long.
            enough: Set it to end sooner.

        Returns:
            Whether every permit came back.
        """
        clients: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (5, self._normal),
            (2, self._hangs_up),
            (1, self._slow),
            (1, self._stubborn),
        ]
        async with trio.open_nursery() as nursery:
            for number, client in clients:
                for _ in range(number):
                    nursery.start_soon(self._again, client)
            with trio.move_on_after(seconds):
                await enough.wait()
            nursery.cancel_scope.cancel()
        return await self._settle()

    async def _again(self, client: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await client()
            except OSError:
                self._ended["cut off"] += 1
            await trio.sleep(self._random.uniform(0.05, 0.5))

    # -- clients

    async def _normal(self) -> None:
        body = self._questions("mock-fast", self._random.randint(1, 3))
        self._count(await self._post("normal", body))

    async def _hangs_up(self) -> None:
        """Asks, and leaves before the answer."""
        async with await self._send("hang-up", self._questions("mock-slow", 2)):
            await trio.sleep(self._random.uniform(0.2, 0.8))
        self._ended["hung up"] += 1

    async def _slow(self) -> None:
        """Sends its body in drops: no permit is held for it meanwhile."""
        head, body = self._request("slow", self._questions("mock-slow", 1))
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all(head)
            for start in range(0, len(body), 400):
                await stream.send_all(body[start : start + 400])
                await trio.sleep(0.2)
            self._count(await _status(stream))

    async def _stubborn(self) -> None:
        """Asks for work that outlives its deadline: answered in time, held until it ends."""
        self._count(await self._post("stubborn", self._questions("mock-stubborn", 1)))

    # -- the wire

    async def _post(self, kind: str, body: bytes) -> int:
        async with await self._send(kind, body) as stream:
            return await _status(stream)

    async def _send(self, kind: str, body: bytes) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        try:
            await stream.send_all(b"".join(self._request(kind, body)))
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def _request(self, kind: str, body: bytes) -> tuple[bytes, bytes]:
        lines = [
            "POST /v1/decisions HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            "connection: close",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-request-id: {kind}-{next(self._serial)}",
            *([f"authorization: {self.authorization}"] if self.authorization else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode(), body

    def _questions(self, model: str, number: int) -> bytes:
        asked = [
            {"type": "predicate", "instructions": text}
            for text in self._random.sample(_QUESTIONS, number)
        ]
        context = self._random.choice(_CONTEXTS)
        return json.dumps({"model": model, "input": context, "questions": asked}).encode()

    def _count(self, status: int) -> None:
        names = {200: "answered", 429: "refused (429)", 504: "past their deadline (504)"}
        self._ended[names.get(status, f"ended with {status}")] += 1

    # -- the end

    async def _settle(self) -> bool:
        """Wait for stragglers, and say what came of it."""
        free, total = 0, -1
        with trio.move_on_after(self.settle_seconds):
            while free != total:
                free, total = await self._permits()
                await trio.sleep(0.1)
        counts = ", ".join(f"{number} {what}" for what, number in self._ended.most_common())
        print(f"demo over: {counts}")
        print(f"permits free = {free}, total = {total}", flush=True)
        return free == total

    async def _permits(self) -> tuple[int, int]:
        request = f"GET /status HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nconnection: close\r\n"
        if self.admin:
            request += f"authorization: {self.admin}\r\n"
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all(f"{request}\r\n".encode())
            answer = await _whole(stream)
        permits = json.loads(answer.partition(b"\r\n\r\n")[2])["permits"]
        return permits["free"], permits["total"]


async def _status(stream: trio.SocketStream) -> int:
    answer = await _whole(stream)
    if not answer:
        raise ConnectionResetError("the server closed without an answer")
    return int(answer.split(b" ", 2)[1])


async def _whole(stream: trio.SocketStream) -> bytes:
    try:
        return b"".join([piece async for piece in stream])
    except trio.BrokenResourceError as error:
        raise ConnectionResetError("the connection broke") from error
