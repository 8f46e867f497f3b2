"""Budgets of the property tests: profile `ci` gates every change, `deep` runs on demand."""

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")

# Derandomised, so that a gate that was green stays green; `deep` is where new seeds are tried.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(PROFILE)


def budget(*, ci: int, deep: int) -> int:
    """The number of examples (or steps) that the chosen profile pays for."""
    return deep if PROFILE == "deep" else ci
