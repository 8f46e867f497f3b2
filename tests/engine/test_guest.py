"""Trio as the guest of another loop: synchronous methods need no current task (design rule 10)."""

import contextlib
import queue
from collections.abc import Callable

import outcome
import trio

from kvlanes.engine import Engine, Rank, Reservation, Worker, open_engine
from kvlanes.engine.testing import assert_engine_idle
from tests.engine.scenes import config, conversation, held

Job = Callable[[], object]


class Host:
    """The simplest loop that can host Trio: a queue of jobs, run one after the other."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self.result: outcome.Outcome[None] | None = None

    def call_soon(self, job: Job) -> None:
        self._jobs.put(job)

    def run(self, main: Callable[[], object]) -> None:
        trio.lowlevel.start_guest_run(
            main,  # type: ignore[arg-type]
            run_sync_soon_threadsafe=self.call_soon,
            done_callback=self._done,
        )
        while (job := self._jobs.get()) is not None:
            job()
        assert self.result is not None
        self.result.unwrap()

    def _done(self, result: "outcome.Outcome[None]") -> None:
        self.result = result
        self._jobs.put(None)


def as_host(host: Host, engine: Engine, finished: trio.Event) -> None:
    """What a callback of the host does, outside every Trio task."""
    with contextlib.suppress(RuntimeError):
        trio.lowlevel.current_task()
        raise AssertionError("there is a current task")
    engine.register(Worker("a"), Worker("b"))
    engine.drain("b")
    engine.report_load(Rank("b"), "host", 0.2)
    engine.connect_failed("b")
    prompt = engine.prompt(range(64))
    assert engine.probe(prompt).worker == "a"
    with engine.request_nowait(seconds=5) as request:
        place: Reservation = request.route(prompt)
        place.first_output()
        place.grow(1)
        assert engine.statistics().ranks[0].requests == 1
        place.succeeded(cached_tokens=0)
        place.close()
    assert engine.lanes.overlap(prompt).scores() == {Rank("a"): 4}
    engine.restarted(Rank("a"))
    assert held(engine, conversation(1)) == {}
    assert engine.health().ready
    engine.check()
    assert engine.digest()
    finished.set()


def test_synchronous_methods_work_from_a_host_without_a_current_task() -> None:
    host = Host()

    async def main() -> None:
        async with open_engine(config()) as engine:
            finished = trio.Event()
            host.call_soon(lambda: as_host(host, engine, finished))
            with trio.fail_after(10):
                await finished.wait()
        assert_engine_idle(engine)

    host.run(main)
