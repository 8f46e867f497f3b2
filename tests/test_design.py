"""DESIGN.md names files and tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "DESIGN.md").read_text().split("## The picture")[0]


def names_of_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
    return found


def test_every_promise_names_a_file_and_a_test_that_exist() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) > 25
    known = names_of_tests()
    for row in rows:
        _, promise, files, tests, _ = (cell.strip() for cell in row.split("|"))
        for path in re.findall(r"`([^`]+)`", files):
            assert (ROOT / path).exists(), f"{promise}: no file {path}"
        for name in re.findall(r"`([^`]+)`", tests):
            assert name in known, f"{promise}: no test {name}"
