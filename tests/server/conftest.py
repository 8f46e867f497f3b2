"""The process that the tests of the contracts share."""

from collections.abc import Iterator

import pytest

from tests.server.process import COMMAND, MORE, Outside, outside


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """Started once, as a black-box check starts it."""
    with outside(tmp_path_factory.mktemp("outside") / "log", *COMMAND, *MORE) as found:
        yield found
