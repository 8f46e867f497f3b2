"""The public surface: every name has one home, and `kvlanes.engine` is enough to embed with."""

import importlib
import inspect
import subprocess
import sys
import types
import typing
from collections.abc import Iterator

import attrs
import pytest

PACKAGES = (
    "kvlanes.indexer",
    "kvlanes.nursery",
    "kvlanes.admission",
    "kvlanes.engine",
    "kvlanes.engine.selection",
    "kvlanes.engine.load",
    "kvlanes.engine.decisions",
    "kvlanes.engine.http",
    "kvlanes.engine.testing",
)


def public(package: str) -> dict[str, object]:
    module = importlib.import_module(package)
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_public_things_say_what_they_are_for(package: str) -> None:
    names = public(package)
    assert names
    undocumented = [
        name
        for name, value in names.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value)
    ]
    assert undocumented == []


def annotations(value: object) -> Iterator[object]:
    """Everything that stands in the signatures of a function, or of a class's public methods."""
    if inspect.isfunction(value):
        yield from typing.get_type_hints(value).values()
    elif inspect.isclass(value):
        for name, member in inspect.getmembers(value, inspect.isfunction):
            if not name.startswith("_"):
                yield from annotations(inspect.unwrap(member))
        if attrs.has(value):
            yield from typing.get_type_hints(value).values()


def ours(annotation: object) -> Iterator[type]:
    """Our classes within an annotation, however deep."""
    if inspect.isclass(annotation) and annotation.__module__.startswith("kvlanes."):
        yield annotation
    for part in typing.get_args(annotation):
        if isinstance(part, list):
            for inner in part:
                yield from ours(inner)
        else:
            yield from ours(part)


def test_engine_reexports_every_name_of_its_signatures() -> None:
    names = public("kvlanes.engine")
    missing = {
        f"{found.__name__} (in {name})"
        for name, value in names.items()
        for annotation in annotations(value)
        for found in ours(annotation)
        if found.__name__ not in names and not found.__name__.startswith("_")
    }
    assert sorted(missing) == []


EXTRAS = ("h11", "msgspec", "zstandard", "httpx2", "zmq", "prometheus_client", "numpy")


def test_embedding_needs_no_extra() -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in EXTRAS)
    program = f"import sys\n{blocked}import kvlanes.engine, kvlanes.engine.testing"
    subprocess.run([sys.executable, "-c", program], check=True)
