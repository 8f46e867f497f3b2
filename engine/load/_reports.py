"""Figures that others report about a rank: kept a source each, and believed for a while."""

import math

import attrs

from kvlanes.engine._errors import EngineError


@attrs.frozen
class LoadReport:
    """One figure of one source.

    Attributes:
        source: Who says so.
        busy: Share of the rank that is in use, 0 to 1.
        at: When it was true, on Trio's clock.
        max_age_seconds: For how long it is believed.
    """

    source: str
    busy: float = attrs.field()
    at: float
    max_age_seconds: float = attrs.field()

    @busy.validator
    def _share(self, _: object, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"busy must be within 0..1, got {value} from {self.source!r}")

    @max_age_seconds.validator
    def _positive(self, _: object, value: float) -> None:
        if not 0.0 < value < math.inf:
            raise ValueError(f"max_age_seconds must be finite and > 0, got {value}")

    def fresh(self, now: float) -> bool:
        return now - self.at <= self.max_age_seconds


class TooManySources(EngineError, ValueError):
    """As many sources as may be kept report a load, and all of them are believed."""

    def __init__(self, source: str, most: int) -> None:
        super().__init__(f"{most} sources report a load already; {source!r} is one too many")


class LoadReports:
    """The latest figure of each source. A source never overwrites another's.

    Args:
        most: Sources that are kept; one whose figure is too old makes room for a new one.
    """

    __slots__ = ("_latest", "_most")

    def __init__(self, most: int = 8) -> None:
        self._latest: dict[str, LoadReport] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._latest)

    def note(self, report: LoadReport) -> None:
        """Keep a figure in the place of its source's last one.

        Raises:
            TooManySources: The source is new, and there is no room for it.
        """
        if report.source not in self._latest and len(self._latest) >= self._most:
            stale = self.stale(report.at)
            if not stale:
                raise TooManySources(report.source, self._most)
            del self._latest[stale[0]]
        self._latest[report.source] = report

    def busiest(self, now: float) -> LoadReport | None:
        """The highest figure that is still believed."""
        fresh = (report for report in self._latest.values() if report.fresh(now))
        return max(fresh, key=lambda report: report.busy, default=None)

    def stale(self, now: float) -> list[str]:
        """Sources whose figure is too old to be believed."""
        return [source for source, report in self._latest.items() if not report.fresh(now)]
