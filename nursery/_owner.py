"""Who may write the index: one owner, which replaces it when it breaks."""

import logging
import math
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import attrs
import trio

from kvlanes.indexer import (
    Expired,
    IndexBackend,
    Overlap,
    Prompt,
    Rank,
)
from kvlanes.nursery._errors import LaneCrashed

T = TypeVar("T")
EXPIRY_SLICE = 512  # timer entries that one slice of expiry looks at

logger = logging.getLogger("kvlanes.nursery")


def crashed(cause: BaseException) -> LaneCrashed:
    """A fresh error for one waiter: a shared one would collect every waiter's traceback."""
    error = LaneCrashed(f"the index crashed ({cause!r}) and was replaced by an empty one")
    error.__cause__ = cause
    return error


@attrs.define(eq=False)
class IndexOwner:
    """Holds the one index of a lane set; the only caller of what writes it.

    `busy` while a write runs: whatever the index calls back from inside finds no idle lane, and
    a departure asked for there is done at the end of that same write.
    """

    make_index: Callable[[], IndexBackend]
    on_crash: Callable[[Exception], None]
    index: IndexBackend
    busy: bool = False
    departures: list[tuple[str, int | None]] = attrs.Factory(list)

    reads_in_caller: bool = attrs.field(default=True, init=False)

    @property
    def block_size(self) -> int:
        return self.index.block_size

    def overlap(self, prompt: Prompt) -> Overlap:
        return self.index.overlap(prompt)

    def dump(self) -> object:
        index: Any = self.index  # not every kind of index can be dumped
        return index.dump(trio.current_time())

    def leased_blocks(self) -> int:
        """(Rank, block) pairs that leases hold now; 0 when this kind of index does not tell."""
        tell = getattr(self.index, "statistics", None)
        return 0 if tell is None else int(getattr(tell(), "leased_blocks", 0))

    def broke(self, error: Exception) -> LaneCrashed:
        """Have the broken index replaced, in the write that broke it; what its caller is told."""
        self.on_crash(error)
        return crashed(error)

    def expire(self, now: float, ranks: Collection[Rank]) -> Expired:
        """One slice of expiry; after a crash there is nothing left to expire."""
        nothing = Expired(0, 0, math.inf)
        return self._guarded(lambda: self.index.expire(now, EXPIRY_SLICE, ranks), nothing)

    def drop(self, worker_id: str, dp_rank: int | None) -> None:
        """Retire ranks now, or at the end of the write that runs."""
        if self.busy:
            self.departures.append((worker_id, dp_rank))
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
            if self.departures:
                self.catch_up()

    def catch_up(self) -> None:
        while self.departures:
            self.drop(*self.departures.pop(0))

    def replace(self) -> None:
        """Put an empty index in the place of the broken one."""
        self.index = self.make_index()
