"""Sources that dial: one connection for each data-parallel rank of a worker."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
from trio.lowlevel import enable_ki_protection

from kvlanes.engine.feeds._errors import SourceInvalid
from kvlanes.engine.feeds._feed import Feed
from kvlanes.engine.feeds._options import (
    CurveKeys,
    FollowOptions,
    Target,
    of_rank,
    require_zmq,
)
from kvlanes.engine.feeds._protocols import EventSink
from kvlanes.nursery import open_bare_nursery

MOST_RANKS = 256


def ranks_in_bounds(_: object, attribute: "attrs.Attribute[Any]", value: int) -> None:
    if not 1 <= value <= MOST_RANKS:
        raise SourceInvalid(f"{attribute.name} must be 1..{MOST_RANKS}, got {value}")


def feeds_of(sink: EventSink, endpoints: Sequence[str]) -> list[Feed]:
    """One feed for each rank, shown to the sink.

    Raises:
        SourceInvalid: The worker has fewer ranks.
    """
    feeds = []
    for number, endpoint in enumerate(endpoints):
        rank = sink.rank(number)
        if rank is None:
            raise SourceInvalid(
                f"the source follows {len(endpoints)} ranks, the worker has {number}"
            )
        feeds.append(Feed(endpoint, rank))
    for feed in feeds:
        sink.watch(feed)
    return feeds


@attrs.frozen
class VllmEvents:
    """Follows a vLLM engine that binds its publisher, all of its data-parallel ranks.

    The engine must be started with its events on, for example
    `--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq",
    "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`.

    Attributes:
        endpoint: The publisher of rank 0, `tcp://host:port` or `ipc://path`; rank n is at port + n.
        replay: The replay socket of rank 0. Without it every outage empties the coverage.
        ranks: Data-parallel ranks to follow, at most 256.
        topic: Prefix of the topics to receive; empty receives all.
        options: How the streams are followed.
        curve: Keys, if the sockets are encrypted.
        limit_bytes: Longest frame; a longer one ends the connection.
        connect_seconds: How long a connection may take to stand.

    Raises:
        SourceInvalid: Settings out of range, or endpoints that cannot be dialled.
        FeedsExtraMissing: The extra `zmq` is not installed.
    """

    endpoint: str
    replay: str | None = None
    ranks: int = attrs.field(default=1, kw_only=True, validator=ranks_in_bounds)
    topic: str = attrs.field(default="", kw_only=True)
    options: FollowOptions = attrs.field(factory=FollowOptions, kw_only=True)
    curve: CurveKeys | None = attrs.field(default=None, kw_only=True)
    limit_bytes: int = attrs.field(default=64 * 2**20, kw_only=True)
    connect_seconds: float = attrs.field(default=10.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        require_zmq()
        for endpoint in (self.endpoint, self.replay):
            if endpoint is not None:
                of_rank(endpoint, self.ranks - 1)

    def target(self, number: int) -> Target:
        """Where one rank is."""
        return Target(
            of_rank(self.endpoint, number),
            self.replay and of_rank(self.replay, number),
            self.topic,
            self.curve,
            self.limit_bytes,
            self.connect_seconds,
        )

    @enable_ki_protection
    async def run(self, sink: EventSink) -> None:
        """Follow all ranks until cancelled; survives whatever the engine does.

        Raises:
            SourceInvalid: The worker has fewer ranks than this source follows.
        """
        from kvlanes.engine.feeds._dial import connected  # needs the extra
        from kvlanes.engine.feeds._follow import Follower
        from kvlanes.engine.feeds._socket import zmq_context
        from kvlanes.engine.feeds._supervise import supervise

        feeds = feeds_of(sink, [of_rank(self.endpoint, number) for number in range(self.ranks)])
        with zmq_context() as context:
            async with open_bare_nursery() as nursery:
                for number, feed in enumerate(feeds):
                    follower = Follower(sink, feed, self.options, set(range(self.ranks)) - {number})
                    connect = partial(connected, context, self.target(number), nursery)
                    nursery.start_soon(supervise, follower, connect)


SglangEvents: TypeAlias = VllmEvents
"""SGLang's publisher speaks the same wire: `--kv-events-config '{"publisher": "zmq",
"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`."""
