"""What was decided: a value that holds nothing."""

from collections.abc import Mapping

import attrs

from kvlanes.engine.selection import Explanation, Held, Selection, explain
from kvlanes.indexer import Rank

NOTHING = Held()


# Few fields: one is made for every decision, and most of what it tells is in the selection.
@attrs.frozen(eq=False)
class Route:
    """A decision; it holds nothing and may be kept."""

    _selection: Selection = attrs.field(repr=False)
    _excluded: Mapping[str, str] = attrs.field(repr=False)
    _source: str = attrs.field(repr=False)

    @property
    def rank(self) -> Rank:
        """Where the request should go."""
        return self._selection.rank

    @property
    def worker(self) -> str:
        """The chosen worker's name."""
        return self._selection.rank.worker_id

    @property
    def held(self) -> Held:
        """The blocks of its prompt that the rank holds, a tier each."""
        return self._selection.query.held.get(self._selection.rank, NOTHING)

    @property
    def overlap(self) -> int:
        """Blocks of the prompt that the rank holds, over all tiers."""
        return self.held.blocks

    @property
    def blocks(self) -> int:
        """Full blocks of the prompt."""
        return self._selection.query.blocks

    @property
    def source(self) -> str:
        """Who says so: `confirmed` where the rank's events do, `modelled` where a model of its
        block pool does, `leased` from our own placements, or `none` when it holds nothing.
        """
        return self._source if self.overlap else "none"

    @property
    def explanation(self) -> Explanation:
        """Every candidate and its terms as they were when this was decided. O(candidates)."""
        return explain(self._selection, self._excluded)

    def __repr__(self) -> str:
        return f"<Route to {self.rank}, {self.overlap} of {self.blocks} blocks held>"
