"""How streams are followed and reached: plain values, checked when they are made."""

import importlib.util
from typing import Any, Literal, TypeAlias

import attrs

from kvlanes.engine.feeds._errors import FeedsExtraMissing, SourceInvalid

Counting: TypeAlias = Literal["refs", "set"]


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if not value > 0:  # also refuses NaN
        raise SourceInvalid(f"{attribute.name} must be > 0, got {value}")


def _z85(_: object, attribute: "attrs.Attribute[Any]", value: bytes | None) -> None:
    if value is not None and (not isinstance(value, bytes) or len(value) != 40):
        raise SourceInvalid(f"{attribute.name} must be 40 bytes of Z85")  # the key is not shown


def _counting(_: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if value not in ("refs", "set"):
        raise SourceInvalid(f"{attribute.name} must be 'refs' or 'set', got {value!r}")


@attrs.frozen(kw_only=True)
class FollowOptions:
    """How a stream is followed; times in seconds.

    Attributes:
        counting: `refs` counts how often a block was announced. `set` is for engines that repeat
            stores without repeating removals (a full report mode): the first removal counts.
        group: The KV-cache group to follow; `None` finds it.
        idle_seconds: Silence after which the publisher is asked for what may have been lost.
        replay_idle_seconds: Silence after which a replay counts as truncated.
        replay_seconds: Longest time for all attempts of one replay.
        replay_pause_seconds: How long a publisher that answered no replay is not asked again.
        limit_hashes: Hashes that one event may name.

    Raises:
        SourceInvalid: A value out of range.
    """

    counting: Counting = attrs.field(default="refs", validator=_counting)
    group: int | None = None
    idle_seconds: float = attrs.field(default=5.0, validator=_positive)
    replay_idle_seconds: float = attrs.field(default=2.0, validator=_positive)
    replay_seconds: float = attrs.field(default=120.0, validator=_positive)
    replay_pause_seconds: float = attrs.field(default=30.0, validator=_positive)
    limit_hashes: int = attrs.field(default=65_536, validator=_positive)


@attrs.frozen(repr=False)
class CurveKeys:
    """CURVE keys in Z85, 40 characters each; never shown.

    Attributes:
        public_key: Our own public key.
        secret_key: Our own secret key.
        server_key: The publisher's public key, when we dial it; `None` when it dials us.

    Raises:
        SourceInvalid: A key of another length.
    """

    public_key: bytes = attrs.field(validator=_z85)
    secret_key: bytes = attrs.field(validator=_z85)
    server_key: bytes | None = attrs.field(default=None, validator=_z85)


@attrs.frozen
class Target:
    """One publisher.

    Attributes:
        endpoint: Its PUB socket.
        replay: Its ROUTER socket, if past batches can be asked for.
        topic: Prefix of the topics to receive.
        curve: Keys, if the sockets are encrypted.
        limit_bytes: Longest frame; a longer one ends the connection.
        connect_seconds: How long a connection may take to stand.
    """

    endpoint: str
    replay: str | None
    topic: str
    curve: CurveKeys | None
    limit_bytes: int
    connect_seconds: float


def require_zmq() -> None:
    """Refuse now what would fail later in a background task.

    Raises:
        FeedsExtraMissing: pyzmq or msgspec is not installed.
    """
    missing = [name for name in ("zmq", "msgspec") if importlib.util.find_spec(name) is None]
    if missing:
        raise FeedsExtraMissing(" and ".join(missing))


def of_rank(endpoint: str, dp_rank: int) -> str:
    """The endpoint of one data-parallel rank, as engines derive it from that of rank 0.

    Raises:
        SourceInvalid: Not an endpoint that can be dialled.
    """
    scheme, separator, rest = endpoint.partition("://")
    if scheme not in ("tcp", "ipc", "inproc") or not separator or not rest:
        raise SourceInvalid(
            f"an endpoint looks like tcp://host:port or ipc://path, got {endpoint!r}"
        )
    if scheme != "tcp":
        return endpoint if dp_rank == 0 else f"{endpoint}_dp{dp_rank}"
    host, _, port = rest.rpartition(":")
    if host in ("", "*") or not port.isdigit() or not 0 < int(port) + dp_rank < 65_536:
        raise SourceInvalid(f"{endpoint!r} names no host and port to dial for rank {dp_rank}")
    return f"tcp://{host}:{int(port) + dp_rank}"
