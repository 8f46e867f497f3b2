"""Tests of the index: contract, state machines, scenarios."""

import pytest

pytest.register_assert_rewrite(
    "tests.indexer.contract", "tests.indexer.contract_leases", "tests.indexer.machines"
)
