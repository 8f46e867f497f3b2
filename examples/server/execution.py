"""One decision on its way: admitted, prepared, routed, dispatched, answered or refused by name."""
# flake8: noqa: ASYNC913 - each turn of the loop leaves one worker out

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from examples.server.models import Model
from examples.server.plans import Plan, Prepared
from examples.server.status import Recent
from examples.server.upstream import Upstream, WorkerBroke, WorkerUnreachable
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
    Reservation,
    Route,
    WorkerLost,
)
from kvlanes.engine.decisions import (
    CAPACITY,
    DEADLINE,
    NO_SCORING,
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
    Reply,
    Usage,
    answer,
    candidates,
    reply,
    too_many_branches,
    unsupported,
)


@attrs.frozen
class Outcome:
    """The 200 with all answers, and where they were found."""

    reply: Reply
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
        recent: Where decisions are noted for whoever looks at the page.
    """

    limits: DecisionLimits
    max_candidates: int
    fanout: int
    recent: Recent

    async def run(
        self, model: Model, decision: Decision, namespace: str, request_id: str, body: bytes
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
            found = await self._results(model, decision, namespace, request, body)
        if isinstance(found, Outcome):
            return found
        usage = Usage(
            sum(result.input_tokens for result in found),
            sum(result.cached_tokens for result in found),
        )
        answers = [result.answer for result in found]
        return Outcome(reply(decision, model.name, answers, usage), found[0].route)

    def _judge(self, model: Model, decision: Decision) -> None:
        if not model.workers:
            raise DecisionError(NOT_READY)
        if not model.scores:
            raise DecisionError(NO_SCORING)
        if max(map(candidates, decision.questions)) > self.max_candidates:
            raise unsupported("a question has more candidates than the model can tell apart")

    async def _results(
        self, model: Model, decision: Decision, namespace: str, request: Request, body: bytes
    ) -> Outcome | Sequence[_Result]:
        gate = model.engine.gate
        if gate.busy_preflight_slots >= gate.preflight_slots:
            raise DecisionError(PREFLIGHT_BUSY)
        plan = await request.preflight(model.prepare, decision, namespace, self.limits, body)
        job = _Job(model, decision, plan, namespace, request)
        first = await job.ask(plan.branches[0])
        self.recent.note(request.request_id, model.name, first.route)
        if isinstance(first, Outcome):
            return first
        return [first, *await self._siblings(job, plan.branches[1:], first.route.rank)]

    async def _siblings(
        self, job: "_Job", prepared: Sequence[Prepared], rank: Rank
    ) -> Sequence[_Result]:
        """Ask the rest where the first branch was asked: the shared prefix is cached there."""
        room = trio.CapacityLimiter(self.fanout)
        results: dict[int, _Result] = {}

        async def ask(ready: Prepared) -> None:
            async with room:
                results[ready.branch.ordinal] = await job.score(ready, rank)

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
    plan: Plan
    namespace: str
    request: Request

    async def ask(self, first: Prepared) -> _Result | Outcome:
        """Ask the best worker that is there: for all answers at once if it can, else for one.

        A worker that did not begin to answer is passed over for the next; its place is given
        back first.
        """
        away: list[str] = []
        while True:
            # Anew each time, as another worker may have come while one was asked.
            misfits = self.model.misfits(self.decision, self.plan)
            with self.request.route(first.prompt, exclude=(*misfits, *away)) as held:
                try:
                    return await self._serve(held, first)
                except WorkerUnreachable as error:
                    away.append(error.worker)
            self.model.engine.connect_failed(away[-1])

    async def score(self, ready: Prepared, rank: Rank) -> _Result:
        """Score a further branch where the first one was: its prefix is cached there."""
        with self.request.route(ready.prompt, allowed=(rank,)) as held:
            return await self._score(held, ready)

    async def _serve(self, held: Reservation, first: Prepared) -> _Result | Outcome:
        worker = self.model.workers[held.route.worker]
        if isinstance(worker, Upstream) and self.decision.contract in worker.abilities.native:
            return await self._forward(held, worker, first)
        return await self._score(held, first)

    async def _score(self, held: Reservation, ready: Prepared) -> _Result:
        worker, branch = self.model.workers[held.route.worker], ready.branch
        ended = await held.dispatch(
            worker.score, branch.ordinal, branch.tokens, branch.labels, self.namespace
        )
        said = ended.unwrap()
        held.succeeded(cached_tokens=said.cached_tokens)
        question = self.decision.questions[branch.ordinal]
        found = Refused() if isinstance(said, Declined) else answer(question, said.logprobs)
        return _Result(found, len(branch.tokens), said.cached_tokens, held.route)

    async def _forward(self, held: Reservation, worker: Upstream, first: Prepared) -> Outcome:
        model, fields = self.model.name, self.plan.fields
        ended = await held.dispatch(worker.decide, self.decision, model, fields, self.namespace)
        said = ended.unwrap()
        if said.cached_share is not None:
            # Measured in the engine's own tokens, which need not be those that we route by.
            held.succeeded(cached_tokens=int(said.cached_share * first.prompt.token_count))
        return Outcome(said.reply, held.route)


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
    WorkerUnreachable: NOT_READY,
    WorkerBroke: NOT_READY,
    WorkerBusy: WORKER_BUSY,
}


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
