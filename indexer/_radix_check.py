"""`RadixIndex.check`: walks everything, asserts every invariant, recounts every counter."""

from collections import Counter

from kvlanes.indexer._deadlines import NEVER
from kvlanes.indexer._radix_holder import Holder, bits
from kvlanes.indexer._radix_node import NO_KIDS, Node
from kvlanes.indexer._radix_timers import CONFIRMED, SLACK
from kvlanes.indexer._radix_tree import SegmentTree
from kvlanes.indexer._validation import unpack


def check(tree: SegmentTree) -> None:
    """Raise `AssertionError`, and print the tree, unless everything holds."""
    try:
        _check_tree(tree)
    except AssertionError:
        print(picture(tree.root))
        raise


def picture(root: Node) -> str:
    """A segment a line: first block, length, holders, and who shares or has its names."""
    lines: list[str] = []
    queue = [(root, 0)]
    while queue:
        node, depth = queue.pop()
        own = sorted(node.aliases or ())
        text = f"{'  ' * depth}{node.edge[:8].hex()} +{len(node)} held {bits(node.held)}"
        lines.append(f"{text} named {bits(node.named)} own {own}")
        queue += [(child, depth + 1) for child in node.children]
    return "\n".join(lines)


def _check_tree(tree: SegmentTree) -> None:
    nodes = _nodes(tree.root)
    assert not NO_KIDS, NO_KIDS
    assert tree.nodes == len(nodes), (tree.nodes, len(nodes))
    assert tree.entries == sum(map(len, nodes)), tree.entries
    for node in nodes:
        _check_node(tree, node)
    _check_names(tree, nodes)
    for rank, holder in tree.ranks.items():
        assert holder.rank == rank, rank
        assert tree.holders[holder.slot] is holder, rank
        assert tree.table.slots[rank] == holder.slot, rank
        assert tree.table.ranks[holder.slot] == rank, rank
        _check_holder(holder, nodes)
    if tree.order is not None:
        _check_order(list(tree.order), nodes)
    live = {holder.slot for holder in tree.ranks.values()}
    assert live.isdisjoint(tree._free)
    assert len(live) + len(tree._free) == len(tree.holders) == len(tree.table.ranks)
    assert all(live.issuperset(bits(node.held)) for node in nodes)


def _nodes(root: Node) -> list[Node]:
    """All nodes but the root, parents first; asserts that the links fit."""
    found: list[Node] = []
    queue = [root]
    assert root.only is None
    assert root.parent is None
    assert not root.edge
    assert not root.held
    while queue:
        node = queue.pop()
        for child in node.children:
            assert child.parent is node, (node, child)
            found.append(child)
            queue.append(child)
    return found


def _check_node(tree: SegmentTree, node: Node) -> None:
    assert len(node) * 8 == len(node.edge) > 0, node.edge
    assert node.held or node.only is not None or node.kids, "nobody needs this node"
    assert node.only is None or node.kids is NO_KIDS
    assert not tree.alike(node), "could be merged with its only child"
    assert len(node.kids) != 1, "an only child stands in `only`"
    for key, child in node.kids.items():
        assert child.edge[:8] == key, (key, child.edge[:8])
    named, aliases = node.named, node.aliases or {}
    assert aliases or node.aliases is None
    assert len(node.names) == (len(node.edge) if named else 0)
    assert all(len(packed) == len(node.edge) for packed in aliases.values())
    others = sum(1 << slot for slot in aliases)
    assert not named & others, "shared and own names at once"
    members = [tree.holders[slot] for slot in bits(node.held)]
    confirmed = sum(holder.bit for holder in members if holder.segments[node] == CONFIRMED)
    assert named | others == confirmed, (named, others, confirmed)


def _check_names(tree: SegmentTree, nodes: list[Node]) -> None:
    shared = {name: node for node in nodes for name in unpack(node.names)}
    stale = {name for _, packed in tree.names.stale for name in unpack(packed)}
    assert shared.items() <= tree.names.nodes.items()
    assert tree.names.nodes.keys() - shared.keys() <= stale
    assert len(shared) == sum(len(node) for node in nodes if node.named), "a name for two blocks"
    for holder in tree.ranks.values():
        lists = [(node, (node.aliases or {}).get(holder.slot, b"")) for node in nodes]
        own = {name: node for node, packed in lists for name in unpack(packed)}
        assert own == holder.alias, holder.rank
        mine = [name for node in nodes if node.named & holder.bit for name in unpack(node.names)]
        assert holder.alias.keys().isdisjoint(mine), holder.rank


def _check_holder(holder: Holder, nodes: list[Node]) -> None:
    segments = holder.segments
    assert segments.keys() == {node for node in nodes if node.held & holder.bit}, holder.rank
    assert holder.blocks == sum(map(len, segments)), holder.rank
    confirmed = [node for node, deadline in segments.items() if deadline == CONFIRMED]
    assert holder.confirmed == sum(map(len, confirmed)), holder.rank
    timers = holder.timers
    leased = {node for node, deadline in segments.items() if deadline < NEVER}
    armed = Counter(node for bucket in timers.buckets.values() for node in bucket)
    assert timers.live == len(leased) <= armed.total() == timers.live + timers.stale, holder.rank
    assert timers.stale <= timers.live + SLACK, holder.rank
    assert sorted(timers.ticks) == sorted(timers.buckets)
    assert all(timers.buckets.values())
    first = {
        node: tick for tick in sorted(timers.buckets, reverse=True) for node in timers.buckets[tick]
    }
    for node in leased:
        assert first[node] * timers.tick_seconds <= segments[node] + 2 * timers.tick_seconds


def _check_order(order: list[Node], nodes: list[Node]) -> None:
    at = {node: place for place, node in enumerate(order)}
    assert at.keys() == set(nodes)
    assert all(at[child] < at[node] for node in nodes for child in node.children)
