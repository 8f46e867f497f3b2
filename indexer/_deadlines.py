"""When leases end: one rule about their deadlines, for every backend."""

import math

from kvlanes.indexer._errors import MutationInvalid
from kvlanes.indexer._mutations import Lease

# Beyond the seconds of any clock: only a clear, a drop or a confirming store ends such a lease.
NEVER = 2.0**53
SHORTEST_TICK = 1e-9  # a deadline below `NEVER` has a number in ticks of this length


def clamped(deadline: float, now: float) -> float:
    """A deadline that every clock and every timer can hold: `now` at the least, else `NEVER`.

    `RadixIndex.apply` asks only for one that is not between the two; that is this rule, inlined.

    Raises:
        MutationInvalid: It is no number, or `now` is none.
    """
    if not -math.inf < max(deadline, now) or math.isnan(deadline):
        raise MutationInvalid(f"no deadline at {now}, got {deadline}")
    return min(max(deadline, now), NEVER)


def deadline_of(lease: Lease, now: float) -> float:
    """When a lease ends that is granted now.

    Raises:
        MutationInvalid: Its TTL was left open and no lane filled it in, or `now` is no number.
    """
    if lease.ttl_seconds is None:
        raise MutationInvalid(f"the TTL of {lease} was left open and no lane filled it in")
    return clamped(now + lease.ttl_seconds - lease.age_seconds, now)


def require_now(now: float) -> None:
    """Refuse a moment that no deadline can be compared with."""
    if math.isnan(now):
        raise ValueError(f"now must be a number, got {now}")


def require_tick(tick_seconds: float) -> None:
    """Refuse a length of ticks that no deadline can be counted in."""
    if not SHORTEST_TICK <= tick_seconds < math.inf:
        raise ValueError(
            f"tick_seconds must be at least {SHORTEST_TICK} and finite, got {tick_seconds}"
        )
