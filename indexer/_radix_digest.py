"""A number that is equal where confirmed coverage is, whatever the history that led there."""

from xxhash import xxh3_64_intdigest

from kvlanes.indexer._identity import sequence_hashes
from kvlanes.indexer._names import continued
from kvlanes.indexer._radix_holder import bits
from kvlanes.indexer._radix_node import Node, unpack
from kvlanes.indexer._radix_tree import SegmentTree


def digest(tree: SegmentTree) -> str:
    """Sum of a hash of each (rank, place, name), modulo 2**64, in 16 hex digits.

    A place is the published sequence hash of the whole prefix. A sum has no order, so neither the
    order of events nor the cuts between segments show. Leases are left out: they are one
    router's guesses. O(confirmed blocks of all ranks).
    """
    keys = {h.slot: f"{h.rank.worker_id}\0{h.rank.dp_rank}\0".encode() for h in tree.ranks.values()}
    total = 0
    queue: list[tuple[Node, int | None]] = [(child, None) for child in tree.root.children]
    while queue:
        node, before = queue.pop()
        places = sequence_hashes(node.edge) if before is None else continued(before, node.edge)
        lists = dict.fromkeys(bits(node.named), node.names) | (node.aliases or {})
        for slot, packed in lists.items():
            for place, name in zip(places, unpack(packed)):
                row = place.to_bytes(8, "big") + name.to_bytes(8, "big")
                total += xxh3_64_intdigest(keys[slot] + row)
        queue += [(child, places[-1]) for child in node.children]
    return f"{total % 2**64:016x}"
