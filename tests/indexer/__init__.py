"""Tests of the index: contract, state machines, scenarios."""

import pytest

for _module in ("contract", "contract_leases", "contract_long", "contract_ranks", "machines"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")
