"""Deletes statements one by one and runs the tests that cover them: which deletion goes unseen?

`python -m tests.mutants nursery/_lane.py [...]`, or without arguments everything in `COVERED`.

Works on copies of the package that stand before the real one on the path, never in place. What
survives must stand in `tests/mutants_allowed.txt` with a reason; the run fails if something else
survives, or if something in there does not.
"""

import ast
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import Phase, settings

from tests.support import profiles

ROOT = Path(__file__).parent.parent
ALLOWED = Path(__file__).with_name("mutants_allowed.txt")
PACKAGES = ("indexer", "admission", "nursery", "engine")
PROCESSES = 2
# A mutant with which a file of tests takes so many times its processor time counts as seen, and
# so does one that waits for nothing. Wall time would judge the machine's other work too.
MOST_TIMES, FLOOR_SECONDS, UNLIMITED = 4, 3, resource.RLIM_INFINITY
MOST_BYTES = 2 << 30
NOTHING_RAN = 255
LOOK_SECONDS, IDLE_LOOKS = 0.02, 400
OPTIONS = ("-qx", "-p", "no:cacheprovider", "--assert=plain")
PRELOADED = (profiles, trio)  # once here, not in every child


def tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


# Quick ones and likely ones first: the first test that fails ends a run. None that starts a
# process of its own: that one would find the real package.
LANES = tests(
    "nursery",
    "lane_order lane_leases departures lane_life served_lanes settlement served_closing "
    "capacity_lanes lane_edges turns direct bare_nursery orderings orderings_served interrupts "
    "interrupted_lanes blocking schedules",
)
DISPATCH = tests("nursery", "dispatch dispatch_endings dispatch_failures")
BRANCHES = (*DISPATCH, *tests("nursery", "dispatch_branches"))
GATE = tests(
    "admission",
    "gate line overtaking permit run_blocking run_blocking_deadlines cancel_everywhere "
    "checked_engine interrupts properties",
)
LEASES = tests(
    "indexer",
    "lease_table radix_bounds contract_leases lease_values dump contract_dump contract tiers "
    "radix radix_leases budget differential radix_machine machines",
)

# Module -> the tests that must see every deletion in it.
COVERED = {
    f"{folder}/_{name}.py": covering
    for folder, covering, names in (
        ("nursery", LANES, "lane lane_set step queue owner crew incarnations served_lane receiver"),
        ("nursery", LANES, "blocking capacity_lease open_lanes bare_nursery masked direct"),
        ("nursery", DISPATCH, "dispatch"),
        ("nursery", BRANCHES, "branches"),
        ("admission", GATE, "gate permit threads line charges"),
        ("indexer", LEASES, "lease_table lease_holding lease_timers"),
        ("indexer", LEASES, "radix_holder radix_tree radix_lease radix_timers"),
    )
    for name in names.split()
}

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@attrs.frozen
class Mutant:
    """One module without one of its statements; `key` names it whatever its line is."""

    module: str
    line: int
    key: str
    source: str


def bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements directly in `node`."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, ast.ExceptHandler | ast.match_case):
                    yield from bodies(part)


def deletable(statement: ast.stmt) -> bool:
    """Not docstrings, and not what only tells the type checker or a reader something."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    return not isinstance(
        statement, ast.Assert | ast.Pass | ast.Nonlocal | ast.Global | ast.AnnAssign
    ) or (isinstance(statement, ast.AnnAssign) and statement.value is not None)


def positions(node: ast.AST, name: str, inside: bool) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """(qualified name, list, index) of each statement that runs in a function."""
    for body in bodies(node):
        for index, statement in enumerate(body):
            named = isinstance(statement, Node)
            below = f"{name}.{statement.name}".lstrip(".") if isinstance(statement, Node) else name
            if inside and not named and deletable(statement):
                yield name, body, index
            function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from positions(statement, below, inside or function)


def mutants(module: str) -> list[Mutant]:
    """All of a module's mutants."""
    tree = ast.parse((ROOT / module).read_text())
    made: list[Mutant] = []
    for name, body, index in positions(tree, "", inside=False):
        statement = body[index]
        text = ast.unparse(statement).splitlines()[0]
        body[index] = ast.copy_location(ast.Pass(), statement)
        made.append(Mutant(module, statement.lineno, f"{module} {name}: {text}", ast.unparse(tree)))
        body[index] = statement
    return made


def passes(path: str, seconds: int) -> bool:
    """Whether these tests pass. Ends the process if they use more of the processor."""
    most = seconds if seconds == UNLIMITED else math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, UNLIMITED))
    return pytest.main([*OPTIONS, path]) == 0


