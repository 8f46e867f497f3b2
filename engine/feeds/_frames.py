"""Messages as they come from the socket: topic, sequence, payload.

Frames are counted from the end, which survives replay replies with and without a topic and
sequence frames that grew an incarnation behind the number.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from kvlanes.engine.feeds._errors import FrameInvalid

END_OF_REPLAY = b"\xff" * 8


class Frame(NamedTuple):
    """One batch as it was sent.

    Attributes:
        topic: As sent, possibly empty.
        sequence: The publisher's number of the batch, from 0.
        incarnation: The publisher's own name of its process, empty when it sends none.
        payload: The encoded batch.
    """

    topic: bytes
    sequence: int
    incarnation: bytes
    payload: bytes

    @property
    def checksum(self) -> int:
        """CRC-32 of the payload. O(bytes)."""
        return zlib.crc32(self.payload)


def parse(message: Sequence[bytes]) -> Frame | None:
    """Read a live message or a replay reply; `None` at the end of a replay.

    Raises:
        FrameInvalid: Fewer than two frames, or a sequence frame that has neither 8 nor 24 bytes.
    """
    if len(message) < 2:
        raise FrameInvalid(f"a batch has at least 2 frames, got {len(message)}")
    sequence, payload = message[-2], message[-1]
    if len(sequence) not in (8, 24):
        raise FrameInvalid(f"a sequence frame has 8 or 24 bytes, got {len(sequence)}")
    if sequence[:8] == END_OF_REPLAY:
        return None
    topic = message[-3] if len(message) > 2 else b""
    return Frame(topic, int.from_bytes(sequence[:8], "big"), sequence[8:], payload)
