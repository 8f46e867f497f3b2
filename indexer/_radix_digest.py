"""The digest of a tree (see `_digest`)."""

from kvlanes.indexer._digest import rank_key, rows_digest, shown
from kvlanes.indexer._identity import sequence_hashes
from kvlanes.indexer._names import continued
from kvlanes.indexer._radix_holder import bits
from kvlanes.indexer._radix_node import Node
from kvlanes.indexer._radix_tree import SegmentTree
from kvlanes.indexer._validation import unpack


def digest(tree: SegmentTree) -> str:
    """16 hex digits that are equal where confirmed coverage is. O(confirmed blocks)."""
    keys = {holder.slot: rank_key(holder.rank) for holder in tree.ranks.values()}
    total = 0
    queue: list[tuple[Node, int | None]] = [(child, None) for child in tree.root.children]
    while queue:
        node, before = queue.pop()
        places = sequence_hashes(node.edge) if before is None else continued(before, node.edge)
        lists = dict.fromkeys(bits(node.named), node.names) | (node.aliases or {})
        for slot, packed in lists.items():
            total += rows_digest(keys[slot], zip(places, unpack(packed)))
        queue += [(child, places[-1]) for child in node.children]
    return shown(total)
