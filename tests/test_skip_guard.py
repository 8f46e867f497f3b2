"""A skip that nobody listed fails the run; one that is listed with its reason does not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SKIPPING = "import pytest\n\n@pytest.mark.skip(reason='no such machine')\ndef test_it(): ...\n"


def run(tmp_path: Path, allowed: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over one skipping test, under a copy of this suite's rules."""
    suite = tmp_path / "tests"
    shutil.copytree(TESTS / "support", suite / "support")
    shutil.copy(TESTS / "conftest.py", suite)
    (suite / "__init__.py").touch()
    (suite / "allowed_skips.txt").write_text(allowed)
    (suite / "test_skipping.py").write_text(SKIPPING)
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", "-o", "pythonpath=."]
    command += ["-p", "no:cacheprovider", "tests/test_skipping.py"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ("", 1),
        ("tests/test_other.py: no such machine\n", 1),
        ("tests/test_skipping.py: another reason\n", 1),
        ("tests/test_skipping.py: no such machine\n", 0),
    ],
)
def test_a_skip_needs_its_test_and_its_reason_in_the_list(
    tmp_path: Path, allowed: str, code: int
) -> None:
    done = run(tmp_path, allowed)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("unexpected skip" in done.stdout) == bool(code)
    assert "1 skipped" in done.stdout.splitlines()[-1]
