"""What a gate tells about itself."""

from typing import Literal

import attrs

from kvlanes.admission._permit import Ask, Grant, Holding

Doing = Literal["waiting", "admitted", "preflight", "dispatched", "overrun"]


@attrs.frozen
class Presence:
    """One request at the gate.

    Attributes:
        request_id: As it was admitted.
        group: As it was admitted.
        weight: What it holds, or waits for.
        since: Trio time of its admission, or of its arrival in the queue.
        doing: `("waiting",)`, or one word for each live hold in the order they were taken.
            `overrun` is a hold that outlived the deadline it was taken with.
    """

    request_id: str | None
    group: str | None
    weight: int
    since: float
    doing: tuple[Doing, ...]


@attrs.frozen
class GateStatistics:
    """A snapshot of a gate; `held + free == total`, always.

    Attributes:
        total: The weight that may be held at once.
        held: The weight that is held.
        waiting: How many requests are queued.
        threads: How many blocking calls run, abandoned ones included.
        waiting_for_thread: How many blocking calls wait for a slot.
        requests: Who holds in order of admission, then who waits in order of service.
    """

    total: int
    held: int
    waiting: int
    threads: int
    waiting_for_thread: int
    requests: tuple[Presence, ...]

    @property
    def free(self) -> int:
        return self.total - self.held


def _doing(holding: Holding, now: float) -> Doing:
    return "overrun" if holding.deadline <= now else holding.activity


def holding_presence(grant: Grant, now: float) -> Presence:
    holdings = tuple(grant.holds.values())
    doing = tuple(_doing(holding, now) for holding in holdings)
    ask = grant.ask
    return Presence(ask.request_id, ask.group, ask.weight, grant.since, doing)


def waiting_presence(ask: Ask, since: float) -> Presence:
    return Presence(ask.request_id, ask.group, ask.weight, since, ("waiting",))
