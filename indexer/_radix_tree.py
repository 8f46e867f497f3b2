"""The tree of segments and who holds them: every change of shape goes through here.

Invariants, asserted by `RadixIndex.check`:

- A segment's blocks all have the same holders; each holder confirmed all of them or leases all of
  them until the same deadline.
- A node without holders has a descendant with one (else it is detached).
- No node could be merged with its only child (else it is): they differ in a holder, a deadline or
  in who shares their names.

So the number of nodes follows the coverage that is alive, not its history.
"""

from collections import OrderedDict

from kvlanes.indexer._mutations import Rank
from kvlanes.indexer._radix_holder import Holder, SlotTable, bits
from kvlanes.indexer._radix_names import SharedNames
from kvlanes.indexer._radix_node import NO_KIDS, Node
from kvlanes.indexer._radix_timers import CONFIRMED


class SegmentTree:
    """Segments, holders and names of one index. Written by `RadixIndex` and its stores only."""

    __slots__ = (
        "_free",
        "_groups",
        "entries",
        "holders",
        "names",
        "nodes",
        "order",
        "ranks",
        "root",
        "table",
        "tick_seconds",
    )

    def __init__(self, tick_seconds: float, ordered: bool = False) -> None:
        self.tick_seconds = tick_seconds
        # See `_radix_budget`; stays None, and costs nothing, where there is no budget.
        self.order: OrderedDict[Node, None] | None = OrderedDict() if ordered else None
        self.root = Node(b"", 0, None)
        self.root.kids = {}
        self.names = SharedNames()
        self.ranks: dict[Rank, Holder] = {}
        # By slot; the holder of a retired slot stays until the slot is given away again.
        self.holders: list[Holder] = []
        self.table = SlotTable()
        self._free: list[int] = []
        self._groups: dict[int, list[Holder]] = {}  # memo of `group`
        self.nodes = 0  # without the root
        self.entries = 0  # blocks of all nodes, each counted once

    # Ranks

    def register(self, rank: Rank) -> Holder:
        """Make a rank known and give it a slot, a retired one if there is any."""
        if self._free:
            slot = self._free.pop()
            self.table = self.table.with_slot(slot, rank)
            holder = self.holders[slot] = Holder(rank, slot, self.tick_seconds)
        else:
            holder = Holder(rank, self.table.append(rank), self.tick_seconds)
            self.holders.append(holder)
        self.ranks[rank] = holder
        self._groups.clear()
        return holder

    def retire(self, holder: Holder) -> None:
        """Forget a rank that holds nothing any more; its bit is in no mask."""
        assert not holder.segments
        del self.ranks[holder.rank]
        self._free.append(holder.slot)

    def group(self, mask: int) -> list[Holder]:
        """The holders of a mask, by slot. O(holders) the first time."""
        found = self._groups.get(mask)
        if found is None:
            if len(self._groups) >= 128:
                self._groups.clear()
            found = self._groups[mask] = [self.holders[slot] for slot in bits(mask)]
        return found

    # Shape

    def grow(self, parent: Node, edge: bytes) -> Node:
        """A new node that nobody holds yet."""
        node = Node(edge, 0, parent)
        self._adopt(parent, node)
        self.entries += len(edge) >> 3
        return node

    def _adopt(self, parent: Node, node: Node) -> None:
        parent.add(node)
        if self.order is not None:
            self.order[node] = None
        self.nodes += 1

    def split(self, node: Node, cut: int) -> Node:
        """Cut a segment after `cut` bytes; the first part, whose only child is the second.

        Cost: O(holders), and with names O(names of the part that becomes a new node).
        """
        edge, parent = node.edge, node.parent
        assert parent is not None
        if cut * 2 > len(edge) and node.named:
            # Many names stay, few move.
            part = Node(edge[cut:], node.held, node)
            head, tail = node, part
            tail.take_children(node)
            head.edge = edge[:cut]
        else:
            part = Node(edge[:cut], node.held, parent)
            head, tail = part, node
            parent.replace(node, head)
            tail.edge = edge[cut:]
        head.only, tail.parent = tail, head
        for holder in self.group(node.held):
            holder.split(node, part)
        if node.named or node.aliases:
            self.names.split(head, tail, node, self.holders)
        self.nodes += 1
        if self.order is not None:
            self.order[part] = None
            self.touch(tail)
        return head

    def touch(self, node: Node) -> None:
        """Move a path to the end of the order, children before parents. O(depth)."""
        assert self.order is not None
        while node.parent is not None:
            self.order.move_to_end(node)
            node = node.parent

    def alike(self, head: Node) -> bool:
        """Whether a node has an only child and nothing tells their blocks apart. O(holders)."""
        tail = head.only
        if tail is None or head.held != tail.held or head.named != tail.named:
            return False
        if (head.aliases or {}).keys() != (tail.aliases or {}).keys():
            return False
        for holder in self.group(head.held):
            if holder.segments[head] != holder.segments[tail]:
                return False
        return True

    def merge(self, head: Node) -> Node:
        """Make one segment of a node and its only child, which are alike.

        Cost: O(holders), and with names O(names of the part that goes).
        """
        tail, parent, named = head.only, head.parent, head.named or head.aliases
        assert tail is not None
        assert parent is not None
        edge = head.edge + tail.edge
        if named and len(tail.edge) < len(head.edge):
            node, gone = head, tail
            head.take_children(tail)
        else:
            node, gone = tail, head
            tail.edge = edge
            parent.replace(head, tail)
        for holder in self.group(gone.held):
            holder.merge(gone)
        if named:
            self.names.merge(head, tail, node, self.holders)
        node.edge = edge
        self._bury(gone)
        return node

    def _bury(self, node: Node) -> None:
        """Let a node go. A stale timer may still refer to it, hence nothing big stays in it."""
        node.edge, node.parent, node.held, node.named = b"", None, 0, 0
        node.only, node.kids = None, NO_KIDS
        self.nodes -= 1
        if self.order is not None:
            del self.order[node]

    def tidy(self, node: Node) -> None:
        """Detach or merge what a change at `node` left: the one place where nodes end."""
        while not node.held and node.only is None and not node.kids:
            parent = node.parent
            if parent is None:
                return
            parent.discard(node)
            self.entries -= len(node.edge) >> 3
            self._bury(node)
            node = parent
        # Loops, because a clear changes many nodes at once and tidies them one by one: a node that
        # goes up in another takes the merge that it was waiting for along.
        while self.alike(node):
            node = self.merge(node)
        while node.parent is not None and node.parent.only is node and self.alike(node.parent):
            node = self.merge(node.parent)

    # Coverage

    def forget(self, holder: Holder, node: Node) -> None:
        """A rank holds a segment no more; the caller tidies."""
        if holder.forget(node):
            self.names.take(holder, node)

    def extend(self, holder: Holder, node: Node, edge: bytes, names: bytes) -> bool:
        """Confirm a run for one rank behind a node that has no child like it, the usual way.

        It lengthens a leaf that only this rank holds (the next block of a running request), or
        becomes a leaf. Neither leaves anything to merge: a leaf that could be merged would have
        been lengthened. Storing, naming and merging one by one would take twice as long.

        Returns:
            False where one of the names is in use; then nothing was changed. O(names).
        """
        bit, leaf = holder.bit, node
        if not bit == node.held == node.named or node.only is not None or node.kids:
            leaf = Node(b"", bit, node)
            leaf.named = bit
        if not self.names.lengthen(holder, leaf, names):
            return False
        leaf.edge += edge
        if leaf is not node:
            self._adopt(node, leaf)
            holder.segments[leaf] = CONFIRMED
        self.entries += len(edge) >> 3
        holder.lengthen(len(edge) >> 3)
        return True

    def trim(self, node: Node, cut: int) -> None:
        """Cut a leaf off after `cut` bytes, for all its holders. O(holders + names that go)."""
        lost = (len(node.edge) - cut) >> 3
        for holder in self.group(node.held):
            holder.shorten(node, lost)
        self.names.trim(node, cut, self.holders)
        node.edge = node.edge[:cut]
        self.entries -= lost

    def lapse(self, holder: Holder, node: Node) -> None:
        """A lease ended at its time; its timer entry has been taken out already."""
        del holder.segments[node]
        node.held ^= holder.bit
        holder.blocks -= len(node.edge) >> 3
        self.tidy(node)

    def clear(self, holder: Holder) -> int:
        """A rank holds nothing any more; the blocks that went. O(segments)."""
        if not holder.segments:
            return 0
        gone, nodes, bit = holder.blocks, list(holder.segments), holder.bit
        if holder.confirmed:
            for node in [node for node in nodes if holder.segments[node] == CONFIRMED]:
                self.names.abandon(holder, node)
        for node in nodes:
            node.held ^= bit
        holder.reset()
        # Last first: what was stored last lies deepest, as a rule, and takes its parents with it.
        nodes.reverse()
        rest = nodes if self.order is not None else self._shed(nodes)
        for node in rest:
            if node.parent is not None:
                self.tidy(node)
        return gone

    def _shed(self, nodes: list[Node]) -> list[Node]:
        """Detach the leaves right below the root that nobody holds; the nodes that remain.

        Does for them what `tidy` does, without its calls: a clear is mostly this.
        """
        root, rest, entries = self.root, list[Node](), 0
        kids = root.kids
        for node in nodes:
            if node.parent is not root or node.held or node.only is not None or node.kids:
                rest.append(node)
                continue
            edge = node.edge
            del kids[edge[:8]]
            entries += len(edge)
            node.edge, node.parent = b"", None
        self.entries -= entries >> 3
        self.nodes -= len(nodes) - len(rest)
        return rest
