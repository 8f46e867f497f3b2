"""`docs/admission-only.md` says what happens."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "admission-only.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_page_runs_and_prints_what_it_says() -> None:
    command = [sys.executable, "-W", "error", "-c", block("python")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == block("text")


def test_it_is_short() -> None:
    """Twenty-odd lines that say something, beside imports and blank lines."""
    lines = [line for line in block("python").splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("import", "from"))]) <= 26
