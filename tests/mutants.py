"""Deletes statements one by one and runs the tests that cover them: which deletion goes unseen?

`python -m tests.mutants nursery/_lane.py [...]`, or without arguments everything in `COVERED`.

Works on copies of the package that stand before the real one on the path, never in place. What
survives must stand in `tests/mutants_allowed.txt` with a reason; the run fails if something else
survives, or if something in there does not.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import attrs

ROOT = Path(__file__).parent.parent
ALLOWED = Path(__file__).with_name("mutants_allowed.txt")
PACKAGES = ("indexer", "admission", "nursery", "engine")
PROCESSES = 2
MUTANT_SECONDS = 60.0  # a mutant that hangs counts as seen
WHOLE_SECONDS = 300.0  # the same tests without a mutant

LANES = [
    f"tests/nursery/test_{name}.py"
    for name in (
        *("lane_order", "departures", "lane_life", "served_lanes", "capacity_lanes"),
        *("direct", "blocking", "schedules"),
    )
]
DISPATCH = ["tests/nursery/test_dispatch.py"]
GATE = ["tests/admission"]
LEASES = ["tests/indexer"]

# Module -> the tests that must see every deletion in it, fast ones first.
COVERED = {
    "nursery/_lane.py": LANES,
    "nursery/_lane_set.py": LANES,
    "nursery/_step.py": LANES,
    "nursery/_queue.py": LANES,
    "nursery/_owner.py": LANES,
    "nursery/_crew.py": LANES,
    "nursery/_incarnations.py": LANES,
    "nursery/_served_lane.py": LANES,
    "nursery/_receiver.py": LANES,
    "nursery/_blocking.py": LANES,
    "nursery/_capacity_lease.py": LANES,
    "nursery/_open_lanes.py": LANES,
    "nursery/_bare_nursery.py": LANES,
    "nursery/_masked.py": LANES,
    "nursery/_direct.py": LANES,
    "nursery/_dispatch.py": DISPATCH,
    "admission/_gate.py": GATE,
    "indexer/_lease_table.py": LEASES,
    "indexer/_radix_lease.py": LEASES,
    "indexer/_radix_timers.py": LEASES,
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


class Shadow:
    """A copy of the package that is found before the real one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for package in PACKAGES:
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, directory / "kvlanes" / package, ignore=skip)

    def path(self, module: str) -> Path:
        return self.directory / "kvlanes" / module

    def run(self, command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.directory),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def passes(self, tests: list[str], seconds: float = MUTANT_SECONDS) -> bool:
        """Whether all tests pass here; a run that takes too long does not."""
        command = ["-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
        try:
            return self.run(command, seconds).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def survives(self, mutant: Mutant) -> bool:
        path = self.path(mutant.module)
        original = path.read_text()
        path.write_text(mutant.source)
        try:
            return self.passes(COVERED[mutant.module])
        finally:
            path.write_text(original)

    def check(self, modules: list[str]) -> None:
        """The copy is what runs, and it passes as it is."""
        for module in modules:
            name = "kvlanes." + module.removesuffix(".py").replace("/", ".")
            command = ["-c", f"import {name} as m; print(m.__file__)"]
            found = self.run(command, MUTANT_SECONDS).stdout.strip()
            assert found == str(self.path(module)), f"{found} is not the copy"
        for tests in {tuple(COVERED[module]) for module in modules}:
            assert self.passes([*tests], WHOLE_SECONDS), f"{tests} fail without any mutant"


def survivors(chosen: list[Mutant], shadows: list[Shadow]) -> list[Mutant]:
    """Run each mutant in some free copy."""
    free: SimpleQueue[Shadow] = SimpleQueue()
    for shadow in shadows:
        free.put(shadow)

    def survives(mutant: Mutant) -> bool:
        shadow = free.get()
        try:
            alive = shadow.survives(mutant)
        finally:
            free.put(shadow)
        print(f"{'ALIVE' if alive else 'seen '} {mutant.line:4} {mutant.key}", flush=True)
        return alive

    with ThreadPoolExecutor(len(shadows)) as pool:
        verdicts = pool.map(survives, chosen)
        return [mutant for mutant, alive in zip(chosen, verdicts) if alive]


def allowed() -> dict[str, str]:
    """Key -> reason, of every line that is no comment."""
    lines = ALLOWED.read_text().splitlines()
    rows = [line.split(" -- ", 1) for line in lines if line.strip() and not line.startswith("#")]
    return {row[0]: row[1] for row in rows}


def main(modules: list[str]) -> int:
    reasons = allowed()
    chosen = [mutant for module in modules for mutant in mutants(module)]
    with tempfile.TemporaryDirectory() as directory:
        shadows = [Shadow(Path(directory) / str(number)) for number in range(PROCESSES)]
        shadows[0].check(modules)
        alive = survivors(chosen, shadows)
    unexplained = [mutant for mutant in alive if mutant.key not in reasons]
    for mutant in unexplained:
        print(f"survived, line {mutant.line}: {mutant.key}")
    here = {key for key in reasons if key.split(" ", 1)[0] in modules}
    stale = here - {mutant.key for mutant in alive}
    for key in sorted(stale):
        print(f"allowed, but does not survive: {key}")
    print(f"{len(chosen)} mutants, {len(alive)} alive, {len(unexplained)} of them unexplained")
    return 1 if unexplained or stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [*COVERED]))
