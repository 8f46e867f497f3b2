"""Which requests are open: one of an id at a time, counted from arrival to end."""

import itertools
import math
from typing import TYPE_CHECKING

import trio
from trio_util import AsyncValue

from kvlanes.admission import DeadlinePassed
from kvlanes.engine._errors import RequestExists
from kvlanes.engine._request import Request

if TYPE_CHECKING:
    from kvlanes.engine._engine import Engine


class Arrivals:
    """The one table of open requests, those that wait at the gate included. Written here alone.

    Args:
        engine: Whose requests.
        id_prefix: Begins the ids that are made.

    Attributes:
        count: How many are open.
    """

    __slots__ = ("_engine", "_made_ids", "_open", "count")

    def __init__(self, engine: "Engine", id_prefix: str) -> None:
        self.count = AsyncValue(0)
        self._engine = engine
        self._open: dict[str, Request] = {}
        self._made_ids = (f"{id_prefix}{serial}" for serial in itertools.count(1))

    def enter(
        self, seconds: float | None, deadline: float | None, request_id: str | None
    ) -> Request:
        """A request arrives, and is not admitted yet.

        Raises:
            ValueError: Both a time and a deadline, or no number.
            DeadlinePassed: There is no time left.
            RequestExists: One of this id is open.
        """
        until = self._deadline(seconds, deadline)
        if request_id is None:
            request_id = next(name for name in self._made_ids if name not in self._open)
        elif request_id in self._open:
            raise RequestExists(request_id)
        request = self._open[request_id] = Request(self._engine, until, request_id)
        self.count.value = len(self._open)
        return request

    def _deadline(self, seconds: float | None, deadline: float | None) -> float:
        now = trio.current_time()
        if deadline is None:
            deadline = now + (self._engine.config.request_seconds if seconds is None else seconds)
        elif seconds is not None:
            raise ValueError(f"seconds ({seconds}) and deadline ({deadline}) exclude each other")
        if math.isnan(deadline):
            raise ValueError("the deadline of a request must be a number, got NaN")
        if deadline <= now:
            raise DeadlinePassed("admission")
        return deadline

    def leave(self, request: Request) -> None:
        """A request ends. What threads and dispatched work hold outlives it."""
        request.close()
        del self._open[request.request_id]
        self.count.value = len(self._open)

    def check(self) -> None:
        """Assert that the count equals a recount."""
        assert self.count.value == len(self._open), (self.count.value, list(self._open))
