"""The segments of a compressed prefix tree.

A node is a *segment*: a run of blocks that always go together, as packed block hashes (8 bytes
each), so that a run of any length is compared with one `memcmp`. Children are found by their first
block. A segment is as long as it can be: whatever makes two of its blocks differ (another rank
stored only the first, a lease was refreshed half way, a branch begins) splits it, and it is merged
again when the difference has gone.

Who holds a segment is an integer with one bit a rank (`held`). Ranks that confirmed it gave each
of its blocks an engine hash, its *name*. The first list of names is kept in the segment and shared
by all ranks that agree with it (`names`, `named`); a rank that disagrees has a list of its own
(`aliases`).
"""


class Node:
    """One segment. Only `SegmentTree` and its stores write here."""

    __slots__ = ("aliases", "edge", "held", "kids", "named", "names", "only", "parent")

    def __init__(self, edge: bytes, held: int, parent: "Node | None") -> None:
        self.edge = edge
        self.held = held
        # An only child stands in `only`, two or more in `kids`: a dictionary for each of the many
        # nodes with one child would cost 232 bytes. The root, wide as a rule, has `kids` always.
        self.only: Node | None = None
        self.kids = NO_KIDS
        # None for the root and for a node that was cut or merged away.
        self.parent = parent
        self.names = b""
        self.named = 0
        self.aliases: dict[int, bytes] | None = None

    def __len__(self) -> int:
        return len(self.edge) >> 3

    @property
    def children(self) -> "list[Node]":
        return [self.only] if self.only is not None else list(self.kids.values())

    def child(self, blocks: bytes, at: int) -> "Node | None":
        """The child that starts with the block at byte `at`."""
        only = self.only
        if only is None:
            return self.kids.get(blocks[at : at + 8])
        return only if only.edge.startswith(blocks[at : at + 8]) and at < len(blocks) else None

    def add(self, child: "Node") -> None:
        if self.only is not None:
            self.kids = {self.only.edge[:8]: self.only, child.edge[:8]: child}
            self.only = None
        elif self.kids or self.parent is None:
            self.kids[child.edge[:8]] = child
        else:
            self.only = child
        child.parent = self

    def discard(self, child: "Node") -> None:
        child.parent = None
        if self.only is child:
            self.only = None
            return
        del self.kids[child.edge[:8]]
        if len(self.kids) == 1 and self.parent is not None:
            (self.only,) = self.kids.values()
            self.kids = NO_KIDS

    def replace(self, child: "Node", other: "Node") -> None:
        """Put `other`, which starts with the same block, in the place of `child`."""
        if self.only is child:
            self.only = other
        else:
            self.kids[other.edge[:8]] = other
        other.parent = self

    def take_children(self, other: "Node") -> None:
        """Become the parent of all children of `other`."""
        self.only, self.kids = other.only, other.kids
        other.only, other.kids = None, NO_KIDS
        for child in self.children:
            child.parent = self


# Shared by all nodes without `kids`; never written, which `RadixIndex.check` asserts.
NO_KIDS: dict[bytes, Node] = {}


def common(edge: bytes, blocks: bytes, at: int) -> int:
    """Bytes of `edge` that `blocks` repeats from `at` on; a multiple of 8.

    The highest bit in which two long integers differ names the block where they part. Making
    these costs more than `memcmp` does, hence halving comes first where more than 64 blocks are
    left: up to 40 % faster than halving alone.

    Cost: O(log blocks) comparisons. A loop over blocks costs 20 times more at 128 blocks.
    """
    low, high = 0, min(len(edge), len(blocks) - at)
    while high - low > 512:
        middle = (low + high) >> 4 << 3
        if blocks.startswith(edge[low:middle], at + low):
            low = middle
        else:
            high = middle
    number = int.from_bytes
    differ = number(edge[low:high], "big") ^ number(blocks[at + low : at + high], "big")
    return high - ((differ.bit_length() + 63) >> 6 << 3)


def position(packed: bytes, value: bytes) -> int:
    """The byte at which one packed value stands among others, -1 when it does not."""
    at = packed.find(value)
    while at > 0 and at & 7:
        at = packed.find(value, at + 1)
    return at
