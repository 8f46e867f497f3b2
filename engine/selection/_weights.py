"""How much each kind of work counts when candidates are compared."""

import attrs

from kvlanes.engine.selection._held import COMMON, Held, TierWeights, Worth, non_negative


@attrs.frozen(kw_only=True)
class Weights:
    """The terms of the cost, which is measured in blocks and lower is better.

    cost = prefill * max(0, (queued prefill tokens + prompt tokens) / block_size - credit)
           + decode blocks + request * active requests

    where credit = overlap * device blocks + host * host blocks + disk * disk blocks, times
    `doubted` for a rank whose coverage is in doubt, and decode blocks are those active on the
    rank plus those that this prompt would add.

    Source: the reference router's default policy, `cost` without decay and taints; the doubt is
    ours.

    Attributes:
        overlap: Worth of a block held on the device.
        tiers: Worth of blocks held elsewhere, where a worker does not say otherwise.
        doubted: Share of their worth that blocks keep while the events that told of them are out
            of contact or untrusted, so that some of them may be gone: 0 to ignore them, 1 to
            take them for granted.
        prefill: Worth of a block that must be prefilled.
        request: Cost of each request already running.
        temperature: 0 takes the cheapest; above, worse candidates win now and then.

    Raises:
        ValueError: A negative, infinite or NaN weight, or `doubted` above 1.
    """

    overlap: float = attrs.field(default=1.0, validator=non_negative)
    tiers: TierWeights = attrs.field(
        factory=TierWeights, validator=attrs.validators.instance_of(TierWeights)
    )
    doubted: float = attrs.field(default=0.5, validator=[non_negative, attrs.validators.le(1.0)])
    prefill: float = attrs.field(default=1.0, validator=non_negative)
    request: float = attrs.field(default=0.0, validator=non_negative)
    temperature: float = attrs.field(default=0.0, validator=non_negative)

    def load_cost(
        self, block_size: int, prefill_tokens: int, decode_blocks: int, requests: int
    ) -> float:
        """The part of the cost that a rank's running work makes, whatever comes next."""
        return self.prefill * prefill_tokens / block_size + decode_blocks + self.request * requests

    def credit(self, held: Held, worth: Worth = COMMON) -> float:
        """What the blocks that a rank holds are worth, in blocks of prefill saved."""
        slower = worth.tiers or self.tiers
        credit = self.overlap * held.device + slower.host * held.host + slower.disk * held.disk
        return self.doubted * credit if worth.doubted else credit
