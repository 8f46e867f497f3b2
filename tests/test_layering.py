"""Who may import whom: the table of DESIGN.md, kept by reading every import statement."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("indexer", "admission", "nursery", "engine", "examples")

# Folder -> what of our own it may import, and whether it may know Trio.
OWN = {
    "indexer": {"indexer"},
    "admission": {"admission"},
    "nursery": {"nursery", "indexer"},
    "engine": {"engine", "nursery", "indexer", "admission"},
    "examples": {"engine", "examples"},
}
WITHOUT_TRIO = {"indexer"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.module or ""


def violations(folder: str, names: Iterator[str]) -> list[str]:
    found = []
    for name in names:
        parts = name.split(".")
        if parts[0] == "kvlanes" and parts[1] not in OWN[folder]:
            found.append(name)
        if parts[0] in {"tests", "examples"} and parts[0] not in OWN[folder]:
            found.append(name)
        if parts[0] == "trio" and folder in WITHOUT_TRIO:
            found.append(name)
        if parts[0] in {"asyncio", "anyio"} and folder != "examples":
            found.append(name)
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_imports_only_what_its_row_allows(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    found = {str(p.relative_to(ROOT)): violations(folder, imported(p)) for p in paths}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_check_sees_a_forbidden_import() -> None:
    assert violations("admission", iter(["kvlanes.engine", "trio"])) == ["kvlanes.engine"]
    assert violations("indexer", iter(["trio.lowlevel"])) == ["trio.lowlevel"]


@pytest.mark.parametrize("folder", FOLDERS[:4])
def test_modules_of_a_package_are_private(folder: str) -> None:
    """A public name has one home, the package; modules start with an underscore."""
    modules = [p for p in (ROOT / folder).rglob("*.py") if not p.name.startswith("_")]
    assert modules == []
