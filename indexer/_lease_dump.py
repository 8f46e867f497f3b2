"""Between a `LeaseTable` and a dump."""

import math
from collections.abc import Iterator, Mapping

import attrs

from kvlanes.indexer._deadlines import NEVER, clamped
from kvlanes.indexer._dump import Content, RankRows
from kvlanes.indexer._errors import DumpRefused
from kvlanes.indexer._identity import sequence_hashes
from kvlanes.indexer._lease_holding import Holding
from kvlanes.indexer._mutations import Mutation, Rank, Remove, Store
from kvlanes.indexer._names import continued
from kvlanes.indexer._paths import Paths


def content_of(ranks: Mapping[Rank, Holding], paths: Paths, now: float) -> Content:
    """Everything that a table holds, a segment a block. O(blocks)."""
    numbers: dict[int | None, int] = {place: k for k, place in enumerate(paths.links, 1)}
    numbers[None] = 0
    segments = [(numbers[link.before], link.block) for link in paths.links.values()]
    rows = [
        RankRows(
            rank.worker_id,
            rank.dp_rank,
            [(numbers[place], name.to_bytes(8, "big")) for place, name in held.names.names.items()],
            [
                (numbers[place], end - now if end < NEVER else math.inf)
                for place, end in held.leases.deadlines.items()
            ],
        )
        for rank, held in ranks.items()
    ]
    return Content(segments, rows)


@attrs.frozen
class RestoredRank:
    """One rank of a dump: what it holds, and how a backend without leases comes to hold it."""

    rank: Rank
    named: dict[int, int]  # place -> name
    leased: dict[int, float]  # place -> deadline
    mutations: list[Mutation]


@attrs.define(eq=False)
class Restoring:
    """A dump block by block. Refuses a contradictory one before anybody writes anything."""

    content: Content
    ways: list[tuple[int, ...]] = attrs.field(init=False)  # places of each segment; 0 is the root

    def __attrs_post_init__(self) -> None:
        self.ways = [()]
        for parent, edge in self.content.segments:
            before = self.ways[parent]
            self.ways.append(continued(before[-1], edge) if before else sequence_hashes(edge))
        if len({place for way in self.ways for place in way}) != sum(map(len, self.ways)):
            raise DumpRefused("two segments name the same block")

    def links(self) -> Iterator[tuple[int, int | None, bytes]]:
        """Place, place before it and block hash of every block, root side first."""
        for number, (parent, edge) in enumerate(self.content.segments, 1):
            before = self.ways[parent][-1] if parent else None
            for k, place in enumerate(self.ways[number]):
                yield place, before, edge[8 * k : 8 * k + 8]
                before = place

    def ranks(self, now: float) -> list[RestoredRank]:
        ranks = [self._rank(rows, now) for rows in self.content.ranks]
        found = {rank.rank: rank for rank in ranks}
        if len(found) != len(self.content.ranks):
            raise DumpRefused(f"{len(self.content.ranks)} ranks are only {len(found)}")
        return list(found.values())

    def _rank(self, rows: RankRows, now: float) -> RestoredRank:
        rank = Rank(rows.worker_id, rows.dp_rank)
        held = [number for number, _ in [*rows.confirmed, *rows.leased]]
        if len({*held}) != len(held):
            raise DumpRefused(f"rank {rank} holds a segment twice")
        named = {
            place: int.from_bytes(names[8 * k : 8 * k + 8], "big")
            for number, names in rows.confirmed
            for k, place in enumerate(self.ways[number])
        }
        if len({*named.values()}) != len(named):
            raise DumpRefused(f"rank {rank} has one name for two blocks")
        ends = [(number, clamped(now + seconds, now)) for number, seconds in rows.leased]
        leased = {place: end for number, end in ends for place in self.ways[number]}
        return RestoredRank(rank, named, leased, list(self._mutations(rank, {*held})))

    def _mutations(self, rank: Rank, held: set[int]) -> Iterator[Mutation]:
        """Store every path whole, under the places as names, then remove the holes."""
        needed, inner = set[int](), set[int]()
        for number in held:
            while number and number not in needed:
                needed.add(number)
                number = self.content.segments[number - 1][0]
                inner.add(number)
        for tip in sorted(needed - inner):
            blocks, places = b"", tuple[int, ...]()
            number = tip
            while number:
                parent, edge = self.content.segments[number - 1]
                blocks, places = edge + blocks, self.ways[number] + places
                number = parent
            yield Store(rank, None, blocks, places)
        holes = [place for number in sorted(needed - held) for place in self.ways[number]]
        if holes:
            yield Remove(rank, holes)
