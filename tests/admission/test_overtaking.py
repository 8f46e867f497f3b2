"""Waiting: who may pass whom, and how often."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from kvlanes.admission import AdmissionGate
from kvlanes.engine.testing import checked_gate
from tests.admission.scenes import Waiters


async def test_p16_a_big_request_is_not_starved_by_small_ones(autojump_clock: MockClock) -> None:
    async with checked_gate(AdmissionGate(8, queue_limit=32)) as gate:
        start = trio.current_time()
        log: list[str] = []

        async def small(name: str, delay: float) -> None:
            await trio.sleep(delay)
            for _ in range(8):
                with await gate.admit():
                    log.append(name)
                    await trio.sleep(1)

        async def big() -> None:
            await trio.sleep(0.5)
            with await gate.admit(6, deadline=trio.current_time() + 20):
                assert trio.current_time() <= start + 2
                log.append("big")
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(small, f"s{number}", number / 10)
            nursery.start_soon(big)
        assert log.index("big") <= 6 + 2


async def test_p53_strict_order_lets_nobody_pass(nursery: trio.Nursery) -> None:
    async with checked_gate(AdmissionGate(6, queue_limit=8)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("held", 4)
        await line.ask("head", 6)
        for number in range(5):
            await line.ask(f"s{number}")
        assert line.names == ["held"]
        await line.release("held")
        assert line.names == ["head"]
        await line.release("head")
        assert line.names == [f"s{number}" for number in range(5)]
        for name in line.names:
            await line.release(name)


async def test_p53_overtaking_is_bounded_for_each_head(nursery: trio.Nursery) -> None:
    async with checked_gate(AdmissionGate(8, queue_limit=9, overtake=2)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("held", 6)
        await line.ask("head", 6)
        for number in range(5):
            await line.ask(f"s{number}")
        assert line.names == ["held", "s0", "s1"]
        await line.release("s0")
        await line.release("s1")
        assert line.names == ["held"]  # nobody else until the head has run
        await line.release("held")
        assert line.names == ["head", "s2", "s3"]
        await line.release("head")
        assert line.names == ["s2", "s3", "s4"]
        for name in line.names:
            await line.release(name)


async def test_a_release_lets_waiting_ones_pass_within_the_bound(nursery: trio.Nursery) -> None:
    async with checked_gate(AdmissionGate(4, queue_limit=9, overtake=1)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("held", 3)
        await line.ask("other", 1)
        await line.ask("head", 4)
        await line.ask("two", 2)
        await line.ask("s0")
        await line.ask("s1")
        assert line.names == ["held", "other"]
        await line.release("other")
        assert line.names == ["held", "s0"]  # "two" did not fit and "s1" came too late
        await line.release("s0")
        assert line.names == ["held"]
        await line.release("held")
        for name in ("head", "two", "s1"):
            await line.release(name)


async def test_a_waiting_head_never_remains_while_it_fits(nursery: trio.Nursery) -> None:
    """The head leaves, or the total grows: whoever stands next is looked at again."""
    async with checked_gate(AdmissionGate(2, queue_limit=9)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("held")
        await line.ask("head", 2)
        await line.ask("small")
        line.scopes["head"].cancel()
        await wait_all_tasks_blocked()
        assert line.names == ["held", "small"]
        await line.ask("next", 2)
        gate.set_total(4)
        await wait_all_tasks_blocked()
        assert line.names == ["held", "small", "next"]
        for name in line.names:
            await line.release(name)


async def test_p53_who_is_too_large_for_a_shrunk_total_keeps_the_place_and_blocks_nobody(
    nursery: trio.Nursery,
) -> None:
    async with checked_gate(AdmissionGate(8, queue_limit=9)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("held", 8)
        for name, weight in (("large", 5), ("a", 3), ("b", 3)):
            await line.ask(name, weight)
        gate.set_total(4)
        await line.release("held")
        assert line.names == ["a"]  # strict order goes on behind: b waits for a
        await line.release("a")
        await line.release("b")
        gate.admit_nowait(4).close()
        await line.ask("c", 4)
        assert line.names == ["c"]
        await line.ask("d", 2)
        gate.set_total(8)
        await line.release("c")
        assert line.names == ["large", "d"]
        await line.release("large")
        await line.release("d")


async def test_passes_under_a_smaller_total_do_not_count_against_the_bound(
    nursery: trio.Nursery,
) -> None:
    async with checked_gate(AdmissionGate(8, queue_limit=9, overtake=1)) as gate:
        line = Waiters(gate, nursery)
        await line.ask("held", 8)
        await line.ask("large", 8)
        gate.set_total(2)
        await line.release("held")
        for name in "abc":
            await line.ask(name)
            await line.release(name)
        await line.ask("d")
        gate.set_total(8)
        assert line.names == ["d"]
        await line.ask("e")
        assert line.names == ["d", "e"]  # the one that may pass
        await line.ask("f")
        assert line.names == ["d", "e"]
        for name in ("d", "e", "large", "f"):
            await line.release(name)
