"""How far a stream was followed, and what the next batch means for that. Pure.

The *watermark* names the last batch that was applied: the publisher's incarnation when it sends
one, the sequence number, the checksum of the payload. A sequence number alone cannot tell that
an engine restarted and went past the mark meanwhile, so every replay asks for the watermark's own
batch again: the same checksum is the same engine.
"""

from enum import Enum

import attrs

from kvlanes.engine.feeds._frames import Frame, Watermark


class Verdict(Enum):
    """What a batch is, seen from the watermark."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTARTED = "restarted"


_NEXT = Verdict.NEXT  # looked up in its class it would cost a third of `judge`


@attrs.define(eq=False)
class Cursor:
    """The watermark of one publisher's stream. Written only by the task that follows it.

    Attributes:
        last: The last batch applied, `None` until the first. It is kept as it came: to make its
            watermark for every batch would cost as much as to judge the next one.
    """

    last: Frame | None = attrs.field(default=None, repr=False)  # has token ids in it

    @property
    def watermark(self) -> Watermark | None:
        """`None` until the first batch. O(bytes of a batch)."""
        return None if self.last is None else self.last.watermark

    @property
    def expected(self) -> int:
        """The sequence number that comes next."""
        return 0 if self.last is None else self.last.sequence + 1

    def judge(self, frame: Frame, *, scoped: bool = True) -> Verdict:
        """Say what a batch is, without changing anything.

        Args:
            frame: The batch.
            scoped: Whether it came over a connection that belongs to one publisher process. If
                not, a number that went back may be a restart.
        """
        last = self.last
        if last is None:
            return Verdict.NEXT if frame.sequence == 0 else Verdict.GAP
        _, sequence, incarnation, _ = frame
        if incarnation and last.incarnation and last.incarnation != incarnation:
            return Verdict.RESTARTED
        ahead = sequence - last.sequence
        if ahead == 1:
            return _NEXT
        if ahead > 1:
            return Verdict.GAP
        if ahead == 0:
            same = frame.payload == last.payload
            return Verdict.DUPLICATE if same else Verdict.RESTARTED
        return Verdict.DUPLICATE if scoped else Verdict.RESTARTED

    def advance(self, frame: Frame) -> None:
        """The batch was applied."""
        self.last = frame

    def forget(self) -> None:
        """Another publisher process begins: nothing of the old one counts."""
        self.last = None


class Replay:
    """One replay, from the watermark inclusive: what each reply means, and what its end means.

    Attributes:
        start: The sequence number to ask for.
        seen: Replies so far.
    """

    __slots__ = ("_cursor", "_mark", "seen", "start")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._mark = cursor.last
        self.start = 0 if self._mark is None else self._mark.sequence
        self.seen = 0

    def judge(self, frame: Frame) -> Verdict:
        """Say what a reply is.

        A first reply past the watermark is a gap even when it is the very next batch: without
        the watermark's own batch nobody knows whose batch that is.
        """
        first = self.seen == 0
        self.seen += 1
        if first and self._mark is not None and frame.sequence > self._mark.sequence:
            same = self._mark.incarnation and self._mark.incarnation == frame.incarnation
            return self._cursor.judge(frame) if same else Verdict.GAP
        if first or frame.sequence >= self._cursor.expected:
            return self._cursor.judge(frame)
        return Verdict.DUPLICATE

    def ended(self) -> Verdict:
        """Judge the end marker: a publisher that lacks our watermark's batch is another one."""
        unknown = self._mark is not None and self.seen == 0
        return Verdict.RESTARTED if unknown else Verdict.NEXT
