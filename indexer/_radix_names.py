"""Which segment an engine hash names, for each rank on its own.

Engines may agree on the names of the same content or not. The first list of a segment is shared:
`nodes` maps each of its names to the segment, once, for all ranks that agree (`Node.named`). A
rank that disagrees, or whose names are taken for other content, has its own list in
`Node.aliases` and its own map in `Holder.alias`. Within a rank a block has one name and a name one
block, so a name that is stored at another place has moved there.

A rank that is cleared may give up a hundred thousand names at once. They are only put aside then
(`stale`) and purged in slices by later calls; until then an entry of `nodes` counts only if the
segment it leads to has that name.
"""

from kvlanes.indexer._radix_holder import Holder
from kvlanes.indexer._radix_node import Node, position
from kvlanes.indexer._validation import unpack


class SharedNames:
    """All shared names. Written by `SegmentTree` and the confirmed stores."""

    __slots__ = ("nodes", "stale")

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        # Segments and the names that they had, whose entries may still stand in `nodes`.
        self.stale: list[tuple[Node, bytes]] = []

    def find(self, holder: Holder, name: int) -> Node | None:
        """The segment in which this rank holds a block of that name. O(1)."""
        node = holder.alias.get(name)
        if node is None:
            node = self.nodes.get(name)
            if node is None or not node.named & holder.bit:
                return None
            if self.stale and not _has(node, name):
                return None
        return node

    def of(self, holder: Holder, node: Node) -> bytes:
        """This rank's names of a segment that it confirmed, packed."""
        if node.named & holder.bit:
            return node.names
        assert node.aliases is not None
        return node.aliases[holder.slot]

    def clash(self, holder: Holder, packed: bytes) -> bool:
        """Whether this rank has one of these names already, somewhere. O(names)."""
        names = unpack(packed)
        if not holder.alias.keys().isdisjoint(names):
            return True
        if self.nodes.keys().isdisjoint(names):
            return False
        return any(self.find(holder, name) is not None for name in names)

    def give(self, holder: Holder, node: Node, packed: bytes) -> None:
        """Name the blocks of a segment; the rank has no names there and none of these. O(names)."""
        if node.names == packed:
            node.named |= holder.bit
            return
        names = unpack(packed)
        if not node.named and self._free(names):
            node.names, node.named = packed, holder.bit
            target = self.nodes
        else:
            if node.aliases is None:
                node.aliases = {}
            node.aliases[holder.slot] = packed
            target = holder.alias
        for name in names:
            target[name] = node

    def lengthen(self, holder: Holder, node: Node, packed: bytes) -> bool:
        """Name blocks that are added to a segment's end, unless one of the names is in use."""
        names, nodes = unpack(packed), self.nodes
        if not nodes.keys().isdisjoint(names) and not self._free(names):
            return False
        if holder.alias and not holder.alias.keys().isdisjoint(names):
            return False
        node.names += packed
        for name in names:
            nodes[name] = node
        return True

    def _free(self, names: tuple[int, ...]) -> bool:
        """Whether no segment has one of these names; stale entries do not count."""
        nodes = self.nodes
        if nodes.keys().isdisjoint(names):
            return True
        return bool(self.stale) and not any(
            node.named and _has(node, name) for name in names if (node := nodes.get(name))
        )

    def abandon(self, holder: Holder, node: Node) -> None:
        """`take` of a rank that is about to lose all of its names. O(1)."""
        if node.named & holder.bit:
            node.named ^= holder.bit
            if not node.named:
                self.stale.append((node, node.names))
                node.names = b""
        elif node.aliases is not None:
            del node.aliases[holder.slot]
            node.aliases = node.aliases or None

    def purge(self, limit: int = 256) -> None:
        """Delete at most `limit` stale entries."""
        while self.stale and limit > 0:
            node, packed = self.stale.pop()
            if len(packed) > 8 * limit:
                self.stale.append((node, packed[8 * limit :]))
                packed = packed[: 8 * limit]
            limit -= len(packed) >> 3
            named = node.names
            for name in unpack(packed):
                # The name may be in use again, at this segment or at another.
                if self.nodes.get(name) is node and not (named and _has(node, name)):
                    del self.nodes[name]

    def take(self, holder: Holder, node: Node) -> None:
        """Take this rank's names of a segment away. O(1) while another rank shares them."""
        if node.named & holder.bit:
            node.named ^= holder.bit
            if not node.named:
                nodes = self.nodes
                for name in unpack(node.names):
                    del nodes[name]
                node.names = b""
            return
        assert node.aliases is not None
        for name in unpack(node.aliases.pop(holder.slot)):
            del holder.alias[name]
        if not node.aliases:
            node.aliases = None

    def split(self, head: Node, tail: Node, node: Node, holders: list[Holder]) -> None:
        """Share out the names of `node`, which is one of `head` and `tail`, over both."""
        cut, names, aliases = len(head.edge), node.names, node.aliases
        head.named = tail.named = node.named
        head.names, tail.names = names[:cut], names[cut:]
        if aliases is not None:
            head.aliases = {slot: packed[:cut] for slot, packed in aliases.items()}
            tail.aliases = {slot: packed[cut:] for slot, packed in aliases.items()}
        part = tail if node is head else head
        self._point(part, part, holders)

    def merge(self, head: Node, tail: Node, node: Node, holders: list[Holder]) -> None:
        """Give `node`, which is one of `head` and `tail`, the names of both."""
        gone = tail if node is head else head
        self._point(gone, node, holders)
        names = head.names + tail.names
        if head.aliases is not None and tail.aliases is not None:
            rest = tail.aliases
            node.aliases = {slot: packed + rest[slot] for slot, packed in head.aliases.items()}
        node.names = names
        gone.names, gone.aliases = b"", None

    def trim(self, node: Node, cut: int, holders: list[Holder]) -> None:
        """Take away all names behind `cut` bytes of a segment."""
        for name in unpack(node.names[cut:]):
            del self.nodes[name]
        node.names = node.names[:cut]
        for slot, packed in (node.aliases or {}).items():
            alias = holders[slot].alias
            for name in unpack(packed[cut:]):
                del alias[name]
        if node.aliases is not None:
            node.aliases = {slot: packed[:cut] for slot, packed in node.aliases.items()}

    def _point(self, part: Node, node: Node, holders: list[Holder]) -> None:
        nodes = self.nodes
        for name in unpack(part.names):
            nodes[name] = node
        if part.aliases is None:
            return
        for slot, packed in part.aliases.items():
            alias = holders[slot].alias
            for name in unpack(packed):
                alias[name] = node


def _has(node: Node, name: int) -> bool:
    return position(node.names, name.to_bytes(8, "big")) >= 0
