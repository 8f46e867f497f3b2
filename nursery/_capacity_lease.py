"""What requests occupy of a rank's modelled block pool, in the order of the rank's lane."""

from typing import Any, Protocol

import attrs

from kvlanes.indexer import CapacityModel, Mutation, Prompt
from kvlanes.nursery._incarnations import Incarnation, Seat
from kvlanes.nursery._queue import CapacityChange, Change


class ChangeLane(Protocol):
    """What a capacity lease needs of its lane."""

    def change(self, item: CapacityChange) -> None: ...


@attrs.define(eq=False)
class CapacityLease:
    """What one request occupies of one rank's pool, from `LaneSet.occupy` until `close`.

    Its steps take their turn in the rank's lane, so a release cannot overtake its acquire. The
    end of the incarnation, or of the index in a crash, ends it: what it still says is nothing.
    Use it as a context manager, or close it. Never a checkpoint.
    """

    seat: Seat[Any]
    incarnation: Incarnation
    closed: bool = False

    def grow(self, blocks: bytes = b"", *, private_blocks: int = 0) -> None:
        """Output filled `blocks` (packed hashes); `private_blocks` are held unshared from now on.

        Raises:
            ValueError: No whole number of hashes, or a negative count.
        """
        if len(blocks) % 8:
            raise ValueError(f"packed block hashes take 8 bytes each, got {len(blocks)} bytes")
        require_private(private_blocks)
        if not self.closed:
            self._post(lambda model: model.grow(self, blocks, private_blocks=private_blocks))

    def close(self) -> None:
        """The request has ended; its blocks stay as cache while there is room. Idempotent."""
        if not self.closed:
            self.closed = True
            self._post(lambda model: model.release(self))

    def _post(self, change: Change) -> None:
        lane: ChangeLane = self.seat.lane
        lane.change(CapacityChange(self.seat, self.incarnation, change))

    def acquire(self, prompt: Prompt, private_blocks: int) -> None:
        """The lane set's part: begin."""

        def begin(model: CapacityModel) -> list[Mutation]:
            return model.acquire(self, prompt, private_blocks=private_blocks)

        self._post(begin)

    def __enter__(self) -> "CapacityLease":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_private(private_blocks: int) -> None:
    if private_blocks < 0:
        raise ValueError(f"private_blocks must not be negative, got {private_blocks}")
