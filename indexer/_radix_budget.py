"""A hard limit on the blocks of a tree, shared by all ranks.

Segments stand in the order in which a store last went through them, and each before its parent: a
store moves its path to the end, deepest first. So the first in the order is always a leaf, and
giving up leaves in this order forgets least recently stored tails first, parents after children.
Reads move nothing. The order depends on the mutations alone.
"""

from kvlanes.indexer._radix_node import Node
from kvlanes.indexer._radix_tree import SegmentTree


def deepest(tree: SegmentTree, blocks: bytes) -> Node:
    """The last segment on the path of `blocks`. O(segments on the path)."""
    node, at = tree.root, 0
    child = node.child(blocks, at)
    while child is not None:
        node = child
        at += len(node.edge)
        child = node.child(blocks, at)
    return node


def evict(tree: SegmentTree, budget_blocks: int) -> int:
    """Give up leaves until at most `budget_blocks` are left; how many went. O(what went)."""
    assert tree.order is not None
    before = tree.entries
    while tree.entries > budget_blocks:
        leaf = next(iter(tree.order))
        excess = tree.entries - budget_blocks
        if excess < len(leaf):
            tree.trim(leaf, len(leaf.edge) - 8 * excess)
            continue
        for holder in tree.group(leaf.held):
            tree.forget(holder, leaf)
        tree.tidy(leaf)
    return before - tree.entries
