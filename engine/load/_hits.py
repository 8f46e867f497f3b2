"""Predicted against measured cache hits: how far a worker's own account agrees with the index."""

import attrs

TRUSTED_AFTER = 20  # reports before a worker is judged
FAR_BELOW = 0.5  # measured / predicted


@attrs.define(eq=False)
class HitRecord:
    """Prompt tokens that the index expected to be cached, and those that were. Tokens."""

    reports: int = 0
    predicted_tokens: int = 0
    measured_tokens: int = 0

    def note(self, predicted_tokens: int, measured_tokens: int) -> None:
        self.reports += 1
        self.predicted_tokens += predicted_tokens
        self.measured_tokens += measured_tokens

    @property
    def far_below(self) -> bool:
        """Whether the worker finds much less than the index believes it holds."""
        return (
            self.reports >= TRUSTED_AFTER
            and self.measured_tokens < FAR_BELOW * self.predicted_tokens
        )
