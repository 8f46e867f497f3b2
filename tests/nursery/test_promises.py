"""The first half of the promises keeps its word, and the obvious code breaks it."""

import subprocess
import sys
from pathlib import Path

SAID = """\
obvious: refreshed, and 0 workers hold the prompt
lanes: refreshed, and 1 workers hold the prompt
lanes: 0 hold it when nobody refreshes
obvious: 1 workers hold the prompt for ever
lanes: hung up True, and 1 workers hold the prompt
lanes: 0 hold it once its lease is over
"""


def test_queued_expiries_and_hung_up_callers_lose_nothing() -> None:
    command = [sys.executable, "-W", "error", "-m", "examples.promises"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert done.stderr == ""
    assert done.stdout.startswith(SAID)
