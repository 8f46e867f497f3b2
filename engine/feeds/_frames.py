"""Messages as they come from the socket: topic, sequence, payload.

Frames are counted from the end, which survives replay replies with and without a topic and
sequence frames that grew an incarnation behind the number.
"""

from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from kvlanes.engine.feeds._errors import FrameInvalid

END_OF_REPLAY = b"\xff" * 8


class Watermark(NamedTuple):
    """The last batch applied: the publisher's process, the batch's number, its checksum."""

    incarnation: bytes
    sequence: int
    checksum: int


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
        """XXH3 of the payload: 64 bits at a tenth of what a CRC-32 costs. O(bytes)."""
        return xxh3_64_intdigest(self.payload)

    @property
    def watermark(self) -> Watermark:
        """What remains to be known of a batch that was applied. O(bytes)."""
        return Watermark(self.incarnation, self.sequence, self.checksum)


def parse(message: Sequence[bytes]) -> Frame | None:
    """Read a live message or a replay reply; `None` at the end of a replay.

    Raises:
        FrameInvalid: Fewer than two frames, or a sequence frame that has neither 8 nor 24 bytes.
    """
    if len(message) < 2:
        raise FrameInvalid(f"a batch has at least 2 frames, got {len(message)}")
    topic, sequence, payload = message if len(message) == 3 else (b"", *message)[-3:]
    incarnation = b""
    if len(sequence) == 24:
        sequence, incarnation = sequence[:8], sequence[8:]
    elif len(sequence) != 8:
        raise FrameInvalid(f"a sequence frame has 8 or 24 bytes, got {len(sequence)}")
    if sequence == END_OF_REPLAY:
        return None
    return Frame(topic, int.from_bytes(sequence, "big"), incarnation, payload)
