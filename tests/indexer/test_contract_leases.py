"""The lease part of the contract, for every backend that keeps leases."""

import pytest

from tests.indexer.backends import LEASED
from tests.indexer.contract import MakeIndex
from tests.indexer.contract_guesses import GuessContract as TestGuesses
from tests.indexer.contract_leases import LeaseContract as TestLeases

__all__ = ["TestGuesses", "TestLeases"]


@pytest.fixture(params=LEASED)
def make_index(request: pytest.FixtureRequest) -> MakeIndex:
    return LEASED[request.param]
