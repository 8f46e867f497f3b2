"""One decision on its way: admitted, prepared, routed, dispatched, answered or refused by name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from examples.server.models import Model, Prepared
from examples.server.workers import Declined, WorkerBusy
from kvlanes.engine import (
    AdmissionRefused,
    DeadlinePassed,
    DispatchExpired,
    EngineClosed,
    GateClosed,
    NoEligibleWorker,
    Rank,
    Request,
    RequestTooLarge,
    Route,
    WorkerLost,
)
from kvlanes.engine.decisions import (
    CAPACITY,
    DEADLINE,
    NOT_READY,
    PREFLIGHT_BUSY,
    STOPPING,
    WORKER_BUSY,
    Answer,
    Decision,
    DecisionError,
    DecisionLimits,
    Fault,
    Refused,
    Usage,
    answer,
    candidates,
    too_many_branches,
    unsupported,
)


@attrs.frozen
class Outcome:
    """All answers of a request in the order of its questions, and where they were found."""

    answers: tuple[Answer, ...]
    usage: Usage
    route: Route


@attrs.frozen
class _Result:
    answer: Answer
    input_tokens: int
    cached_tokens: int
    route: Route


@attrs.frozen
class Execution:
    """How requests are executed.

    Attributes:
        limits: What a request may ask for.
        max_candidates: What the models can tell apart in one question.
        fanout: Siblings of a first branch that run at once.
        preflight_slots: Threads that prepare requests; none free is a refusal.
    """

    limits: DecisionLimits
    max_candidates: int
    fanout: int
    preflight_slots: int

    async def run(
        self, model: Model, decision: Decision, namespace: str, request_id: str
    ) -> Outcome:
        """Answer every question, or raise for the whole request.

        One permit for each question, all or none; they are given back when the last branch has
        really ended, however this returns. Always a checkpoint, unless refused.

        Raises:
            DecisionError: Refused, failed or late; its fault says which.
        """
        self._judge(model, decision)
        count = len(decision.questions)
        with (
            _named(),
            model.engine.request_nowait(weight=count, request_id=request_id) as request,
        ):
            results = await self._results(model, decision, namespace, request)
        usage = Usage(
            sum(result.input_tokens for result in results),
            sum(result.cached_tokens for result in results),
        )
        return Outcome(tuple(result.answer for result in results), usage, results[0].route)

    def _judge(self, model: Model, decision: Decision) -> None:
        if not model.workers:
            raise DecisionError(NOT_READY)
        if max(map(candidates, decision.questions)) > self.max_candidates:
            raise unsupported("a question has more candidates than the model can tell apart")

    async def _results(
        self, model: Model, decision: Decision, namespace: str, request: Request
    ) -> Sequence[_Result]:
        threads = model.engine.gate.statistics()
        if threads.threads + threads.waiting_for_thread >= self.preflight_slots:
            raise DecisionError(PREFLIGHT_BUSY)
        prepared = await request.preflight(model.prepare, decision, namespace, self.limits)
        job = _Job(model, decision, namespace, request)
        first = await job.ask(prepared[0])
        return [first, *await self._siblings(job, prepared[1:], first.route.rank)]

    async def _siblings(
        self, job: "_Job", prepared: Sequence[Prepared], rank: Rank
    ) -> Sequence[_Result]:
        """Ask the rest where the first branch was asked: the shared prefix is cached there."""
        room = trio.CapacityLimiter(self.fanout)
        results: dict[int, _Result] = {}

        async def ask(ready: Prepared) -> None:
            async with room:
                results[ready.branch.ordinal] = await job.ask(ready, rank)

        try:
            async with trio.open_nursery() as nursery:
                for ready in prepared:
                    nursery.start_soon(ask, ready)
        except ExceptionGroup as group:
            raise _first(group) from None
        return [results[ready.branch.ordinal] for ready in prepared]


@attrs.frozen
class _Job:
    """The branches of one admitted request."""

    model: Model
    decision: Decision
    namespace: str
    request: Request

    async def ask(self, ready: Prepared, rank: Rank | None = None) -> _Result:
        """Route one branch, to `rank` if given, and take its answer."""
        branch = ready.branch
        allowed = None if rank is None else (rank,)
        with self.request.route(ready.prompt, allowed=allowed) as held:
            worker = self.model.workers[held.route.worker]
            ended = await held.dispatch(
                worker.score, branch.ordinal, branch.tokens, branch.labels, self.namespace
            )
            said = ended.unwrap()
            held.succeeded(cached_tokens=said.cached_tokens)
        question = self.decision.questions[branch.ordinal]
        found = Refused() if isinstance(said, Declined) else answer(question, said.logprobs)
        return _Result(found, len(branch.tokens), said.cached_tokens, held.route)


@contextmanager
def _named() -> Iterator[None]:
    """Errors of the engine and of workers become rows of the decision table."""
    try:
        yield
    except RequestTooLarge as error:
        raise too_many_branches(error.asked, error.limit) from error
    except tuple(_FAULTS) as error:
        fault = next(fault for kind, fault in _FAULTS.items() if isinstance(error, kind))
        raise DecisionError(fault) from error


# The first row that matches counts: a closed gate is also a refusal of admission.
_FAULTS: dict[type[Exception], Fault] = {
    GateClosed: STOPPING,
    EngineClosed: STOPPING,
    AdmissionRefused: CAPACITY,
    DeadlinePassed: DEADLINE,
    DispatchExpired: DEADLINE,
    NoEligibleWorker: NOT_READY,
    WorkerLost: NOT_READY,
    WorkerBusy: WORKER_BUSY,
}


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