class Shadow:
    """A copy of the package that is found before the real one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for package in PACKAGES:
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, directory / "kvlanes" / package, ignore=skip)

    def path(self, module: str) -> Path:
        return self.directory / "kvlanes" / module

    def start(self, covering: Mapping[str, int], modules: Iterable[str] = ()) -> int:
        """Run tests in a child process, which has all but our own packages imported already.

        It ends with 0 if all of them passed, with each of `modules` loaded from this copy, each
        file within its seconds of processor time, or with the number of the file that did not.
        """
        pid = os.fork()
        if pid:
            return pid
        status = NOTHING_RAN
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            sys.path.insert(0, str(self.directory))
            sys.dont_write_bytecode = True
            os.chdir(ROOT)
            names = {"kvlanes." + m.removesuffix(".py").replace("/", "."): m for m in modules}
            loaded = [
                import_module(name).__file__ == str(self.path(m)) for name, m in names.items()
            ]
            # One after the other: most mutants never need the later ones collected.
            files = enumerate(covering.items(), 1)
            if all(loaded):
                status = next((n for n, (path, most) in files if not passes(path, most)), 0)
        finally:
            os._exit(status)


@attrs.define(eq=False)
class Run:
    """A child process, and what it is about."""

    pid: int
    shadow: Shadow
    mutant: Mutant
    original: str
    covering: list[str]
    used: list[str] = attrs.Factory(list)  # ticks of its own and of its ended children
    idle: int = 0  # looks in a row at which it neither used nor wanted a processor

    def seen_by(self, status: int) -> str | None:
        """The file of tests that ended it with this status, if one did."""
        number = os.waitstatus_to_exitcode(status)
        return self.covering[number - 1] if 0 < number <= len(self.covering) else None

    def waits(self) -> bool:
        """Looks once more; whether it has been idle for so long that it waits for ever."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        self.idle = self.idle + 1 if fields[0] == "S" and fields[11:15] == self.used else 0
        self.used = fields[11:15]
        return self.idle > IDLE_LOOKS


def survivors(
    chosen: list[Mutant], seconds: Mapping[str, int], shadows: list[Shadow]
) -> list[Mutant]:
    """Run every mutant, one in each copy at a time, each file of tests within its seconds."""
    alive: list[Mutant] = []
    running: dict[int, Run] = {}
    order = {module: [*COVERED[module]] for module in COVERED}
    free, left = [*shadows], [*reversed(chosen)]
    while left or running:
        while left and free:
            mutant, shadow = left.pop(), free.pop()
            path = shadow.path(mutant.module)
            original = path.read_text()
            path.write_text(mutant.source)
            covering = [*order[mutant.module]]
            pid = shadow.start({path: seconds[path] for path in covering})
            running[pid] = Run(pid, shadow, mutant, original, covering)
        for pid, run in [*running.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                free.append(run.shadow)
                run.shadow.path(run.mutant.module).write_text(run.original)
                print("seen " if status else "ALIVE", run.mutant.line, run.mutant.key, flush=True)
                alive += [] if status else [run.mutant]
                if seer := run.seen_by(status):  # and its neighbours, probably, by the same
                    order[run.mutant.module].sort(key=seer.__ne__)
            elif run.waits():
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)
    return alive


def bound(path: str, modules: list[str], shadow: Shadow) -> int:
    """The most seconds of processor time that a file of tests may take, which must pass now."""
    _, status, used = os.wait4(shadow.start({path: UNLIMITED}, modules), 0)
    assert status == 0, f"{path} fails without any mutant, or not on the copy"
    return max(FLOOR_SECONDS, math.ceil(MOST_TIMES * (used.ru_utime + used.ru_stime)))


def allowed() -> dict[str, str]:
    """Key -> reason, of every line that is no comment."""
    lines = ALLOWED.read_text().splitlines()
    rows = [line.split(" -- ", 1) for line in lines if line.strip() and not line.startswith("#")]
    return {row[0]: row[1] for row in rows}


def main(modules: list[str]) -> int:
    reasons = allowed()
    chosen = [mutant for module in modules for mutant in mutants(module)]
    # A property test that fails is enough: nobody reads the smallest example.
    settings.register_profile(
        "mutants", settings.get_profile(profiles.PROFILE), phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")
    with tempfile.TemporaryDirectory() as directory:
        shadows = [Shadow(Path(directory) / str(number)) for number in range(PROCESSES)]
        paths = {path for module in modules for path in COVERED[module]}
        seconds = {path: bound(path, modules, shadows[0]) for path in paths}
        alive = survivors(chosen, seconds, shadows)
    unexplained = [mutant for mutant in alive if mutant.key not in reasons]
    for mutant in unexplained:
        print(f"survived, line {mutant.line}: {mutant.key}")
    here = {key for key in reasons if key.split(" ", 1)[0] in modules}
    stale = here - {mutant.key for mutant in alive}
    for key in sorted(stale):
        print(f"allowed, but does not survive: {key}")
    for module in modules:
        made, left, unseen = (
            sum(mutant.module == module for mutant in group)
            for group in (chosen, alive, unexplained)
        )
        print(f"{module}: {made} mutants, {left} alive, {unseen} of them unexplained")
    return 1 if unexplained or stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [*COVERED]))
