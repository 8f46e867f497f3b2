"""The pure choice: formulas, filters, ties, temperature and its explanation."""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlanes.engine.selection import (
    Field,
    Held,
    LoadRows,
    LoadState,
    Query,
    Selection,
    TierWeights,
    Weights,
    explain,
    select,
)
from kvlanes.indexer import Rank

A, B, C = Rank("a"), Rank("b"), Rank("c")
BLOCK = 16


def never() -> float:
    raise AssertionError("temperature 0 draws nothing")


def choose(
    ranks: Sequence[Rank],
    states: Sequence[LoadState],
    query: Query,
    weights: Weights,
    draw: Callable[[], float],
) -> Selection:
    return select(Field(ranks), LoadRows(states), query, weights, draw)


def state(prefill: int = 0, decode: int = 0, requests: int = 0, turn: int = 0) -> LoadState:
    cost = Weights().load_cost(BLOCK, prefill, decode, requests)
    return LoadState(cost, prefill, decode, requests, turn)


def query(blocks: int, held: dict[Rank, Held] | None = None, *sharing: Rank) -> Query:
    return Query(blocks * BLOCK, blocks, BLOCK, held or {}, frozenset(sharing))


def test_the_rank_that_holds_the_prefix_wins() -> None:
    chosen = choose((A, B, C), [state()] * 3, query(8, {B: Held(8)}), Weights(), never)
    assert chosen.rank == B


def test_a_hot_holder_loses_to_cost_but_others_keep_their_affinity() -> None:
    """P13: the preferred candidate is judged by cost, the fleet's imbalance is not."""
    loads = [state(prefill=40 * BLOCK), state(), state(prefill=BLOCK)]
    field = (A, B, C)
    assert choose(field, loads, query(16, {C: Held(16)}), Weights(), never).rank == C
    assert choose(field, loads, query(16, {A: Held(16)}), Weights(), never).rank == B


def test_equals_take_turns() -> None:
    loads = [state(turn=3), state(turn=1), state(turn=2)]
    assert choose((A, B, C), loads, query(4), Weights(), never).rank == B


def test_host_and_disk_blocks_count_less_than_device_blocks() -> None:
    held = {A: Held(2, 3, 0), B: Held(0, 0, 9), C: Held(4, 0, 0)}
    chosen = choose((A, B, C), [state()] * 3, query(10, held), Weights(), never)
    assert chosen.rank == A  # 2 + 0.75 * 3 = 4.25 against 2.25 and 4
    assert TierWeights(host=0.5).cached_blocks(Held(2, 3, 4 + 5)) == 5.75  # the reference's sum


def test_credit_never_pays_for_more_than_there_is_to_prefill() -> None:
    generous = Weights(overlap=100.0)
    chosen = choose((A,), [state()], query(2, {A: Held(2)}), generous, never)
    assert explain(chosen, {}).rows[0].cost == 2.0  # the decode blocks are left


def test_blocks_of_an_identical_running_prompt_are_not_added_again() -> None:
    loads = [state(decode=4, requests=1), state(decode=2, requests=1)]
    assert choose((A, B), loads, query(4, {}, A), Weights(), never).rank == A
    assert choose((A, B), loads, query(4), Weights(), never).rank == B


def test_ordered_starts_with_the_winner_and_goes_on_by_cost() -> None:
    loads = [state(decode=5), state(decode=1), state(decode=3)]
    assert choose((A, B, C), loads, query(1), Weights(), never).ordered() == [B, C, A]


def test_temperature_spreads_by_relative_cost_and_one_seed_repeats() -> None:
    loads = [state(), state(decode=1), state(decode=2)]

    def picks(seed: int) -> list[Rank]:
        draw = random.Random(seed).random
        warm = Weights(temperature=1.0)
        return [choose((A, B, C), loads, query(1), warm, draw).rank for _ in range(300)]

    first = picks(1)
    assert first == picks(1)
    assert first.count(A) > first.count(B) > first.count(C) > 0


def test_scaling_all_costs_does_not_change_the_odds() -> None:
    warm = Weights(temperature=0.5)
    field = (A, B)
    for sample in (0.0, 0.3, 0.6, 0.85, 0.9, 0.999):
        draw = [sample].__getitem__
        small = choose(field, [state(), state(decode=1)], query(1), warm, partial(draw, 0))
        large = choose(field, [state(), state(decode=10**9)], query(1), warm, partial(draw, 0))
        assert small.rank == large.rank


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 50), st.integers(0, 9), st.integers(0, 20)),
        min_size=1,
        max_size=6,
    )
)
def test_the_winner_is_the_cheapest_row_of_its_explanation(
    rows: list[tuple[int, int, int, int]],
) -> None:
    """The fast sum that decides and the full terms that explain agree for every candidate."""
    weights = Weights(request=0.5, prefill=1.5)
    ranks = [Rank(f"w{i}") for i in range(len(rows))]
    states = [LoadState(weights.load_cost(BLOCK, p, d, r), p, d, r) for p, d, r, _ in rows]
    held = {rank: Held(row[3]) for rank, row in zip(ranks, rows) if row[3]}
    sharing = [rank for rank, row in zip(ranks, rows) if row[1] % 3 == 1]
    chosen = choose(ranks, states, query(20, held, *sharing), weights, never)
    told = explain(chosen, {"x": "draining"})
    costs = [row.cost for row in told.rows]
    assert told.rows[0].chosen
    assert told.rows[0].rank == chosen.rank
    assert costs == pytest.approx(sorted(costs))
    assert told.regret == max(row.held.blocks for row in told.rows) - told.rows[0].held.blocks
    assert "x left out: draining" in str(told)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_weights_refuse_what_is_no_weight(value: float) -> None:
    with pytest.raises(ValueError, match="overlap must be finite and >= 0"):
        Weights(overlap=value)


@pytest.mark.parametrize("costs", [(0.0, 1.7e308), (0.0, 5e-324), (1e-320, 2e-320), (3.0, 3.0)])
@pytest.mark.parametrize("temperature", [1e-300, 0.5, 1e300])
def test_extreme_costs_and_temperatures_still_choose(
    costs: tuple[float, float], temperature: float
) -> None:
    """The reference's inventory: ranges that overflow or vanish neither raise nor loop."""
    warm = Weights(temperature=temperature)
    rows = [LoadState(cost, turn=turn) for turn, cost in enumerate(costs)]
    for sample in (0.0, 0.999999):
        draw = partial([sample].__getitem__, 0)
        assert choose((A, B), rows, query(0), warm, draw).rank in (A, B)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=40),
)
def test_among_equals_the_least_recently_chosen_wins(rows: list[tuple[int, int]]) -> None:
    """The scans in C and a plain sort agree, whatever ties there are."""
    states = [LoadState(float(cost), turn=turn) for cost, turn in rows]
    ranks = [Rank(f"w{i}") for i in range(len(rows))]
    won = choose(ranks, states, query(0), Weights(), never).chosen
    assert won == min(range(len(rows)), key=lambda i: (rows[i][0], rows[i][1], i))


def test_rows_that_books_keep_are_the_rows_that_books_had() -> None:
    rows = LoadRows([state(turn=3), state(decode=2, turn=1)])
    rows.put(0, state(decode=5, turn=9))
    assert (rows.costs, rows.turns) == ([5.0, 2.0], [9, 1])
    assert [row.decode_blocks for row in rows.states] == [5, 2]
