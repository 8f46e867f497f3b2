"""What tests of dispatch have in common."""

import logging
from collections.abc import Iterator

import pytest

from tests.nursery.dispatched import logged


@pytest.fixture
def nothing_is_logged_unheard(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The test says what it expects in the log; what is left over fails it."""
    caplog.set_level(logging.INFO, "kvlanes")
    yield
    assert logged(caplog) == []
