"""Scenarios that end with balanced books, or fail."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kvlanes.admission import AdmissionGate
from kvlanes.engine.testing._cancel_everywhere import at_every_step


@asynccontextmanager
async def checked_gate(
    gate: AdmissionGate, *, settle_seconds: float = 60.0
) -> AsyncIterator[AdmissionGate]:
    """Check a gate's invariants after every step of every task, and that all came back.

    Args:
        gate: A gate of which nothing is held.
        settle_seconds: How long, at the end, to wait for holds that outlive the scenario.

    Raises:
        AssertionError: An invariant broke, or something was still held or queued.
    """
    with at_every_step(gate.check):
        yield gate
        with trio.move_on_after(settle_seconds):
            await gate.wait_idle()
    assert_idle(gate)


def assert_idle(gate: AdmissionGate) -> None:
    """Assert that nobody holds, waits or runs a thread."""
    now = gate.statistics()
    busy = (now.held, now.waiting, now.threads, now.waiting_for_thread)
    assert busy == (0, 0, 0, 0), now
    assert gate.free == gate.total, now
    gate.check()
