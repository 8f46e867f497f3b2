"""Deciding where a prompt goes: candidates, what they hold, the choice, and its record."""

import random
from typing import NamedTuple

from xxhash import xxh3_64

from kvlanes.engine._config import EngineConfig
from kvlanes.engine._eligibility import Candidates, Eligibility, Wishes
from kvlanes.engine._errors import NoEligibleWorker
from kvlanes.engine._registry import LiveRank, Registry
from kvlanes.engine._route import NOTHING, Route
from kvlanes.engine.load import Booking
from kvlanes.engine.selection import Held, Query, Selection, select
from kvlanes.indexer import Overlap, Prompt, Rank, TieredOverlap, Tokens
from kvlanes.nursery import LaneSet


class Decision(NamedTuple):
    """A route, and the life of the rank that it names."""

    route: Route
    live: LiveRank
    prompt: Prompt


def _held(overlap: Overlap) -> dict[Rank, Held]:
    """What each rank holds, by tier where the index tells tiers apart. O(ranks that hold)."""
    depths = overlap.scores()
    if not depths:
        return {}
    if isinstance(overlap, TieredOverlap):
        tiers = {rank: overlap.tiers(rank) for rank in depths}
        return {rank: Held(t.device, t.host, t.disk + t.external) for rank, t in tiers.items()}
    held, before, same = {}, 0, NOTHING
    for rank, depth in depths.items():
        if depth != before:  # ranks of one depth come together: one value serves them all
            before, same = depth, Held(depth)
        held[rank] = same
    return held


class Router:
    """Decides; `book` is its only method that changes anything. No call is a checkpoint."""

    __slots__ = ("_choices", "_config", "_eligibility", "_lanes", "_registry", "_trail")

    def __init__(
        self, config: EngineConfig, registry: Registry, eligibility: Eligibility, lanes: LaneSet
    ) -> None:
        self._config = config
        self._registry = registry
        self._lanes = lanes
        self._eligibility = eligibility
        self._choices = 0  # booked decisions; makes the next draw
        self._trail = xxh3_64()  # of all booked decisions in order

    def decide(self, prompt: Prompt | Tokens, wishes: Wishes) -> Decision:
        """What would be decided now. Asking changes nothing, random state included.

        Raises:
            NoEligibleWorker: Nobody may serve.
        """
        if not isinstance(prompt, Prompt):
            prompt = Prompt(prompt, self._config.block_size)
        candidates = self._eligibility.candidates(wishes)
        if not candidates.live:
            after = self._eligibility.retry_after_seconds()
            raise NoEligibleWorker(candidates.excluded, after)
        selection = self._select(prompt, candidates)
        live = candidates.live[selection.chosen]
        return Decision(Route(selection, candidates.excluded, live.source), live, prompt)

    def _select(self, prompt: Prompt, candidates: Candidates) -> Selection:
        query = Query(
            prompt.token_count,
            len(prompt),
            prompt.block_size,
            _held(self._lanes.overlap(prompt)),
            self._registry.running(prompt.blocks),
        )
        return select(candidates.field, candidates.rows, query, self._config.weights, self._draw)

    def _draw(self) -> float:
        """One number a choice, from the seed and the count, so a probe draws what a route would."""
        return random.Random(f"{self._config.seed}:{self._choices}").random()

    def book(self, decision: Decision) -> Booking:
        """Count the decision in, in the step in which it was made. O(1)."""
        prompt, live = decision.prompt, decision.live
        self._choices += 1
        self._trail.update(live.label)
        tiers = live.member.worker.tier_weights or self._config.weights.tiers
        share = self._config.weights.doubted if live.doubted else 1.0
        cached = round(share * tiers.cached_blocks(decision.route.held) * prompt.block_size)
        return live.book.book(prompt.blocks, max(0, prompt.token_count - cached), self._choices)

    def digest(self) -> str:
        """Of every decision booked so far, in order; equal runs have equal digests."""
        return self._trail.hexdigest()
