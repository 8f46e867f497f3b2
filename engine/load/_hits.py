"""Predicted against measured cache hits: how far a worker's own account agrees with the index."""

import attrs

TRUSTED_AFTER = 20  # reports before a worker is judged
JUDGED_OVER = 200  # reports after which older ones count half, so that a change shows
FAR_BELOW = 0.5  # measured / predicted


@attrs.define(eq=False)
class HitRecord:
    """Prompt tokens that the index expected to be cached, and those that were. Tokens.

    Attributes:
        predicted_tokens: Expected, over all reports.
        measured_tokens: Found, over all reports.
        reports: How many the judgement rests on.
    """

    predicted_tokens: int = 0
    measured_tokens: int = 0
    reports: int = 0
    _predicted: float = 0.0  # the same, older reports counting less
    _measured: float = 0.0

    def note(self, predicted_tokens: int, measured_tokens: int) -> None:
        """Add one request's figures. O(1)."""
        self.predicted_tokens += predicted_tokens
        self.measured_tokens += measured_tokens
        self.reports += 1
        self._predicted += predicted_tokens
        self._measured += measured_tokens
        if self.reports >= JUDGED_OVER:
            self.reports //= 2
            self._predicted /= 2
            self._measured /= 2

    @property
    def share_found(self) -> float:
        """Measured over predicted tokens, of late; 1 when nothing was predicted."""
        return self._measured / self._predicted if self._predicted else 1.0

    @property
    def far_below(self) -> bool:
        """Whether the worker finds much less than the index believes it holds."""
        return self.reports >= TRUSTED_AFTER and self.share_found < FAR_BELOW
