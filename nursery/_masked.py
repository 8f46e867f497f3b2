"""An overlap that does not show ranks which are on their way out."""

from collections.abc import Collection, Set

import attrs

from kvlanes.indexer import Overlap, Rank, TierBlocks, TieredOverlap

TIER_ENDS = range(1, len(TierBlocks._fields) + 1)


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


def without(overlap: Overlap, leaving: Set[Rank]) -> Overlap:
    """What `overlap` says of all ranks but those; one that tells tiers apart goes on doing so."""
    if not leaving:
        return overlap
    if isinstance(overlap, TieredOverlap):
        tiers = {rank: overlap.tiers(rank) for rank in overlap.scores() if rank not in leaving}
        ends = [{rank: sum(blocks[:end]) for rank, blocks in tiers.items()} for end in TIER_ENDS]
        return TieredOverlap(tuple(ends))
    return Masked(overlap, frozenset(leaving))
