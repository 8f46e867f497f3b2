"""Every backend that the contract and the state machines run against, by name."""

from kvlanes.indexer import (
    Applied,
    Clear,
    Depths,
    LeaseTable,
    Mutation,
    PositionalIndex,
    Prompt,
    RadixIndex,
    Rank,
    Store,
    TierIndex,
    sequence_hashes,
)
from tests.indexer.contract import MakeIndex
from tests.indexer.contract_dump import MakeDumpedIndex
from tests.indexer.oracle import Oracle


class UserIndex:
    """What somebody might write who knows nothing but `LeaselessBackend`: a dictionary of sets.

    It takes the name of a block for its place, which is right because `LeaseTable` names blocks
    by the sequence hash of their prefix.
    """

    block_size = 16

    def __init__(self) -> None:
        self.held: dict[Rank, set[int]] = {}

    def apply(self, mutation: Mutation, now: float) -> Applied:
        held = self.held.setdefault(mutation.rank, set())
        if isinstance(mutation, Store):
            held.update(mutation.sequence_hashes)
        elif isinstance(mutation, Clear):
            held.clear()
        else:
            held.difference_update(mutation.sequence_hashes)
        return Applied()

    def overlap(self, prompt: Prompt) -> Depths:
        places = sequence_hashes(prompt.blocks)
        depths = {
            rank: next((k for k, place in enumerate(places) if place not in held), len(places))
            for rank, held in self.held.items()
        }
        return Depths({rank: depth for rank, depth in depths.items() if depth})

    def drop(self, worker_id: str, dp_rank: int | None = None) -> int:
        gone = [r for r in self.held if r[0] == worker_id and dp_rank in (None, r[1])]
        return sum(len(self.held.pop(rank)) for rank in gone)


WITHOUT_LEASES: dict[str, MakeIndex] = {
    "positional": lambda: PositionalIndex(16),
    "tiers": lambda: TierIndex(PositionalIndex(16)),
}

LEASED: dict[str, MakeIndex] = {
    "oracle": lambda: Oracle(16),
    "radix": lambda: RadixIndex(16),
    "leased positional": lambda: LeaseTable(PositionalIndex(16)),
    "leased radix": lambda: LeaseTable(RadixIndex(16)),
    "tiers over radix": lambda: TierIndex(RadixIndex(16)),
    "leased tiers": lambda: TierIndex(LeaseTable(PositionalIndex(16))),
    "a user's own": lambda: LeaseTable(UserIndex()),
}

DUMPED: dict[str, MakeDumpedIndex] = {
    "radix": lambda: RadixIndex(16),
    "leased positional": lambda: LeaseTable(PositionalIndex(16)),
    "leased radix": lambda: LeaseTable(RadixIndex(16)),
    "a user's own": lambda: LeaseTable(UserIndex()),
}
