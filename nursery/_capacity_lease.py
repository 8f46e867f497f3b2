"""What requests occupy of a rank's modelled block pool, in the order of the rank's lane."""

import warnings
from typing import Any, Protocol

import attrs
from trio.lowlevel import enable_ki_protection

from kvlanes.indexer import (
    BlockSizeMismatch,
    CapacityModel,
    Mutation,
    PackedLengthInvalid,
    Prompt,
    require_count,
)
from kvlanes.nursery._incarnations import Incarnation, Seat
from kvlanes.nursery._queue import CapacityChange, Change, LaneQueue


class ChangeLane(Protocol):
    """What a capacity lease needs of its lane."""

    queue: LaneQueue

    def change(self, item: CapacityChange, *, must: bool) -> bool: ...


@attrs.define(eq=False)
class CapacityLease:
    """What one request occupies of one rank's pool, from `LaneSet.occupy` until `close`.

    Its steps take their turn in the rank's lane, so a release cannot overtake its acquire. The
    end of the incarnation, or of the index in a crash, ends it: what it still says is nothing.
    Use it as a context manager, or close it. Never a checkpoint.
    """

    _seat: Seat[Any]
    _incarnation: Incarnation
    # The model knows the request by this, not by the lease, which must be seen to get lost.
    _attempt: object = attrs.field(factory=object, init=False)
    _open: bool = attrs.field(default=False, init=False)  # acquired and not released
    _grows: bool = attrs.field(default=False, init=False)  # nothing of it was dropped

    @enable_ki_protection
    def acquire(self, prompt: Prompt, block_size: int, private_blocks: int) -> None:
        """The lane set's part: begin, unless the lane is full.

        Raises:
            BlockSizeMismatch: The prompt has blocks of another size.
            ValueError: `private_blocks` is negative.
        """
        if prompt.block_size != block_size:
            raise BlockSizeMismatch(prompt.block_size, block_size)
        require_count("private_blocks", private_blocks)
        attempt = self._attempt

        def begin(model: CapacityModel) -> list[Mutation]:
            return model.acquire(attempt, prompt, private_blocks=private_blocks)

        self._open = self._grows = self._post(begin)

    @enable_ki_protection
    def grow(self, blocks: bytes = b"", *, private_blocks: int = 0) -> None:
        """Output filled `blocks` (packed hashes); `private_blocks` are held unshared from now on.

        On a full lane it is dropped and counted, and so is the rest of this output: what comes
        behind a gap has no place in the pool.

        Raises:
            TypeError: `blocks` is not bytes, or a count no integer.
            ValueError: No whole number of hashes, or a negative count.
        """
        if not isinstance(blocks, bytes):
            raise TypeError(f"packed block hashes are bytes, got {blocks!r}")
        if len(blocks) % 8:
            raise PackedLengthInvalid(len(blocks))
        require_count("private_blocks", private_blocks)
        attempt = self._attempt
        if self._open and self._grows:
            self._grows = self._post(
                lambda model: model.grow(attempt, blocks, private_blocks=private_blocks)
            )

    @enable_ki_protection
    def close(self) -> None:
        """The request has ended; its blocks stay as cache while there is room. Idempotent."""
        attempt = self._attempt
        if self._open:
            self._open = False
            self._post(lambda model: model.release(attempt), must=True)

    def _post(self, change: Change, *, must: bool = False) -> bool:
        lane: ChangeLane = self._seat.lane
        return lane.change(CapacityChange(self._seat, self._incarnation, change), must=must)

    def __enter__(self) -> "CapacityLease":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """The collector may run anywhere and never releases: it only tells."""
        if self._open and self._seat.current is self._incarnation and not self._closed:
            text = f"a capacity lease on {self._incarnation.rank} was never closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    @property
    def _closed(self) -> bool:
        lane: ChangeLane = self._seat.lane
        return lane.queue.closed
