"""Requests a second of a trivial decision, beside other servers, in one run.

    python -m tests.benchmarks.http

Every server runs the same handler (read the body, parse a decision, answer it with fixed
numbers) in a process of its own, and is asked over kept connections by this one. Peers that are
not installed (hypercorn, uvicorn, httptools) are left out, and the table says so.
"""
# flake8: noqa: ASYNC910 - handlers are asynchronous by contract

import json
import math
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import trio

from kvlanes.engine.decisions import (
    Contract,
    DecisionLimits,
    PredicateAnswer,
    Usage,
    parse_decision,
    reply,
)
from kvlanes.engine.http import HttpRequest, HttpResponse, serve_http

CONNECTIONS = 16
SECONDS = 2.0
ROUNDS = 5
LIMITS = DecisionLimits()
BODY = json.dumps(
    {
        "model": "m",
        "input": "A customer was charged twice and requests a refund today.",
        "questions": [{"type": "predicate", "instructions": "Action is needed today."}],
    }
).encode()
REQUEST = (
    b"POST /v1/decisions HTTP/1.1\r\nhost: localhost\r\nuser-agent: OpenAI/Python 3.57.0\r\n"
    b"accept: application/json\r\nauthorization: Bearer k\r\ncontent-type: application/json\r\n"
    b"content-length: " + str(len(BODY)).encode() + b"\r\n\r\n" + BODY
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def decide(body: bytes) -> bytes:
    """What every server does with a request."""
    decision = parse_decision(Contract.DECISIONS, body, LIMITS)
    return reply(decision, "m", (PredicateAnswer(0.25, 0.98),), Usage(51, 15)).body


async def handle(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, decide(await request.read()))


async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
    """The same handler for servers that speak ASGI."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    said = decide(body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(said)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    return await send({"type": "http.response.body", "body": said})


async def kvlanes(port: int) -> None:
    await serve_http(handle, await trio.open_tcp_listeners(port, host="127.0.0.1"))


def hypercorn(port: int) -> None:
    config = import_module("hypercorn.config").Config.from_mapping(
        bind=[f"127.0.0.1:{port}"], accesslog=None
    )
    trio.run(import_module("hypercorn.trio").serve, asgi, config)


def uvicorn(port: int, http: str) -> None:
    run = import_module("uvicorn").run
    run(asgi, port=port, http=http, loop="asyncio", log_level="error", access_log=False)


SERVERS: dict[str, Callable[[int], object]] = {
    "kvlanes": lambda port: trio.run(kvlanes, port),
    "hypercorn, trio worker": hypercorn,
    "uvicorn, h11": lambda port: uvicorn(port, "h11"),
    "uvicorn, httptools": lambda port: uvicorn(port, "httptools"),
}


class Load:
    """One process that keeps `CONNECTIONS` requests under way."""

    def __init__(self, port: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._answer_bytes = 0
        for _ in range(CONNECTIONS):
            peer = socket.create_connection(("127.0.0.1", port))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._answer_bytes = self._first(peer)
            self._selector.register(peer, selectors.EVENT_READ, bytearray())

    def _first(self, peer: socket.socket) -> int:
        """The length of an answer; later ones are the same."""
        peer.sendall(REQUEST)
        answer = b""
        while not answer.endswith(b"}"):
            answer += peer.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return len(answer)

    def rate(self, seconds: float) -> float:
        """Requests a second."""
        answered = 0
        peers = list(self._selector.get_map().values())
        for key in peers:
            self._socket(key).sendall(REQUEST)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for key, _ in self._selector.select():
                if self._received(key):
                    answered += 1
                    self._socket(key).sendall(REQUEST)
        took = time.perf_counter() - began
        for key in peers:  # the last answers, so that the next round starts clean
            while not self._received(key):
                pass
        return answered / took

    def _received(self, key: selectors.SelectorKey) -> bool:
        key.data.extend(self._socket(key).recv(65536))
        # Some servers send a date, whose length never changes.
        if len(key.data) < self._answer_bytes:
            return False
        key.data.clear()
        return True

    def _socket(self, key: selectors.SelectorKey) -> socket.socket:
        assert isinstance(key.fileobj, socket.socket)
        return key.fileobj

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._socket(key).close()
        self._selector.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processor, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, seconds: float) -> tuple[float, float] | None:
    """Requests a second, and processor seconds a request; `None` where it cannot start."""
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.http", name, str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        else:
            return None
        load = Load(port)
        load.rate(seconds / 4)
        before = cpu_seconds(process.pid)
        rate = load.rate(seconds)
        used = cpu_seconds(process.pid) - before
        load.close()
        return rate, used / (rate * seconds)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Rounds in turn, so that a slow moment of the machine hits all servers alike."""
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in SERVERS}
    for _ in range(ROUNDS):
        for name, found in rounds.items():
            measured = measure(name, SECONDS)
            if measured is not None:
                found.append(measured)
    base = middle(rounds["hypercorn, trio worker"])
    print(f"{'server':<24}{'requests/s':>12}{'beside':>8}{'CPU us':>10}{'beside':>8}")
    for name, found in rounds.items():
        if not found:
            print(f"{name:<24}{'not installed':>12}")
            continue
        rate, used = middle(found)
        beside = f"{rate / base[0]:>8.2f}{used * 1e6:>10.0f}{base[1] / used:>8.2f}"
        print(f"{name:<24}{rate:>12,.0f}{beside}")
    print("beside: how many times better than hypercorn")


def middle(found: list[tuple[float, float]]) -> tuple[float, float]:
    if not found:
        return math.nan, math.nan
    return statistics.median(r for r, _ in found), statistics.median(u for _, u in found)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        SERVERS[sys.argv[1]](int(sys.argv[2]))
    else:
        main()
