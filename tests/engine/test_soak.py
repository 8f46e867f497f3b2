"""A small soak with every change; the large one is `python -m tests.engine.soak`."""

import logging

import pytest

from tests.engine.soak import soak


def test_a_small_soak_ends_at_zero_with_one_digest(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    first, second = soak(2000, 7), soak(2000, 7)
    assert first.digest == second.digest
    assert first.told["answered"] > 1000
    assert soak(500, 8).digest != soak(500, 9).digest
