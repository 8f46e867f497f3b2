"""`docs/index-only.md` is run as it is printed: in plain Python, in asyncio, and without Trio."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "index-only.md"


def printed() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


def best_rank() -> Callable[[list[int], float], str]:
    names: dict[str, Callable[[list[int], float], str]] = {}
    exec(printed(), names)
    return names["best_rank"]


def test_under_plain_python(capsys: pytest.CaptureFixture[str]) -> None:
    best = best_rank()
    assert capsys.readouterr().out == "gpu-1\n"
    assert best(list(range(64)), time.monotonic()) == "gpu-1"
    assert best([1], time.monotonic()) == "nobody"  # less than a block


def test_under_asyncio() -> None:
    async def main() -> str:
        return best_rank()(list(range(64)), asyncio.get_running_loop().time())

    assert asyncio.run(main()) == "gpu-1"


def test_without_trio() -> None:
    program = f"{printed()}\nimport sys\nbest_rank([1] * 64, 0.0)\nprint('trio' in sys.modules)"
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.splitlines()[-1] == "False"


def test_it_is_about_twenty_lines() -> None:
    code = [line for line in printed().splitlines() if line.strip()]
    assert len(code) <= 20
