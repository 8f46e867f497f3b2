"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def code_of(source: str) -> list[str]:
    """Statements without docstring, comments and blank lines; types are shown in both."""
    text = re.sub(r'^"""[^"]*"""', "", source)
    lines = [line.split("  #")[0].rstrip() for line in text.splitlines()]
    return [line for line in lines if line.strip()]


def test_quickstart_is_the_file_and_prints_what_it_says() -> None:
    (shown,) = (block for block in blocks("python") if "open_engine" in block)
    quickstart = ROOT / "examples" / "quickstart.py"
    assert code_of(shown) == code_of(quickstart.read_text())
    command = [sys.executable, str(quickstart)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout in blocks("text")


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    assert re.findall(r"python -m pytest.*", README)[0] == "python -m pytest"
    assert "python -m pytest.*" in (ROOT / ".ci" / "run").read_text()
