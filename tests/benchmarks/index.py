"""The index beside its peers, in one process: `python -m tests.benchmarks.index [part ...]`.

Parts: `calls` (T3), `expiry` (T2), `trace` (T5), `memory` (T6), `latency` (T7); all when none is
named. Every workload checks its own answers before it is timed. Sides are timed in turn, in tight
loops, and the best of several counts: the wheel hands each call to a thread of its own, and only a
hot thread is a fair one. Ratios are medians of five runs; *reached* is 0.8 of the target.
"""

import collections
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import attrs

RUNS = 5
REACHED = 0.8
ASLEEP = 9_000  # nanoseconds; a hot hand-over takes 4,000 to 7,000

Side: TypeAlias = Callable[[], float]
"""Times one side of a case once; nanoseconds an operation."""


@attrs.frozen
class Case:
    """One line of the table.

    Attributes:
        name: What is done.
        ours: Our side.
        theirs: The side it is compared with.
        target: At least so many times faster; with `at_most`, at most so many times our time.
        at_most: The ratio is ours divided by theirs and must stay below.
        judged: Whether the target is one of the project's; else the line is for the reader.
    """

    name: str
    ours: Side
    theirs: Side
    target: float
    at_most: bool = False
    judged: bool = True
    repeats: int = 7


def per_item(action: Callable[..., object], items: Iterable[tuple[object, ...]]) -> float:
    """Nanoseconds a call of `action`, over all items."""
    prepared = list(items)
    calls = itertools.starmap(action, prepared)
    start = time.perf_counter_ns()
    collections.deque(calls, maxlen=0)
    return (time.perf_counter_ns() - start) / len(prepared)


def measure(case: Case) -> tuple[float, float]:
    """Best nanoseconds of both sides, taken in turn."""
    pairs = [(case.ours(), case.theirs()) for _ in range(case.repeats)]
    return min(ours for ours, _ in pairs), min(theirs for _, theirs in pairs)


def judge(case: Case) -> bool:
    """Print one line of the table; whether its target was reached."""
    runs = [measure(case) for _ in range(RUNS)]
    ratios = [ours / theirs if case.at_most else theirs / ours for ours, theirs in runs]
    ratio = statistics.median(ratios)
    ours, theirs = (statistics.median(side) for side in zip(*runs))
    if case.at_most:
        reached, sign = ratio <= case.target / REACHED, "<="
    else:
        reached, sign = ratio >= case.target * REACHED, ">="
    target = f"{sign} {case.target:g}" if case.judged else "-"
    return line(case.name, ours, theirs, ratio, target, reached or not case.judged)


def line(name: str, ours: float, theirs: float, ratio: float, target: str, reached: bool) -> bool:
    verdict = "" if target == "-" else "reached" if reached else "NOT REACHED"
    places = 1 if ours < 200 else 0
    numbers = f"{ours:>13,.{places}f}{theirs:>13,.{places}f}{ratio:>9.2f}  {target:>8}"
    print(f"{name:62}{numbers}  {verdict}", flush=True)
    return reached


def main(parts: list[str]) -> int:
    # Imported late: `memory` runs in fresh processes that must stay small.
    from tests.benchmarks.index_calls import call_cases, empty_call, expiry_cases
    from tests.benchmarks.index_memory import memory_lines
    from tests.benchmarks.index_trace import latency_lines, trace_cases

    print(f"{'':62}{'ours':>13}{'theirs':>13}{'ratio':>9}  {'target':>8}")
    sections: dict[str, Callable[[], list[bool]]] = {
        "calls": lambda: [judge(case) for case in call_cases()],
        "expiry": lambda: [judge(case) for case in expiry_cases()],
        "trace": lambda: [judge(case) for case in trace_cases()],
        "memory": memory_lines,
        "latency": latency_lines,
    }
    missed = 0
    for part in parts or sections:
        print(f"-- {part}")
        if part == "calls":
            empty = empty_call()
            print(f"(the wheel's empty call: {empty:,.0f} ns)")
            if empty > ASLEEP:
                print("(its thread does not stay hot on this machine now: these ratios flatter us)")
        missed += sections[part]().count(False)
    print(f"{missed} targets not reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
