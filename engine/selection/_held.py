"""What a rank holds of a prompt, by tier, and what a slower tier's blocks are worth."""

import math
from typing import NamedTuple

import attrs


def non_negative(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    """An attrs validator: finite and not negative; refuses NaN too."""
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{attribute.name} must be finite and >= 0, got {value}")


class Held(NamedTuple):
    """How much of the prompt a rank holds, in blocks: each tier continues where faster ones end."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def blocks(self) -> int:
        return self.device + self.host + self.disk


@attrs.frozen(kw_only=True)
class TierWeights:
    """What a block outside the device is worth, as a share of one on the device.

    Attributes:
        host: A block in host memory.
        disk: A block on disk or in an external store.

    Raises:
        ValueError: A negative, infinite or NaN weight.
    """

    host: float = attrs.field(default=0.75, validator=non_negative)
    disk: float = attrs.field(default=0.25, validator=non_negative)

    def cached_blocks(self, held: Held) -> float:
        """Blocks of prefill that `held` saves. 2 + 0.5 * 3 + 0.25 * 9 is 5.75."""
        return held.device + self.host * held.host + self.disk * held.disk


class Worth(NamedTuple):
    """What sets one rank's blocks apart from those of most ranks.

    Attributes:
        tiers: Its own worth of slower tiers; `None` is the common one.
        doubted: Its coverage may be out of date: its events are out of contact or untrusted.
    """

    tiers: TierWeights | None = None
    doubted: bool = False


COMMON = Worth()
