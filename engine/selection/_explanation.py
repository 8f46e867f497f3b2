"""Why this rank: the terms of every candidate, as values and as a table."""

from collections.abc import Mapping

import attrs

from kvlanes.engine.selection._choose import LoadState, Selection, saved
from kvlanes.engine.selection._held import COMMON, Held
from kvlanes.indexer import Rank


@attrs.frozen
class Row:
    """One candidate's terms, all in blocks but `requests`.

    Attributes:
        doubted: What it holds may be out of date, and counts less (see `Weights.doubted`).
        prefill: Work queued and asked for, before credit, weighted.
        saved: What its cached blocks take off that.
        decode: Blocks active there plus those that the prompt adds.
        requests: Requests running there.
        cost: prefill - saved + decode + the weighted requests.
    """

    rank: Rank
    held: Held
    doubted: bool
    prefill: float
    saved: float
    decode: int
    requests: int
    cost: float
    chosen: bool


@attrs.frozen
class Explanation:
    """A decision told from what the selector computed. Holds no tokens, prompts or tenants.

    Attributes:
        rows: All candidates, the winner first, then from the cheapest.
        excluded: Who was left out before scoring, and why.
        blocks: Full blocks of the prompt.
    """

    rows: tuple[Row, ...]
    excluded: Mapping[str, str]
    blocks: int

    @property
    def best_overlap(self) -> int:
        """The most blocks that any candidate held."""
        return max(row.held.blocks for row in self.rows)

    @property
    def regret(self) -> int:
        """Cached blocks given up because another candidate was cheaper."""
        return self.best_overlap - self.rows[0].held.blocks

    def __str__(self) -> str:
        header = ("", "rank", "blocks", "prefill", "saved", "decode", "requests", "cost")
        table = [header, *(_cells(row, self.blocks) for row in self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(header))]
        lines = [
            "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in pairs).rstrip()
            for pairs in (enumerate(zip(line, widths)) for line in table)
        ]
        lines += [f"   {name} left out: {why}" for name, why in self.excluded.items()]
        lines.append(f"   best overlap {self.best_overlap}, regret {self.regret}")
        return "\n".join(lines)


def _cells(row: Row, blocks: int) -> tuple[str, ...]:
    return (
        "=>" if row.chosen else "",
        str(row.rank),
        f"{row.held.blocks}/{blocks}" + "?" * row.doubted,
        f"{row.prefill:.2f}",
        f"{row.saved:.2f}",
        str(row.decode),
        str(row.requests),
        f"{row.cost:.2f}",
    )


def explain(selection: Selection, excluded: Mapping[str, str]) -> Explanation:
    """Work the terms of every candidate out. O(candidates)."""
    rows = tuple(_row(selection, rank) for rank in selection.ordered())
    return Explanation(rows, dict(excluded), selection.query.blocks)


def _row(selection: Selection, rank: Rank) -> Row:
    query, weights = selection.query, selection.weights
    i = selection.field.position[rank]
    state: LoadState = selection.states[i]
    held = query.held.get(rank, Held())
    prefill = weights.prefill * (state.prefill_tokens + query.tokens) / query.block_size
    worth = selection.field.worth.get(rank, COMMON)
    off = saved(query, state, weights, held, worth)
    decode = state.decode_blocks + (0 if rank in query.sharing else query.blocks)
    cost = prefill - off + decode + weights.request * state.requests
    chosen = i == selection.chosen
    return Row(rank, held, worth.doubted, prefill, off, decode, state.requests, cost, chosen)
