"""Who may write the index: one owner, which replaces it when it breaks."""

import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import TypeVar

import attrs

from kvlanes.indexer import Applied, Expired, IndexBackend, IndexerError, Mutation, Rank
from kvlanes.nursery._errors import LaneCrashed

T = TypeVar("T")
EXPIRY_SLICE = 512  # timer entries that one slice of expiry looks at
CRASHES_A_MINUTE = 3  # more than these, and the error goes to who opened the lanes

logger = logging.getLogger("kvlanes.nursery")


def crashed(cause: BaseException) -> LaneCrashed:
    """A fresh error for one waiter: a shared one would collect every waiter's traceback."""
    error = LaneCrashed(f"the index crashed ({cause!r}) and was replaced by an empty one")
    error.__cause__ = cause
    return error


@attrs.define(eq=False)
class CrashLog:
    """Counts crashes, and says when they are too many."""

    count: int = 0
    _recent: deque[float] = attrs.Factory(lambda: deque(maxlen=CRASHES_A_MINUTE + 1))

    def note(self, now: float) -> bool:
        """Whether the owner must be told: the fourth crash within a minute."""
        self.count += 1
        self._recent.append(now)
        return len(self._recent) > CRASHES_A_MINUTE and now - self._recent[0] < 60.0


@attrs.define(eq=False)
class IndexOwner:
    """Holds the one index of a lane set; the only caller of what writes it.

    `busy` while a write runs: whatever the index calls back from inside finds no idle lane, and
    a departure asked for there is done at the end of that same write.
    """

    make_index: Callable[[], IndexBackend]
    on_crash: Callable[[Exception], None]
    index: IndexBackend = attrs.field(init=False)
    busy: bool = False
    _departures: list[tuple[str, int | None]] = attrs.Factory(list)

    @index.default
    def _first(self) -> IndexBackend:
        return self.make_index()

    def apply(self, mutation: Mutation, now: float) -> Applied:
        """One mutation, all of it or none of it; an index that breaks is replaced."""
        self.busy = True
        try:
            return self.index.apply(mutation, now)
        except IndexerError:
            raise  # refused before its first write
        except Exception as error:
            self.on_crash(error)
            raise crashed(error) from error
        finally:
            self.busy = False
            if self._departures:
                self._catch_up()

    def expire(self, now: float, ranks: Collection[Rank]) -> Expired:
        """One slice of expiry; after a crash there is nothing left to expire."""
        nothing = Expired(0, 0, math.inf)
        return self._guarded(lambda: self.index.expire(now, EXPIRY_SLICE, ranks), nothing)

    def drop(self, worker_id: str, dp_rank: int | None) -> None:
        """Retire ranks now, or at the end of the write that runs."""
        if self.busy:
            self._departures.append((worker_id, dp_rank))
        else:
            self._guarded(lambda: self.index.drop(worker_id, dp_rank), 0)

    def _guarded(self, write: Callable[[], T], crashed_result: T) -> T:
        self.busy = True
        try:
            return write()
        except Exception as error:
            self.on_crash(error)
            return crashed_result
        finally:
            self.busy = False
            if self._departures:
                self._catch_up()

    def _catch_up(self) -> None:
        while self._departures:
            self.drop(*self._departures.pop(0))

    def replace(self) -> None:
        """Put an empty index in the place of the broken one."""
        self.index = self.make_index()
