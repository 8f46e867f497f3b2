"""The dump part of the contract, for every backend that can be dumped."""

import pytest

from tests.indexer.backends import DUMPED
from tests.indexer.contract_dump import DumpContract as TestDump
from tests.indexer.contract_dump import MakeDumpedIndex

__all__ = ["TestDump"]


@pytest.fixture(params=DUMPED)
def make_dumped(request: pytest.FixtureRequest) -> MakeDumpedIndex:
    return DUMPED[request.param]
