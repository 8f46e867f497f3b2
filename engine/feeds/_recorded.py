"""A stream from a file of recorded frames, one JSON object a line.

Each object has `kind` (`live`, or `replay_from_0` for the answer to a replay request) and
`frames`, each frame in base64. Other kinds are skipped.
"""
# flake8: noqa: ASYNC910 - a file is there at once; the follower gives way by its work

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.engine.feeds._errors import ConnectionLost, SourceInvalid
from kvlanes.engine.feeds._feed import FeedState
from kvlanes.engine.feeds._frames import Frame, parse
from kvlanes.engine.feeds._options import FollowOptions, require_zmq
from kvlanes.engine.feeds._protocols import EventSink
from kvlanes.engine.feeds._sources import feeds_of


@attrs.frozen
class Recording:
    """The frames of one file.

    Attributes:
        live: What was received live, in order.
        replay: The answer to a replay from 0; empty when none was recorded.
    """

    live: tuple[Frame, ...]
    replay: tuple[Frame, ...]

    @classmethod
    def read(cls, path: Path) -> "Recording":
        """Read a file.

        Raises:
            SourceInvalid: A line that is no recorded frame.
            OSError: The file cannot be read.
        """
        kinds: dict[str, list[Frame]] = {}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                kind, frame = _row(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SourceInvalid(f"{path}, line {number}: {error}") from error
            if frame is not None:
                kinds.setdefault(kind, []).append(frame)
        return cls(tuple(kinds.get("live", ())), tuple(kinds.get("replay_from_0", ())))


def _row(row: dict[str, object]) -> tuple[str, Frame | None]:
    kind, frames = str(row["kind"]), row.get("frames")
    if not isinstance(frames, list):
        return kind, None  # notes about what the publisher did
    return kind, parse([base64.b64decode(frame, validate=True) for frame in frames])


@attrs.frozen
class RecordedEvents:
    """Follows a recording to its end, as if it came from an engine."""

    path: Path
    options: FollowOptions = attrs.field(factory=FollowOptions)

    def __attrs_post_init__(self) -> None:
        require_zmq()

    @enable_ki_protection
    async def run(self, sink: EventSink) -> None:
        """Follow the whole file; ends with the feed `stale`.

        Raises:
            SourceInvalid: The file is no recording.
        """
        from kvlanes.engine.feeds._follow import Follower

        recording = Recording.read(self.path)
        (feed,) = feeds_of(sink, [str(self.path)])
        follower = Follower(sink, feed, self.options)
        await follower.begin()
        try:
            await follower.follow(_RecordedLink(recording, iter(recording.live)))
        except ConnectionLost:
            feed.become(FeedState.STALE)


@attrs.frozen
class _RecordedLink:
    recording: Recording
    rest: Iterator[Frame]

    scoped = True

    @property
    def replayable(self) -> bool:
        return bool(self.recording.replay)

    def receive_nowait(self) -> Frame | None:
        return next(self.rest, None)

    async def receive(self, idle_seconds: float) -> Frame | None:
        raise ConnectionLost("the recording ends here")

    def check(self) -> None:
        """A file does not end before it is read."""

    @contextmanager
    def replay(self, start: int) -> Iterator["_RecordedReplies"]:
        frames = [frame for frame in self.recording.replay if frame.sequence >= start]
        yield _RecordedReplies(iter(frames))


@attrs.frozen
class _RecordedReplies:
    rest: Iterator[Frame]

    async def receive(self, idle_seconds: float) -> Frame | None:
        await trio.lowlevel.checkpoint()
        return next(self.rest, None)
