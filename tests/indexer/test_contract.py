"""One contract, every backend: the oracle, ours, and one that a user might write."""

import pytest

from tests.indexer.backends import LEASED, WITHOUT_LEASES
from tests.indexer.contract import CoverageContract as TestCoverage
from tests.indexer.contract import MakeIndex
from tests.indexer.contract_long import LongContract as TestLong
from tests.indexer.contract_ranks import NameContract as TestNames
from tests.indexer.contract_ranks import OverlapContract as TestOverlap
from tests.indexer.contract_ranks import RankContract as TestRanks

__all__ = ["TestCoverage", "TestLong", "TestNames", "TestOverlap", "TestRanks"]

BACKENDS = LEASED | WITHOUT_LEASES


@pytest.fixture(params=BACKENDS)
def make_index(request: pytest.FixtureRequest) -> MakeIndex:
    return BACKENDS[request.param]
