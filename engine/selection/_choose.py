"""Choosing a rank: a pure function of who may serve, what they do and what they hold.

The common case must not cost a Python loop over hundreds of ranks, so the choice works on
parallel rows (ranks, load states, costs, turns), which it copies and scans in C, and corrects
only the costs of ranks that hold something of the prompt. The states are immutable, which makes
the `Selection` a record: its explanation is computed later and still tells what was true then.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kvlanes.engine.selection._held import COMMON, Held, Worth
from kvlanes.engine.selection._weights import Weights
from kvlanes.indexer import Rank


class LoadState(NamedTuple):
    """What one rank carries at one moment.

    Attributes:
        cost: `Weights.load_cost` of the rest, kept because most candidates need nothing more.
        prefill_tokens: Prompt tokens booked and not yet answered by a first output.
        decode_blocks: Blocks of running requests, identical prompts counted once.
        requests: Running requests.
        turn: When the rank was last chosen, as a count of choices. Never chosen: 0, or a
            negative number that says in which order the ranks came.
    """

    cost: float = 0.0
    prefill_tokens: int = 0
    decode_blocks: int = 0
    requests: int = 0
    turn: int = 0


class LoadRows:
    """The states of many ranks, and the two figures of each that a choice scans.

    The books of the ranks may write here whenever they move; a choice copies what it keeps.
    """

    __slots__ = ("costs", "states", "turns")

    def __init__(self, states: Iterable[LoadState]) -> None:
        self.states = list(states)
        self.costs = [state.cost for state in self.states]
        self.turns = [state.turn for state in self.states]

    def put(self, position: int, state: LoadState) -> None:
        """One rank's state is another one now. O(1)."""
        self.states[position] = state
        self.costs[position] = state.cost
        self.turns[position] = state.turn


# `Query` and `Selection` are tuples because two of each are made for every decision: attrs sets
# each field of a frozen class through a function call, which was a seventh of a decision.
class Query(NamedTuple):
    """What is to be placed.

    Attributes:
        tokens: Length of the prompt.
        blocks: Its full blocks.
        block_size: Tokens a block.
        held: Ranks that hold a prefix of it.
        sharing: Ranks that run an identical prompt, whose blocks would not be added again.
    """

    tokens: int
    blocks: int
    block_size: int
    held: Mapping[Rank, Held]
    sharing: frozenset[Rank] = frozenset()


class Field:
    """The ranks that may be chosen, in a fixed order. Made once for each change of membership.

    Attributes:
        ranks: In the order of all parallel rows.
        position: Where each rank stands.
        worth: Of ranks whose blocks are not worth what those of most ranks are.
    """

    __slots__ = ("position", "ranks", "worth")

    def __init__(self, ranks: Iterable[Rank], worth: Mapping[Rank, Worth] | None = None) -> None:
        self.ranks = tuple(ranks)
        self.position = {rank: i for i, rank in enumerate(self.ranks)}
        self.worth = dict(worth or {})


class Selection(NamedTuple):
    """A choice and everything it was made from.

    Attributes:
        field: Who was eligible.
        states: Their load, in the field's order.
        costs: Their cost less what all candidates have in common, in the field's order.
        chosen: Position of the winner.
    """

    field: Field
    states: Sequence[LoadState]
    query: Query
    weights: Weights
    costs: Sequence[float]
    chosen: int

    @property
    def rank(self) -> Rank:
        return self.field.ranks[self.chosen]

    def ordered(self) -> list[Rank]:
        """Every candidate: the winner, then the others from the cheapest. O(n log n)."""
        order = sorted(
            range(len(self.costs)),
            key=lambda i: (i != self.chosen, self.costs[i], self.states[i].turn, i),
        )
        return [self.field.ranks[i] for i in order]


def select(
    field: Field,
    rows: LoadRows,
    query: Query,
    weights: Weights,
    draw: Callable[[], float],
) -> Selection:
    """Choose the cheapest candidate; among equals the one chosen least recently.

    Args:
        field: The candidates, at least one.
        rows: Their load, in the field's order.
        query: What is to be placed.
        weights: The cost's weights.
        draw: A number in [0, 1); asked for only at a temperature above 0.

    Cost: O(candidates) in C, plus O(ranks that hold or share something) in Python.
    """
    states, costs = rows.states.copy(), rows.costs.copy()
    for rank, held in query.held.items():
        i = field.position.get(rank)
        if i is not None:
            costs[i] -= saved(query, states[i], weights, held, field.worth.get(rank, COMMON))
    for rank in query.sharing:
        i = field.position.get(rank)
        if i is not None:
            costs[i] -= query.blocks
    chosen = _sampled(costs, weights.temperature, draw()) if weights.temperature else None
    if chosen is None:
        chosen = _cheapest(costs, rows.turns)
    return Selection(field, states, query, weights, costs, chosen)


def saved(query: Query, state: LoadState, weights: Weights, held: Held, worth: Worth) -> float:
    """Blocks of prefill that held blocks are worth, never more than there is to prefill."""
    raw = (state.prefill_tokens + query.tokens) / query.block_size
    return weights.prefill * min(raw, weights.credit(held, worth))


def _cheapest(costs: list[float], turns: list[int]) -> int:
    low = min(costs)
    ties = costs.count(low)
    if ties == 1:
        return costs.index(low)
    if ties == len(costs):
        return turns.index(min(turns))
    tied = map(operator.eq, costs, itertools.repeat(low))
    return min(itertools.compress(zip(turns, itertools.count()), tied))[1]


def _sampled(costs: list[float], temperature: float, sample: float) -> int | None:
    """Pick with p ~ exp(-(cost - min) / (range * temperature)); `None` leaves it to the cheapest.

    Source: the reference router's softmax, which divides by the range of the costs, so that
    multiplying all costs changes nothing.
    """
    low, high = min(costs) / 2, max(costs) / 2  # halves: the range of two large ones overflows
    scale = (high - low) * temperature
    if not scale > 0.0:  # all equal, or closer than numbers can tell
        return None
    shares = [math.exp(-(cost / 2 - low) / scale) for cost in costs]
    left = sample * sum(shares)
    for i, share in enumerate(shares):
        left -= share
        if left < 0.0:
            return i
    return len(costs) - 1
