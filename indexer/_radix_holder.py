"""What one rank holds, and the table that gives each rank its bit."""

from kvlanes.indexer._deadlines import NEVER
from kvlanes.indexer._mutations import Rank
from kvlanes.indexer._radix_node import Node
from kvlanes.indexer._radix_timers import CONFIRMED, SLACK, Timers


class Holder:
    """One rank in the tree. Written by `SegmentTree` and its stores only.

    `segments` is three things at once: the list of what the rank holds (a clear costs O(segments)),
    the deadline of each of its leases, and the authorisation of every expiry.
    """

    __slots__ = ("alias", "bit", "blocks", "confirmed", "rank", "segments", "slot", "timers")

    def __init__(self, rank: Rank, slot: int, tick_seconds: float) -> None:
        self.rank = rank
        self.slot = slot
        self.bit = 1 << slot
        self.timers = Timers(tick_seconds)
        self.reset()

    def reset(self) -> None:
        """Hold nothing, all timers included; whoever calls has cleared the bit from the nodes."""
        self.segments: dict[Node, float] = {}
        self.timers = Timers(self.timers.tick_seconds)
        # This rank's own names that differ from the shared ones.
        self.alias: dict[int, Node] = {}
        self.blocks = 0
        self.confirmed = 0  # blocks of these that are not leased

    def lease(self, node: Node, deadline: float) -> None:
        """Start a lease of a segment that the rank did not hold."""
        node.held |= self.bit
        self.segments[node] = deadline
        self.blocks += len(node.edge) >> 3
        if deadline < NEVER:
            self.timers.arm(node, deadline)

    def extend(self, node: Node, deadline: float) -> None:
        """Overwrite a deadline by a later one; the armed entry stays where it is."""
        if deadline < NEVER:
            self.segments[node] = deadline
        elif self.segments[node] < NEVER:
            self.segments[node] = deadline
            self.retire()

    def confirm(self, node: Node) -> None:
        """Hold a segment without a lease, whatever stood there before."""
        before = self.segments.get(node)
        self.segments[node] = CONFIRMED
        self.confirmed += len(node.edge) >> 3
        if before is None:
            node.held |= self.bit
            self.blocks += len(node.edge) >> 3
        elif before < NEVER:
            self.retire()

    def forget(self, node: Node) -> bool:
        """Hold a segment no more; whether it was confirmed, and so has names to take away."""
        deadline = self.segments.pop(node)
        node.held ^= self.bit
        self.blocks -= len(node.edge) >> 3
        if deadline == CONFIRMED:
            self.confirmed -= len(node.edge) >> 3
            return True
        if deadline < NEVER:
            self.retire()
        return False

    def lengthen(self, blocks: int) -> None:
        """A confirmed segment got so many blocks more."""
        self.blocks += blocks
        self.confirmed += blocks

    def shorten(self, node: Node, lost: int) -> None:
        """A segment loses its last `lost` blocks."""
        self.blocks -= lost
        if self.segments[node] == CONFIRMED:
            self.confirmed -= lost

    def split(self, node: Node, part: Node) -> None:
        """`part` was split off `node`: the same state, with an entry of its own."""
        deadline = self.segments[node]
        self.segments[part] = deadline
        if deadline < NEVER:
            self.timers.arm(part, deadline)

    def merge(self, part: Node) -> None:
        """`part` went up in a segment of the same state."""
        if self.segments.pop(part) < NEVER:
            self.retire()

    def retire(self) -> None:
        """One lease less to end by itself: its entry is stale from now on."""
        timers = self.timers
        timers.live -= 1
        timers.stale += 1
        if timers.stale > timers.live + SLACK:
            timers.compact(self.segments)


class SlotTable:
    """Which rank owns which bit. Grows in place; a slot is given to another rank only in a copy.

    An `Overlap` keeps the table it was taken with. A bit that its masks know keeps its meaning in
    that table for ever, and ranks that came later have bits that its masks do not know.
    """

    __slots__ = ("bits", "members", "ranks", "slots")

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.bits: list[int] = []
        self.slots: dict[Rank, int] = {}
        # Memo of `expand`; bounded, since masks are many.
        self.members: dict[int, dict[Rank, None]] = {}

    def append(self, rank: Rank) -> int:
        slot = len(self.ranks)
        self.ranks.append(rank)
        self.bits.append(1 << slot)
        self.slots[rank] = slot
        return slot

    def with_slot(self, slot: int, rank: Rank) -> "SlotTable":
        """A copy in which `rank` owns `slot`. O(ranks)."""
        table = SlotTable()
        table.ranks = list(self.ranks)
        table.bits = self.bits
        table.slots = dict(self.slots)
        former = table.ranks[slot]
        if table.slots.get(former) == slot:
            del table.slots[former]
        table.ranks[slot] = rank
        table.slots[rank] = slot
        return table

    def expand(self, mask: int) -> dict[Rank, None]:
        """The ranks of a mask, as keys: `dict.fromkeys` on them need not hash them again."""
        found = self.members.get(mask)
        if found is None:
            found = dict.fromkeys([self.ranks[slot] for slot in bits(mask)])
            if len(self.members) >= 128:
                self.members.clear()
            self.members[mask] = found
        return found


def bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, ascending. O(set bits).

    Taken in pieces that fit in one machine word; on the whole number each step would cost O(width).
    """
    found: list[int] = []
    base = 0
    while mask:
        low = mask & 0xFFFFFFFFFFFFFF
        while low:
            bit = low & -low
            found.append(base + bit.bit_length() - 1)
            low ^= bit
        mask >>= 56
        base += 56
    return found
