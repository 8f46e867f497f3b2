"""Leases: a whole chain from the root held until one deadline, and how that ends."""

from functools import lru_cache

from kvlanes.indexer._deadlines import NEVER
from kvlanes.indexer._mutations import Applied
from kvlanes.indexer._radix_holder import Holder
from kvlanes.indexer._radix_node import common
from kvlanes.indexer._radix_timers import CONFIRMED
from kvlanes.indexer._radix_tree import SegmentTree


def lease_chain(tree: SegmentTree, holder: Holder, blocks: bytes, deadline: float) -> Applied:
    """Hold `blocks` at least until `deadline`; what is confirmed stays confirmed.

    Cost: O(segments on the path), plus O(holders) for each one that has to be split. One loop and
    over 40 lines, because this is every routing decision: half of the time of a refresh of 128
    blocks is the comparison of the chain, and a call a segment would cost as much again.
    """
    bit, segments = holder.bit, holder.segments
    node = tree.root
    child = node.kids.get(blocks[:8])
    end = len(blocks)
    if child is not None and child.edge == blocks and child.only is None:
        # The refresh of a whole chain, or of a prompt that another rank computed.
        before = segments.get(child)
        if before is None:
            holder.lease(child, deadline)
            return counted(end >> 3, 0)
        if deadline > before:
            if deadline < NEVER:
                segments[child] = deadline
            else:
                holder.extend(child, deadline)
        return counted(0, end >> 3)
    at = applied = 0
    while True:
        if child is None:
            child = tree.grow(node, blocks[at:])
            size, before = end - at, None
        else:
            size, before = len(child.edge), segments.get(child)
            if not blocks.startswith(child.edge, at):
                size = common(child.edge, blocks, at)
                if before is None or deadline > before or at + size < end:
                    child = tree.split(child, size)
        if before is None:
            applied += size
            child.held |= bit
            segments[child] = deadline
            if deadline < NEVER:
                holder.timers.arm(child, deadline)
        elif deadline > before:
            if deadline < NEVER:
                segments[child] = deadline
            else:
                holder.extend(child, deadline)
        if node.only is child and node.held == child.held and tree.alike(node):
            child = tree.merge(node)
        at += size
        node = child
        if at >= end:
            break
        child = node.only
        if child is None:
            child = node.kids.get(blocks[at : at + 8])
        elif not child.edge.startswith(blocks[at : at + 8]):
            child = None
    holder.blocks += applied >> 3
    if node.only is not None and tree.alike(node):
        tree.merge(node)
    return counted(applied >> 3, (end - applied) >> 3)


# Results are values, so equal ones may be one object: 60 ns in place of 200 ns of construction.
counted = lru_cache(maxsize=4096)(Applied)


def expire(tree: SegmentTree, holder: Holder, now: float, limit: int) -> tuple[int, int]:
    """End at most `limit` due leases of one rank: entries looked at, blocks that ended.

    Cost: O(entries), plus O(holders) where a segment can be merged afterwards.
    """
    timers, segments = holder.timers, holder.segments
    ticks, buckets = timers.ticks, timers.buckets
    room, before = limit, holder.blocks
    while room and ticks and ticks[0] * timers.tick_seconds <= now:
        bucket = buckets[ticks[0]]
        while bucket and room:
            node = bucket.pop()
            room -= 1
            deadline = segments.get(node, CONFIRMED)
            # The authorisation: the number that stands there now, not the one that was armed.
            if deadline <= now:
                timers.live -= 1
                tree.lapse(holder, node)
            elif deadline < NEVER:
                timers.arm_again(node, deadline, now)
            else:
                timers.stale -= 1
        if not bucket:
            timers.drop_first(bucket)
    return limit - room, before - holder.blocks
