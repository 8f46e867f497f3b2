"""Who is left out for a while: connect failures, and loads that others report."""
# flake8: noqa: ASYNC124, ASYNC910 - asynchronous in order to run in a loop

import pytest
import trio
from trio.testing import MockClock

from kvlanes.engine import NoEligibleWorker, Rank, TooManySources, Worker
from tests.engine.scenes import ABC, chosen, conversation, running, serve

PROMPT = conversation(1)


async def test_connect_failures_eject_for_a_doubling_capped_pause(
    autojump_clock: MockClock,
) -> None:
    async with running(
        *ABC, connect_failures=2, ejection_seconds=1, ejection_max_seconds=5
    ) as engine:
        pauses = []
        for _ in range(5):
            engine.connect_failed("a")
            assert engine.probe(PROMPT, allowed=["a"]).worker == "a"
            engine.connect_failed("a")
            began = trio.current_time()
            with pytest.raises(NoEligibleWorker) as refused:
                engine.probe(PROMPT, allowed=["a"])
            await trio.sleep(refused.value.retry_after_seconds)
            assert engine.probe(PROMPT, allowed=["a"]).worker == "a"
            pauses.append(trio.current_time() - began)
        assert pauses == pytest.approx([1, 2, 4, 5, 5])
        await serve(engine, PROMPT, allowed=["a"])
        engine.connect_failed("a")
        engine.connect_failed("a")
        assert "ejected for 1.0 s more" in str(engine.health().problems)


async def test_a_success_between_failures_ends_the_row() -> None:
    async with running(Worker("a"), connect_failures=2) as engine:
        for _ in range(10):
            engine.connect_failed("a")
            await serve(engine, PROMPT)
        assert engine.health().ready


async def test_failures_of_attempts_from_before_an_ejection_do_not_prolong_it(
    autojump_clock: MockClock,
) -> None:
    async with running(Worker("a"), Worker("b"), connect_failures=1) as engine:
        for _ in range(40):
            engine.connect_failed("a")
        await trio.sleep(1.01)
        assert engine.probe(PROMPT, allowed=["a"]).worker == "a"


async def test_pauses_stay_capped_however_long_a_worker_fails(autojump_clock: MockClock) -> None:
    async with running(Worker("a"), Worker("b"), connect_failures=1) as engine:
        for _ in range(2000):
            engine.connect_failed("a")
            await trio.sleep(60.01)
        assert engine.probe(PROMPT, allowed=["a"]).worker == "a"


async def test_a_reservation_reports_failures_of_its_own_registration_only() -> None:
    """A late report of an attempt on a worker that came back anew does not eject it."""
    async with running(Worker("a"), connect_failures=1) as engine, engine.request() as request:
        old = request.route(PROMPT)
        await engine.remove("a")
        engine.register(Worker("a"))
        old.connect_failed()
        assert engine.health().ready
        request.route(PROMPT).connect_failed()
        assert not engine.health().ready


async def test_load_figures_are_kept_a_source_each(autojump_clock: MockClock) -> None:
    """P66: 99 % of one source is not hidden by 1 % of another; old figures are shown stale."""
    async with running(Worker("a"), Worker("b"), load_max_age_seconds=10) as engine:
        engine.report_load(Rank("a"), "engine", 0.99)
        engine.report_load(Rank("a"), "router", 0.01)
        assert engine.probe(PROMPT).explanation.excluded == {
            "a": "overloaded: 99% busy says engine"
        }
        await trio.sleep(9)
        engine.report_load(Rank("a"), "router", 0.02)
        assert chosen(engine, PROMPT) == "b"
        await trio.sleep(2)
        assert engine.probe(PROMPT, allowed=["a"]).worker == "a"
        assert "a: the load that engine reports is older than 10 s" in engine.health().problems
        engine.report_load(Rank("a"), "engine", 0.5)
        assert engine.health().problems == ()


@pytest.mark.parametrize("busy", [-0.01, 1.01, float("nan"), float("inf")])
async def test_a_load_that_is_no_share_is_refused(busy: float) -> None:
    async with running(Worker("a")) as engine:
        with pytest.raises(ValueError, match=r"within 0\.\.1"):
            engine.report_load(Rank("a"), "engine", busy)


async def test_sources_are_bounded_and_old_ones_make_room(autojump_clock: MockClock) -> None:
    async with running(Worker("a"), load_max_age_seconds=10) as engine:
        for number in range(8):
            engine.report_load(Rank("a"), f"source-{number}", 0.1)
        with pytest.raises(TooManySources, match="8 sources"):
            engine.report_load(Rank("a"), "one more", 0.1)
        await trio.sleep(11)
        engine.report_load(Rank("a"), "one more", 0.1)


async def test_a_load_takes_effect_at_the_next_choice_not_at_the_next_change() -> None:
    """Whoever was found to be eligible before is looked at again."""
    async with running(Worker("a"), Worker("b")) as engine:
        for worker, other in ("ab", "ba"):
            assert engine.probe(PROMPT, allowed=[worker]).worker == worker
            engine.probe(PROMPT)
            engine.report_load(Rank(worker), "engine", 0.99)
            assert chosen(engine, PROMPT) == other
            engine.report_load(Rank(worker), "engine", 0.1)
            assert engine.health().problems == ()
