"""Tests of the index: contract, state machines, scenarios."""
