"""An engine that must end as it began: nothing held, nothing running, nothing queued."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, runtime_checkable

import attrs
import trio

from kvlanes.admission import AdmissionGate
from kvlanes.engine import Engine, EngineConfig, open_engine
from kvlanes.engine.testing._cancel_everywhere import at_every_step
from kvlanes.engine.testing._checked import assert_idle
from kvlanes.indexer import IndexBackend, RadixIndex


@runtime_checkable
class Checked(Protocol):
    """An index that can recount itself, as all of ours can."""

    def check(self) -> None:
        """Assert every invariant."""


@asynccontextmanager
async def checked_engine(
    config: EngineConfig,
    *,
    gate: AdmissionGate | None = None,
    make_index: Callable[[], IndexBackend] | None = None,
    settle_seconds: float = 60.0,
) -> AsyncIterator[Engine]:
    """`open_engine` that checks all books after every step of every task, and their end.

        async with checked_engine(EngineConfig(block_size=16)) as engine:
            ...                              # the scenario
        # every permit is back, every load 0, no work left, every lane empty, every counter true

    Pass a gate with `VirtualThreads` where the clock jumps. A scenario that raises is not checked
    at its end, since its own error says more.

    Args:
        config: As for `open_engine`, `index_budget_blocks` included.
        gate: As for `open_engine`.
        make_index: As for `open_engine`; the indexes it makes are checked too.
        settle_seconds: How long, at the end, to wait for what outlives the scenario.

    Raises:
        AssertionError: An invariant broke, or something was left.
    """
    indexes: list[IndexBackend] = []
    if make_index is None:
        make_index = partial(
            RadixIndex, config.block_size, budget_blocks=config.index_budget_blocks
        )
        # The index is made here in order to be checked: the engine is given no budget to refuse.
        config = attrs.evolve(config, index_budget_blocks=None)

    def make() -> IndexBackend:
        indexes.append(make_index())
        return indexes[-1]

    async with open_engine(config, gate=gate, make_index=make) as engine:
        with at_every_step(engine.check):
            yield engine
            with trio.move_on_after(settle_seconds):
                await _settle(engine)
        assert_engine_idle(engine)
        if isinstance(index := indexes[-1], Checked):  # one that crashed is gone, and torn
            index.check()
    assert_idle(engine.gate)
    assert not engine.nursery.child_tasks


async def _settle(engine: Engine) -> None:
    await engine.wait_quiet()
    await engine.gate.wait_idle()
    await engine.lanes.flush()


def assert_engine_idle(engine: Engine) -> None:
    """Assert that no request is open and that nothing is held, loaded, dispatched or queued.

    Event sources may go on: they are the workers', not a request's.
    """
    now = engine.statistics()
    assert (now.open_requests, now.dispatched) == (0, 0), now
    assert len(engine.nursery.child_tasks) == engine._feeding.tasks.value, (
        engine.nursery.child_tasks
    )
    for rank in now.ranks:
        load = (rank.requests, rank.prefill_tokens, rank.decode_blocks)
        assert load == (0, 0, 0), rank
    for lane in now.lanes.lanes:
        assert (lane.depth, lane.waiting_for_room) == (0, 0), lane
    assert_idle(engine.gate)
    engine.check()
