"""What was decided: a value that holds nothing."""

import attrs

from kvlanes.engine.selection import Explanation, Held, Selection, explain
from kvlanes.indexer import Rank


@attrs.frozen(eq=False)
class Route:
    """A decision; it holds nothing and may be kept.

    Attributes:
        rank: Where the request should go.
        held: The blocks of its prompt that the rank holds, a tier each.
        blocks: Full blocks of the prompt.
        source: `confirmed` by the engine's events, `leased` from our own placements, or `none`.
    """

    rank: Rank
    held: Held
    blocks: int
    source: str
    _selection: Selection = attrs.field(repr=False)
    _excluded: dict[str, str] = attrs.field(repr=False)

    @property
    def worker(self) -> str:
        """The chosen worker's name."""
        return self.rank.worker_id

    @property
    def overlap(self) -> int:
        """Blocks of the prompt that the rank holds, over all tiers."""
        return self.held.blocks

    @property
    def explanation(self) -> Explanation:
        """Every candidate and its terms as they were when this was decided. O(candidates)."""
        return explain(self._selection, self._excluded)
