"""A publisher in a process of its own that speaks the engines' exact wire.

Run as `python -m tests.feeds.publisher`, it takes one JSON command a line and answers each with
one line, so that a test knows what has been sent. Sockets: PUB for the stream, ROUTER for
replays, as the engines bind them; or PUB that dials. Faults are commands, too.
"""

import json
import os
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import zmq

from kvlanes.engine.feeds._frames import END_OF_REPLAY, Frame
from kvlanes.indexer import Rank
from tests.feeds.pool import CHAINS, Pool, Publisher, random_events, tokens_of


class PublisherProcess:
    """What the commands act on."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = zmq.Context()
        self.topic: bytes = options.get("topic", "").encode()
        self.with_topic: bool = options.get("replay_topic", True)
        incarnation = bytes.fromhex(options.get("incarnation", ""))
        self.publisher = Publisher(
            Pool(options.get("encoding", "map")),
            options.get("buffer_steps", 10_000),
            incarnation,
            options.get("born", float(os.getpid())),
            options.get("dp_rank", 0),
        )
        self.random = random.Random(options.get("seed", 0))
        self.silent_replays = 0
        self.truncate_after: int | None = None
        self.pub = self._socket(zmq.PUB, options.get("curve"))
        self.pub.setsockopt(zmq.SNDHWM, options.get("hwm", 100_000))
        # Subscriptions are counted, so that a test can wait for its own to have arrived.
        self.router = self._socket(zmq.ROUTER, options.get("curve"))
        self.router.setsockopt(zmq.SNDHWM, 0)
        if "dial" in options:
            self.pub.connect(options["dial"])
        else:
            self.pub.bind(options.get("endpoint", "tcp://127.0.0.1:*"))
        self.router.bind(options.get("replay", "tcp://127.0.0.1:*"))

    def _socket(self, kind: int, curve: list[str] | None) -> Any:
        socket = self.context.socket(zmq.XPUB if kind == zmq.PUB else kind)
        socket.setsockopt(zmq.LINGER, 0)
        if curve is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, curve[0].encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, curve[1].encode())
        return socket

    def endpoints(self) -> dict[str, Any]:
        return {
            "endpoint": self.pub.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0"),
            "replay": self.router.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0"),
        }

    # -- commands

    def subscribed(self) -> int:
        """Wait for a subscription to arrive."""
        while not self.pub.recv().startswith(b"\x01"):
            pass
        return 1

    def step(self, batches: int = 1, lost: bool = False, clears: bool = False) -> int:
        for _ in range(batches):
            self._publish(random_events(self.publisher.pool, self.random, clears=clears), lost)
        return self.publisher.sequence

    def store(self, chain: int, lost: bool = False) -> int:
        self._publish(self.publisher.pool.store(CHAINS[chain % len(CHAINS)]), lost)
        return self.publisher.sequence

    def clear(self) -> int:
        self._publish(self.publisher.pool.clear(), False)
        return self.publisher.sequence

    def long_store(self, tokens: int) -> int:
        """A batch of one store that is never held: for size limits."""
        event = {"type": "BlockStored", "block_hashes": [1], "token_ids": list(range(tokens))}
        self._publish([event | {"parent_block_hash": None, "block_size": tokens}], False)
        return self.publisher.sequence

    def flood(self, batches: int) -> int:
        """Many batches at once, prepared before the first is sent."""
        frames = [
            self.publisher.publish(random_events(self.publisher.pool, self.random, clears=False))
            for _ in range(batches)
        ]
        for frame in frames:
            self._send(frame)
        return self.publisher.sequence

    def junk(self, frames: list[str]) -> int:
        self.pub.send_multipart([self.topic, *(bytes.fromhex(frame) for frame in frames)])
        return self.publisher.sequence

    def again(self, sequence: int) -> int:
        """Send an old batch once more."""
        for frame in self.publisher.since(sequence):
            self._send(frame)
            break
        return self.publisher.sequence

    def forget_batches(self, keep: int) -> int:
        """Rotate the buffer early."""
        self.publisher.buffer = self.publisher.buffer[len(self.publisher.buffer) - keep :]
        return len(self.publisher.buffer)

    def drop_from_buffer(self, sequence: int) -> int:
        kept = [frame for frame in self.publisher.buffer if frame.sequence != sequence]
        self.publisher.buffer = kept
        return len(kept)

    def silence_replays(self, count: int) -> int:
        self.silent_replays = count
        return count

    def truncate_replays(self, after: int | None) -> int:
        self.truncate_after = after
        return 0

    def digest(self, worker: str) -> str:
        return self.publisher.pool.digest(Rank(worker, self.publisher.dp_rank or 0))

    def depths(self) -> list[tuple[list[int], int]]:
        """Every prompt ever stored, with how much of it is held."""
        pool = self.publisher.pool
        return [(tokens_of(chain), pool.depth(chain, None)) for chain in CHAINS]

    def _publish(self, events: list[Any], lost: bool) -> None:
        frame = self.publisher.publish(events)
        if not lost:
            self._send(frame)

    def _sequence(self, frame: Frame) -> bytes:
        return struct.pack(">Q", frame.sequence) + frame.incarnation

    def _send(self, frame: Frame) -> None:
        self.pub.send_multipart([self.topic, self._sequence(frame), frame.payload])

    # -- replays

    def answer(self) -> None:
        """One replay request, as the engines answer it."""
        identity, *request = self.router.recv_multipart()
        if len(request) != 2 or request[0] != b"":
            print(f"ignored replay request of {len(request)} frames", file=sys.stderr)
            return
        if self.silent_replays:
            self.silent_replays -= 1
            return
        frames = list(self.publisher.since(struct.unpack(">Q", request[1])[0]))
        for frame in frames[: self.truncate_after]:
            self._reply(identity, self.topic, struct.pack(">Q", frame.sequence), frame.payload)
        if self.truncate_after is None or len(frames) <= self.truncate_after:
            self._reply(identity, b"", END_OF_REPLAY, b"")

    def _reply(self, identity: bytes, topic: bytes, *frames: bytes) -> None:
        head = [identity, b"", topic] if self.with_topic else [identity, b""]
        self.router.send_multipart([*head, *frames])


def main() -> None:
    process = PublisherProcess(json.loads(sys.stdin.readline()))
    print(json.dumps(process.endpoints()), flush=True)
    poller = zmq.Poller()
    poller.register(process.router, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if process.router in ready:
            process.answer()
        if sys.stdin.fileno() in ready:
            line = sys.stdin.readline()
            if not line:
                return
            command, arguments = json.loads(line)
            method: Callable[..., Any] = getattr(process, command)
            print(json.dumps(method(**arguments)), flush=True)


if __name__ == "__main__":
    main()
