"""What tests of waiting and of blocking calls share: who stands in line, and virtual threads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kvlanes.admission import AdmissionGate, Permit
from kvlanes.engine.testing import VirtualThreads, checked_gate


class Waiters:
    """Requests that wait at a gate and keep what they get."""

    def __init__(self, gate: AdmissionGate, nursery: trio.Nursery) -> None:
        self.gate = gate
        self.nursery = nursery
        self.granted: dict[str, Permit] = {}
        self.scopes: dict[str, trio.CancelScope] = {}

    async def ask(self, name: str, weight: int = 1) -> None:
        """Put one into the queue."""
        self.nursery.start_soon(self._wait, name, weight)
        await wait_all_tasks_blocked()

    async def _wait(self, name: str, weight: int) -> None:
        with trio.CancelScope() as self.scopes[name]:
            self.granted[name] = await self.gate.admit(weight, request_id=name, family=name)

    async def release(self, name: str) -> None:
        self.granted.pop(name).close()
        await wait_all_tasks_blocked()

    @property
    def names(self) -> list[str]:
        """Who holds, in the order in which the gate admitted them."""
        holding = self.gate.statistics().requests
        return [str(one.request_id) for one in holding if one.doing == ("admitted",)]


@asynccontextmanager
async def virtual(
    *lengths: float | None, total: int = 4, slots: int = 40, queue_limit: int = 0
) -> AsyncIterator[AdmissionGate]:
    """A checked gate whose blocking calls take these virtual seconds, one after the other."""
    async with trio.open_nursery() as nursery:
        threads = VirtualThreads(nursery, iter(lengths))
        gate = AdmissionGate(total, preflight_slots=slots, queue_limit=queue_limit, runner=threads)
        async with checked_gate(gate):
            yield gate
        assert threads.running == 0


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]
