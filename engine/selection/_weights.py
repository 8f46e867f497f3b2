"""How much each kind of work counts when candidates are compared."""

import math

import attrs


def _non_negative(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    if not 0.0 <= value < math.inf:  # also refuses NaN
        raise ValueError(f"{attribute.name} must be finite and >= 0, got {value}")


@attrs.frozen(kw_only=True)
class Weights:
    """The terms of the cost, which is measured in blocks and lower is better.

    cost = prefill * max(0, (queued prefill tokens + prompt tokens) / block_size - credit)
           + decode blocks + request * active requests

    where credit = overlap * device blocks + host * host blocks + disk * disk blocks, and decode
    blocks are those active on the rank plus those that this prompt would add.

    Source: the reference router's default policy, `cost` without decay and taints.

    Attributes:
        overlap: Worth of a block held on the device.
        host: Worth of a further block in host memory.
        disk: Worth of a further block on disk or in an external store.
        prefill: Worth of a block that must be prefilled.
        request: Cost of each request already running.
        temperature: 0 takes the cheapest; above, worse candidates win now and then.

    Raises:
        ValueError: A negative, infinite or NaN weight.
    """

    overlap: float = attrs.field(default=1.0, validator=_non_negative)
    host: float = attrs.field(default=0.75, validator=_non_negative)
    disk: float = attrs.field(default=0.25, validator=_non_negative)
    prefill: float = attrs.field(default=1.0, validator=_non_negative)
    request: float = attrs.field(default=0.0, validator=_non_negative)
    temperature: float = attrs.field(default=0.0, validator=_non_negative)

    def load_cost(
        self, block_size: int, prefill_tokens: int, decode_blocks: int, requests: int
    ) -> float:
        """The part of the cost that a rank's running work makes, whatever comes next."""
        return self.prefill * prefill_tokens / block_size + decode_blocks + self.request * requests

    def credit(self, device: int, host: int, disk: int) -> float:
        """What cached blocks are worth, in blocks of prefill saved."""
        return self.overlap * device + self.host * host + self.disk * disk
