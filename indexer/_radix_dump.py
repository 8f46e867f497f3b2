"""Between a tree of segments and a dump."""

import math

from kvlanes.indexer._deadlines import NEVER, clamped
from kvlanes.indexer._dump import Content, RankRows
from kvlanes.indexer._errors import DumpRefused
from kvlanes.indexer._mutations import Rank
from kvlanes.indexer._radix_holder import Holder
from kvlanes.indexer._radix_node import Node
from kvlanes.indexer._radix_timers import CONFIRMED
from kvlanes.indexer._radix_tree import SegmentTree


def content_of(tree: SegmentTree, now: float) -> Content:
    """Everything that a tree holds; equal trees give equal contents. O(blocks)."""
    numbers: dict[Node, int] = {tree.root: 0}
    segments: list[tuple[int, bytes]] = []
    queue = [tree.root]
    while queue:
        node = queue.pop()
        for child in sorted(node.children, key=lambda child: child.edge):
            segments.append((numbers[node], child.edge))
            numbers[child] = len(segments)
            queue.append(child)
    ranks = [_rows(tree, holder, numbers, now) for _, holder in sorted(tree.ranks.items())]
    return Content(segments, ranks)


def _rows(tree: SegmentTree, holder: Holder, numbers: dict[Node, int], now: float) -> RankRows:
    confirmed: list[tuple[int, bytes]] = []
    leased: list[tuple[int, float]] = []
    for node, deadline in holder.segments.items():
        if deadline == CONFIRMED:
            confirmed.append((numbers[node], tree.names.of(holder, node)))
        else:
            leased.append((numbers[node], deadline - now if deadline < NEVER else math.inf))
    return RankRows(*holder.rank, confirmed=sorted(confirmed), leased=sorted(leased))


def build(content: Content, now: float, tree: SegmentTree) -> SegmentTree:
    """Make an empty tree hold what a content says; what is refused leaves it unusable.

    Raises:
        DumpRefused: It contradicts itself: two children that start alike, a segment held twice
            by one rank, a name for two blocks of one rank.
    """
    nodes = [tree.root]
    for parent, edge in content.segments:
        if nodes[parent].child(edge, 0) is not None:
            raise DumpRefused(f"two segments under {parent} start with block {edge[:8].hex()}")
        nodes.append(tree.grow(nodes[parent], edge))
    for rows in content.ranks:
        rank = Rank(rows.worker_id, rows.dp_rank)
        if rank in tree.ranks:
            raise DumpRefused(f"rank {rank} comes twice")
        _hold(tree, tree.register(rank), rows, nodes, now)
    # A foreign dump may be cut finer than need be, or have segments that nobody holds.
    for node in reversed(nodes[1:]):
        if node.parent is not None:
            tree.tidy(node)
    if tree.order is not None:
        for node in reversed(nodes[1:]):
            if node.parent is not None:
                tree.order.move_to_end(node)
    return tree


def _hold(tree: SegmentTree, holder: Holder, rows: RankRows, nodes: list[Node], now: float) -> None:
    numbers = [number for number, _ in [*rows.confirmed, *rows.leased]]
    if len({*numbers}) != len(numbers):
        raise DumpRefused(f"rank {holder.rank} holds a segment twice")
    for number, names in rows.confirmed:
        own = {names[at : at + 8] for at in range(0, len(names), 8)}
        if len(own) != len(nodes[number]) or tree.names.clash(holder, names):
            raise DumpRefused(f"rank {holder.rank} has one name for two blocks")
        holder.confirm(nodes[number])
        tree.names.give(holder, nodes[number], names)
    for number, seconds in rows.leased:
        holder.lease(nodes[number], clamped(now + seconds, now))
