"""Bytes that arrived and nobody has parsed yet: bounded, between two tasks of one connection."""
# flake8: noqa: ASYNC910 - waits only when it must: what it hides is one task away

import trio


class Inbox:
    """Filled by the connection's reader task only, emptied by its serving task only.

    While the serving task still wants bytes, a reader waits for room before it reads on, and so
    holds back the client. While it does not (`watching`), the reader must go on reading, or it
    would never see the client leave: what does not fit is thrown away and `overflowed` says so.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._data = bytearray()
        self._watching = False
        self._taker = trio.lowlevel.ParkingLot()
        self._reader = trio.lowlevel.ParkingLot()
        self.ended = False  # the client sends no more; set by the reader
        self.overflowed = False  # bytes are missing, so the connection cannot go on

    async def room(self) -> None:
        """Wait until more may be read. A checkpoint only when full."""
        while len(self._data) >= self._limit_bytes and not self._watching:
            await self._reader.park()

    def put(self, data: bytes | bytearray) -> None:
        """Add what arrived."""
        if len(self._data) >= self._limit_bytes:
            self.overflowed = True
        else:
            self._data += data
            self._taker.unpark()

    def put_back(self, data: bytes) -> None:
        """Bytes that were taken and not used: they come first."""
        self._data[:0] = data

    def end(self) -> None:
        """The client sends no more."""
        self.ended = True
        self._taker.unpark()

    def watch(self, on: bool) -> None:
        """Whether the serving task is busy with something else than reading."""
        self._watching = on
        if on and self._reader:
            self._reader.unpark()

    def take_nowait(self) -> bytes:
        """What is here, maybe nothing."""
        data = bytes(self._data)
        self._data.clear()
        if self._reader:
            self._reader.unpark()
        return data

    async def take(self) -> bytes:
        """What is here, at least one byte; empty at the end. A checkpoint unless there is some."""
        while not self._data and not self.ended:
            await self._taker.park()
        return self.take_nowait()

    async def drained(self) -> None:
        """Throw away what comes until the client sends no more."""
        self.watch(True)
        while not self.ended:
            self.take_nowait()
            await self._taker.park()
