"""Confirmed stores: a run of blocks under a parent, each with the name its engine gave it.

A store means what its blocks mean, stored one after another. They are taken a segment at a time,
which is the same as long as none of the names is in use by this rank elsewhere; where one is, the
block it named has to be forgotten first, and the segment is stored block by block.
"""

from array import array

from kvlanes.indexer._mutations import Applied
from kvlanes.indexer._radix_holder import Holder
from kvlanes.indexer._radix_lease import counted
from kvlanes.indexer._radix_node import Node, common, position
from kvlanes.indexer._radix_timers import CONFIRMED
from kvlanes.indexer._radix_tree import SegmentTree


def confirm(
    tree: SegmentTree, holder: Holder, parent: int | None, blocks: bytes, names: bytes
) -> Applied:
    """Hold `blocks` under `parent` without a lease, named `names` (packed, each only once).

    Cost: O(segments on the path + names), plus O(holders) for each segment that is split.
    """
    done = _store(tree, holder, parent, blocks, names)
    if done is None:
        return Applied(missing_parent=len(blocks) >> 3)
    fresh, at = done
    if at < len(blocks):
        if at:
            parent = _name(names, at - 8)
        fresh += _store_singly(tree, holder, parent, blocks[at:], names[at:])
    return counted(fresh >> 3, (len(blocks) - fresh) >> 3)


def remove(tree: SegmentTree, holder: Holder, names: bytes) -> Applied:
    """Hold the blocks of these names (packed) no more. O(names), a split or two for each run."""
    before, at, end = holder.blocks, 0, len(names)
    while at < end:
        node = tree.names.find(holder, _name(names, at))
        if node is None:
            at += 8
            continue
        held = tree.names.of(holder, node)
        low, high = _run(held, names, at)
        _uncover(tree, holder, node, low, high)
        at += high - low
    done = before - holder.blocks
    return counted(done, 0, 0, (end >> 3) - done)


def _name(names: bytes, at: int) -> int:
    return int.from_bytes(names[at : at + 8], "big")


def _run(held: bytes, names: bytes, at: int) -> tuple[int, int]:
    """The longest run of a segment that `names` names from `at` on, upwards or downwards.

    Engines evict whole runs, mostly the last block first; one split serves the run.
    """
    if len(held) == 8:
        return 0, 8
    low = position(held, names[at : at + 8])
    high = low + 8
    if low and held[low - 8 : low] == names[at + 8 : at + 16]:
        below = _reversed(held[max(0, high - (len(names) - at)) : high])
        return high - _repeated(below, names, at), high
    return low, low + _repeated(held[low:], names, at)


def _repeated(packed: bytes, names: bytes, at: int) -> int:
    """`common`, with a glance at what is usual: all of it."""
    return len(packed) if names.startswith(packed, at) else common(packed, names, at)


def _reversed(packed: bytes) -> bytes:
    names = array("Q", packed)
    names.reverse()
    return names.tobytes()


def _uncover(tree: SegmentTree, holder: Holder, node: Node, low: int, high: int) -> None:
    """A rank holds the bytes `low` to `high` of a segment no more."""
    leaf = node.only is None and not node.kids
    if low and high == len(node.edge) and leaf and node.held == holder.bit:
        tree.trim(node, low)
        return
    if low:
        tail = tree.split(node, low).only
        assert tail is not None
        node = tail
    if high - low < len(node.edge):
        node = tree.split(node, high - low)
    tree.forget(holder, node)
    tree.tidy(node)


def _store(
    tree: SegmentTree, holder: Holder, parent: int | None, blocks: bytes, names: bytes
) -> tuple[int, int] | None:
    """Find the parent and walk: bytes that are new, and where a name in use stopped it."""
    if parent is None:
        return _walk(tree, holder, tree.root, blocks, names)
    node = tree.names.find(holder, parent)
    if node is None:
        return None
    held = tree.names.of(holder, node)
    lead = position(held, parent.to_bytes(8, "big")) + 8
    if lead == len(held):
        return _walk(tree, holder, node, blocks, names)
    # The parent lies inside a segment: walk that segment again, from its own first block.
    assert node.parent is not None
    edge = node.edge
    fresh, at = _walk(tree, holder, node.parent, edge[:lead] + blocks, held[:lead] + names)
    return fresh, max(at - lead, 0)


def _store_singly(
    tree: SegmentTree, holder: Holder, parent: int | None, blocks: bytes, names: bytes
) -> int:
    """Store one block after another; a name in use is taken from the block that has it."""
    fresh = 0
    for at in range(0, len(blocks), 8):
        block, name = blocks[at : at + 8], names[at : at + 8]
        done = _store(tree, holder, parent, block, name)
        if done == (0, 0):
            remove(tree, holder, name)
            done = _store(tree, holder, parent, block, name)
        assert done is not None
        fresh += done[0]
        parent = _name(name, 0)
    return fresh


def _walk(
    tree: SegmentTree, holder: Holder, node: Node, blocks: bytes, names: bytes
) -> tuple[int, int]:
    """Confirm `blocks` below `node`, a segment at a time, until a name is in use elsewhere.

    Returns:
        Bytes that were not confirmed before, and the byte at which it stopped.
    """
    at, end, fresh = 0, len(blocks), 0
    while at < end:
        child = node.child(blocks, at)
        if child is None and tree.extend(holder, node, blocks[at:], names[at:]):
            return fresh + end - at, end
        size = end - at if child is None else common(child.edge, blocks, at)
        mine = names[at : at + size]
        before = None if child is None else _names_before(tree, holder, child)
        if before is None or not before.startswith(mine):
            if tree.names.clash(holder, _changed(mine, before)):
                break
            child = _claim(tree, holder, node, child, blocks[at : at + size], mine, before)
        assert child is not None
        if before is None:
            fresh += size
        if size < len(child.edge) and at + size < end:
            child = tree.split(child, size)
        if node.only is child and tree.alike(node):
            child = tree.merge(node)
        at += size
        node = child
    if tree.alike(node):
        tree.merge(node)
    return fresh, at


def _names_before(tree: SegmentTree, holder: Holder, node: Node) -> bytes | None:
    if holder.segments.get(node) != CONFIRMED:
        return None
    return tree.names.of(holder, node)


def _changed(mine: bytes, before: bytes | None) -> bytes:
    """Those of the packed names that differ from what the blocks are called now."""
    if before is None:
        return mine
    pairs = [(mine[at : at + 8], before[at : at + 8]) for at in range(0, len(mine), 8)]
    return b"".join([new for new, old in pairs if new != old])


def _claim(
    tree: SegmentTree,
    holder: Holder,
    parent: Node,
    node: Node | None,
    run: bytes,
    mine: bytes,
    before: bytes | None,
) -> Node:
    """Confirm one run, or rename it when it was confirmed before; the node that it begins."""
    if before is not None:
        assert node is not None
        tree.names.take(holder, node)
        tree.names.give(holder, node, mine + before[len(mine) :])
        # Its names may be like those of its child now, and the caller may cut it anywhere.
        return tree.merge(node) if tree.alike(node) else node
    if node is None:
        node = tree.grow(parent, run)
    elif len(run) < len(node.edge):
        node = tree.split(node, len(run))
    holder.confirm(node)
    tree.names.give(holder, node, mine)
    return node
