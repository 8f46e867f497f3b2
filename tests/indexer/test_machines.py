"""The state machines for every backend of ours and for a user's own."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvlanes.indexer import LeaseTable, PositionalIndex, RadixIndex, TierIndex
from tests.indexer.backends import UserIndex
from tests.indexer.machines import (
    TICK_SECONDS,
    CoverageMachine,
    LeaseMachine,
    MakeMachineIndex,
    machine_for,
)
from tests.support.profiles import PROFILE, budget

STEPS = 50
DEEP_STEPS = 20_000  # a backend, without a difference


def leased_positional() -> LeaseTable:
    return LeaseTable(PositionalIndex(16), tick_seconds=TICK_SECONDS)


MACHINES: dict[str, tuple[type[CoverageMachine], MakeMachineIndex]] = {
    "radix": (LeaseMachine, lambda: RadixIndex(16, tick_seconds=TICK_SECONDS)),
    "positional": (CoverageMachine, lambda: PositionalIndex(16)),
    "leased positional": (LeaseMachine, leased_positional),
    "tiers": (LeaseMachine, lambda: TierIndex(leased_positional())),
    "a user's own": (LeaseMachine, lambda: LeaseTable(UserIndex(), tick_seconds=TICK_SECONDS)),
}


@pytest.mark.parametrize("name", MACHINES)
def test_backend_agrees_with_the_oracle(name: str) -> None:
    machine = machine_for(*MACHINES[name])
    examples = budget(ci=40, deep=1_000)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=STEPS)
    )
    print(f"{name}: {machine.steps} steps")
    assert machine.steps >= budget(ci=examples, deep=DEEP_STEPS), PROFILE
