"""One contract, every backend: the oracle, ours, and one that a user might write."""

import pytest

from kvlanes.indexer import LeaseTable, PositionalIndex
from tests.indexer.contract import CoverageContract as TestCoverage
from tests.indexer.contract import MakeIndex
from tests.indexer.oracle import Oracle

__all__ = ["TestCoverage"]

BACKENDS: dict[str, MakeIndex] = {
    "oracle": lambda: Oracle(16),
    "positional": lambda: PositionalIndex(16),
    "leased positional": lambda: LeaseTable(PositionalIndex(16)),
}


@pytest.fixture(params=BACKENDS)
def make_index(request: pytest.FixtureRequest) -> MakeIndex:
    return BACKENDS[request.param]
