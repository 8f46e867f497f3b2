"""Finding out what an engine can do, by asking it to do it.

What it says about itself is not believed: a route may exist and refuse this model, and an unknown
field (a salt, a list of labels) may be ignored in silence. So each ability is used once.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Sequence

import attrs

from examples.server.upstream import Abilities, Upstream, WorkerBroke, WorkerUnreachable
from examples.server.upstream_native import forwarded
from examples.server.upstream_scoring import SCORINGS, UsageHidden
from examples.server.workers import Scored, WorkerBusy
from kvlanes.engine import ConfigError
from kvlanes.engine.decisions import Contract, DecisionError, DecisionLimits, parse_decision

_QUESTIONS = {
    Contract.DECISIONS: {"questions": [{"type": "predicate", "instructions": "Is this a probe?"}]},
    Contract.SYSTEMONE: {
        "questions": {"probe": {"type": "noul", "instructions": "Is this a probe?"}}
    },
}
_INPUT = {Contract.DECISIONS: "input", Contract.SYSTEMONE: "state"}
# Enough to fill whole blocks of any engine, so that a second look finds some of it cached.
_WORDS = 1200

Measure = Callable[[str], Awaitable[int]]


class ProbeFailed(ConfigError):
    """An engine that this server cannot use; says why."""


async def probe(upstream: Upstream, tokens: Callable[[str], Awaitable[Sequence[int]]]) -> Upstream:
    """Ask an engine for everything once. Always a checkpoint.

    Args:
        upstream: An engine of which only the address is known.
        tokens: Makes token ids of a text, with the engine's own tokeniser or a file.

    Returns:
        The same engine, with its abilities.

    Raises:
        WorkerUnreachable, WorkerBroke: It does not answer.
        ProbeFailed: It does, and can do nothing that this server needs.
    """
    natives = [await _native(upstream, contract) for contract in Contract]
    scoring = await _scoring(upstream, tokens)
    abilities = attrs.evolve(
        upstream.abilities,
        native=frozenset(contract for contract, found, _ in natives if found),
        accepts_salt=any(salted for _, _, salted in natives),
        scoring=scoring.abilities.scoring if scoring else None,
    )
    if not abilities.native and not abilities.scoring:
        raise ProbeFailed(
            f"worker {upstream.name!r} neither answers decisions nor reads label log probabilities"
        )
    able = attrs.evolve(upstream, abilities=abilities)
    return attrs.evolve(able, abilities=attrs.evolve(abilities, salted=await _salted(able, tokens)))
