"""A configuration file says what flags say: each key is a flag without its dashes.

    permits = 64
    insecure = true
    mock = ["mock-fast", "mock-slow:latency=0.3"]

    [worker]
    llama = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]

A list repeats its flag, a table repeats it with `NAME=VALUE`. So whatever is wrong with a value
is said in the words of the flag, and an unknown key is an unknown flag.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def arguments_of(file: Path) -> list[str]:
    """The command line that a TOML file amounts to.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no TOML, names another file, or holds what no flag can say.
    """
    table = tomllib.loads(file.read_text())
    if "config" in table:
        raise ValueError("a configuration file cannot name another")
    return [argument for key, value in table.items() for argument in _flags(key, value)]


def _flags(key: str, value: Any) -> Iterator[str]:
    flag = f"--{key.replace('_', '-')}"
    match value:
        case bool():
            if value:  # false is what a flag that is not there says
                yield flag
        case str() | int() | float():
            yield f"{flag}={value}"
        case list():
            for entry in value:
                yield from _flags(key, entry)
        case dict():
            for name, entries in value.items():
                for entry in entries if isinstance(entries, list) else [entries]:
                    yield f"{flag}={name}={entry}"
        case _:
            raise ValueError(f"{key} is a {type(value).__name__}, which no flag can say")
