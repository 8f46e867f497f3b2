"""The read side: one walk along a prompt, and the lazy value it leaves."""

from collections.abc import Collection, Sequence

from kvlanes.indexer._mutations import Rank
from kvlanes.indexer._radix_holder import SlotTable
from kvlanes.indexer._radix_node import Node, common


class RadixOverlap:
    """How deep each rank's coverage of one prompt reaches.

    `depths` ascend; `masks[k]` are the ranks that reach at least `depths[k]` blocks, and those that
    are not in the next mask reach no further. Nothing else is computed until somebody asks.
    """

    __slots__ = ("_depths", "_masks", "_table")

    def __init__(self, depths: Sequence[int], masks: Sequence[int], table: SlotTable) -> None:
        self._depths = depths
        self._masks = masks
        self._table = table

    def of(self, rank: Rank) -> int:
        """Blocks of the longest root-contiguous prefix that `rank` holds. O(depths)."""
        slot = self._table.slots.get(rank)
        return 0 if slot is None else self._deepest(1 << slot)

    def best(self, eligible: Collection[Rank] | None = None) -> int:
        """The deepest overlap of any (eligible) rank. O(1), or O(eligible + depths)."""
        if eligible is None:
            return self._depths[-1] if self._depths else 0
        slots = self._table.slots
        return self._deepest(sum({1 << slots[rank] for rank in eligible if rank in slots}))

    def _deepest(self, wanted: int) -> int:
        for depth, mask in zip(reversed(self._depths), reversed(self._masks)):
            if mask & wanted:
                return depth
        return 0

    def scores(self) -> dict[Rank, int]:
        """Every rank with at least one block. About 20 ns a rank that shares its depth."""
        table, masks = self._table, self._masks
        if len(masks) == 1:
            return dict.fromkeys(table.expand(masks[0]), self._depths[0])
        scores: dict[Rank, int] = {}
        ranks, bits, deeper = table.ranks, table.bits, 0
        for depth, mask in zip(reversed(self._depths), reversed(masks)):
            ends = mask ^ deeper
            deeper = mask
            slot = ends.bit_length() - 1
            # One rank that ends here is the rule where depths are many.
            if ends == bits[slot]:
                scores[ranks[slot]] = depth
            elif ends.bit_count() < 16:
                while ends:
                    slot = ends.bit_length() - 1
                    scores[ranks[slot]] = depth
                    ends ^= bits[slot]
            else:
                scores.update(dict.fromkeys(table.expand(ends), depth))
        return scores

    def __repr__(self) -> str:
        return f"<RadixOverlap of {self.best()} blocks at best, {len(self.scores())} ranks>"


def walk(node: Node | None, blocks: bytes) -> tuple[list[int], list[int]]:
    """How far which ranks get along `blocks`, from the child of the root that begins like them.

    Returns:
        Depths and masks as in `RadixOverlap`.

    Cost: O(segments on the path), one `memcmp` each. One loop, since it is the hottest of the
    package: a call a segment would double it. Two lists, since
    a pair a step would make the collector run.
    """
    depths: list[int] = []
    masks: list[int] = []
    if node is None or not node.held:
        return depths, masks
    able, edge, at = node.held, node.edge, 0
    while blocks.startswith(edge, at):
        at += len(edge)
        child = node.only
        if child is None:
            child = node.kids.get(blocks[at : at + 8])
            if child is None:
                break
        edge = child.edge
        left = able & child.held
        if left != able:
            depths.append(at >> 3)
            masks.append(able)
            if not left:
                return depths, masks
            able = left
        node = child
    else:
        more = common(edge, blocks, at)
        at += more
        if not more and depths and depths[-1] == at >> 3:
            # An only child that does not even begin like the prompt: nobody got further.
            return depths, masks
    depths.append(at >> 3)
    masks.append(able)
    return depths, masks
