"""What a `Lease` takes, at the moment it is made."""

from decimal import Decimal
from typing import Any

import pytest

from kvlanes.indexer import Lease


@pytest.mark.parametrize("seconds", [-1.0, -0.001, float("nan")])
def test_lease_refuses_negative_and_nan(seconds: float) -> None:
    with pytest.raises(ValueError, match="ttl_seconds must be >= 0"):
        Lease(seconds)
    with pytest.raises(ValueError, match="age_seconds must be >= 0"):
        Lease(1.0, seconds)


def test_lease_takes_zero_and_infinity_but_a_finite_age() -> None:
    assert Lease(0.0).ttl_seconds == 0.0
    assert Lease(float("inf")).ttl_seconds == float("inf")
    assert Lease().ttl_seconds is None
    with pytest.raises(ValueError, match="age_seconds must be finite"):
        Lease(1.0, float("inf"))


@pytest.mark.parametrize("seconds", ["5", Decimal(5), [5]], ids=str)
def test_seconds_that_are_no_number_are_refused(seconds: Any) -> None:
    """At once, not by whatever index adds them up."""
    with pytest.raises(TypeError, match="ttl_seconds must be a number"):
        Lease(seconds)
    with pytest.raises(TypeError, match="age_seconds must be a number"):
        Lease(1.0, age_seconds=seconds)


def test_seconds_that_no_float_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="ttl_seconds must be >= 0 and fit in a float, got 1000"):
        Lease(10**400)
    with pytest.raises(ValueError, match="age_seconds must be >= 0 and fit in a float, got 1000"):
        Lease(1.0, age_seconds=10**400)
