"""An overlap that does not show ranks which are on their way out."""

from collections.abc import Collection

import attrs

from kvlanes.indexer import Overlap, Rank


@attrs.frozen
class Masked:
    """The overlap of all others: what a leaving rank held must not be seen as its successor's."""

    overlap: Overlap
    leaving: frozenset[Rank]

    def of(self, rank: Rank) -> int:
        return 0 if rank in self.leaving else self.overlap.of(rank)

    def best(self, eligible: Collection[Rank] | None = None) -> int:
        ranks = self.overlap.scores() if eligible is None else eligible
        return self.overlap.best([rank for rank in ranks if rank not in self.leaving])

    def scores(self) -> dict[Rank, int]:
        scores = self.overlap.scores()
        return {rank: depth for rank, depth in scores.items() if rank not in self.leaving}
