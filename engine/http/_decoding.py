"""Bodies as sent become bodies as meant, never larger than allowed while decoding."""

import zlib
from typing import Protocol

import zstandard

from kvlanes.engine.http._messages import BodyBroken, BodyTooLarge, EncodingUnknown

# A zstd block of four bytes can ask for 128 KiB, so 128 bytes can become at most 4 MiB at once.
_ZSTD_SLICE = 128


class Decoder(Protocol):
    """Takes a body piece by piece."""

    def feed(self, data: bytes) -> bytes:
        """What `data` decodes to.

        Raises:
            BodyTooLarge: All together decodes to more than allowed.
            BodyBroken: This is not the encoding it claims to be.
        """
        ...

    def finish(self) -> None:
        """The body is complete.

        Raises:
            BodyBroken: Its encoding is not.
        """
        ...


def decoder(encoding: str | None, limit_bytes: int, window_bytes: int) -> Decoder:
    """The decoder for a content-encoding header.

    Raises:
        EncodingUnknown: It is none of gzip, deflate, zstd and identity, or several at once.
    """
    match (encoding or "identity").strip().lower():
        case "identity":
            return _Identity(limit_bytes)
        case "gzip" | "x-gzip":
            return _Zlib(limit_bytes, zlib.MAX_WBITS | 16)
        case "deflate":
            return _Zlib(limit_bytes, zlib.MAX_WBITS)
        case "zstd":
            return _Zstd(limit_bytes, window_bytes)
        case _:
            raise EncodingUnknown("content-encoding is not gzip, deflate, zstd or identity")


class _Room:
    """Counts what came out, against the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.left_bytes = limit_bytes

    def use(self, data: bytes) -> bytes:
        self.left_bytes -= len(data)
        if self.left_bytes < 0:
            raise BodyTooLarge(self._limit_bytes)
        return data


class _Identity:
    def __init__(self, limit_bytes: int) -> None:
        self._room = _Room(limit_bytes)

    def feed(self, data: bytes) -> bytes:
        return self._room.use(data)

    def finish(self) -> None:
        """Nothing can be missing."""


class _Zlib:
    def __init__(self, limit_bytes: int, window_bits: int) -> None:
        self._room = _Room(limit_bytes)
        self._inner = zlib.decompressobj(window_bits)

    def feed(self, data: bytes) -> bytes:
        try:
            # One byte more than there is room for tells "too large" from "exactly full".
            out = self._inner.decompress(data, self._room.left_bytes + 1)
        except zlib.error as error:
            raise BodyBroken("body is not compressed as declared") from error
        return self._room.use(out)

    def finish(self) -> None:
        if not self._inner.eof or self._inner.unused_data:
            raise BodyBroken("compressed body is cut short or followed by more")


class _Zstd:
    def __init__(self, limit_bytes: int, window_bytes: int) -> None:
        self._room = _Room(limit_bytes)
        self._inner = zstandard.ZstdDecompressor(max_window_size=window_bytes).decompressobj()

    def feed(self, data: bytes) -> bytes:
        return b"".join(
            self._room.use(self._slice(data[start : start + _ZSTD_SLICE]))
            for start in range(0, len(data), _ZSTD_SLICE)
        )

    def _slice(self, data: bytes) -> bytes:
        if self._inner.eof:
            raise BodyBroken("compressed body is followed by more")
        try:
            return self._inner.decompress(data)
        except zstandard.ZstdError as error:
            raise BodyBroken(
                "body is not compressed as declared, or its window is too large"
            ) from error

    def finish(self) -> None:
        if not self._inner.eof or self._inner.unused_data:
            raise BodyBroken("compressed body is cut short or followed by more")
