"""The commands `kvlanes index --check` and `--follow`: look at streams, print what is seen."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import trio

from kvlanes.engine.feeds._feed import Feed, FeedState
from kvlanes.engine.feeds._recorded import RecordedEvents, Recording
from kvlanes.engine.feeds._sink import LaneSink
from kvlanes.engine.feeds._sources import VllmEvents
from kvlanes.indexer import RadixIndex
from kvlanes.nursery import open_bare_nursery, open_lanes

Print = Callable[[str], None]
HEADER = (
    f"{'rank':<16} {'state':<9} {'blocks':>8} {'batches/s':>10} {'lag s':>7} "
    f"{'gaps':>5} {'replays':>8} {'restarts':>8}  note"
)


@attrs.frozen
class Source:
    """One source of the command line: `[NAME=]ENDPOINT[,REPLAY]`.

    Attributes:
        name: The worker's name; its endpoint when none is given.
        events: What to follow.
    """

    name: str
    events: VllmEvents

    @classmethod
    def parse(cls, text: str, *, ranks: int = 1, topic: str = "") -> "Source":
        """Read a source.

        Raises:
            SourceInvalid: No endpoint that can be dialled.
        """
        name, separator, rest = text.partition("=")
        endpoint, _, replay = (rest if separator else text).partition(",")
        events = VllmEvents(endpoint, replay or None, ranks=ranks, topic=topic)
        return cls(name if separator and name else endpoint, events)


async def check(source: VllmEvents, seconds: float, say: Print) -> bool:
    """Look at one publisher for so long and report; whether any batch was seen."""
    from kvlanes.engine.feeds._probe import probe

    survey = await probe(source, seconds)
    for line in survey.report(source.endpoint):
        say(line)
    return survey.batches > 0


def check_recording(path: Path, say: Print) -> bool:
    """Report on a file of recorded frames; whether it has any batch."""
    from kvlanes.engine.feeds._survey import Survey

    recording = Recording.read(path)
    survey = Survey(replay=len(recording.replay) or None, whole=bool(recording.replay))
    for frame in recording.live or recording.replay:
        survey.take(frame)
    for line in survey.report(str(path)):
        say(line)
    return survey.batches > 0


async def follow(
    sources: Sequence[Source],
    say: Print,
    *,
    block_size: int,
    seconds: float,
    every_seconds: float = 1.0,
    rewrite: bool = False,
) -> None:
    """Follow publishers into an index of their own and print a table now and then.

    Args:
        sources: Whom to follow.
        say: Prints one line.
        block_size: Tokens a block.
        seconds: How long; infinity until cancelled.
        every_seconds: Time between two tables.
        rewrite: Print each table over the last one, as terminals can.
    """
    async with open_lanes(lambda: RadixIndex(block_size)) as lanes, open_bare_nursery() as nursery:
        sinks: list[LaneSink] = []
        for source in sources:
            sink = LaneSink(lanes, source.name, block_size=block_size, dp_size=source.events.ranks)
            nursery.start_soon(source.events.run, sink)
            sinks.append(sink)
        table = Table(say, rewrite)
        with trio.move_on_after(seconds):
            while True:
                await trio.sleep(every_seconds)
                table.print(_feeds(sinks), every_seconds)
        table.print(_feeds(sinks), None)
        nursery.cancel_scope.cancel()


def _feeds(sinks: Sequence[LaneSink]) -> list[Feed]:
    return [feed for sink in sinks for feed in sink.feeds]


async def follow_recording(path: Path, say: Print, *, block_size: int) -> None:
    """Follow a file to its end and print the table once."""
    async with open_lanes(lambda: RadixIndex(block_size)) as lanes:
        sink = LaneSink(lanes, path.stem, block_size=block_size)
        await RecordedEvents(path).run(sink)
        Table(say, rewrite=False).print(sink.feeds, None)


class Table:
    """Prints feeds as a table, and keeps what it needs to tell a rate."""

    def __init__(self, say: Print, rewrite: bool) -> None:
        self._say = say
        self._rewrite = rewrite
        self._lines = 0
        self._before: dict[int, int] = {}

    def print(self, feeds: Sequence[Feed], seconds: float | None) -> None:
        rows = [HEADER, *(self._row(feed, seconds) for feed in feeds)]
        up = f"\x1b[{self._lines}F" if self._rewrite and self._lines else ""
        erase = "\x1b[K" if self._rewrite else ""
        for at, row in enumerate(rows):
            self._say((up if at == 0 else "") + erase + row)
        self._lines = len(rows)

    def _row(self, feed: Feed, seconds: float | None) -> str:
        batches = feed.counts.batches
        rate = "-"
        if seconds:
            rate = f"{(batches - self._before.get(id(feed), 0)) / seconds:.1f}"
        self._before[id(feed)] = batches
        counts = feed.counts
        return (
            f"{feed.rank!s:<16.16} {feed.state.value:<9} {feed.blocks:>8} {rate:>10} "
            f"{feed.lag_seconds:>7.2f} {counts.gaps:>5} {counts.replays:>8} "
            f"{counts.restarts:>8}  {'; '.join(_notes(feed))}"
        ).rstrip()


def _notes(feed: Feed) -> Iterator[str]:
    """What a person should know about a stream beside its figures."""
    for group, size in feed.events.refused_sizes.items():
        yield f"group {group} has blocks of {size} tokens, not followed"
    if feed.counts.rank_mismatches:
        yield f"{feed.counts.rank_mismatches} batches name another rank"
    if feed.events.unreadable_events:
        yield f"{feed.events.unreadable_events} unreadable events"
    if feed.error and feed.state is not FeedState.LIVE:
        yield feed.error
