"""Tests of the index: contract, state machines, scenarios."""

import pytest

CONTRACT = (
    "contract",
    "contract_dump",
    "contract_guesses",
    "contract_leases",
    "contract_long",
    "contract_ranks",
)

for _module in (*CONTRACT, "machines"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")
