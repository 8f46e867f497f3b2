"""The second half of the promises keeps its word."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "_promises_admission.py"

SAID = """\
semaphore: 4 of 4 permits free, 16 threads run
gate: 0 of 4 permits free, 4 threads run
gate: 996 of 1000 refused at once
gate: 4 of 4 permits free once the threads have ended
"""


def test_a_thousand_hang_ups_leave_permits_where_the_threads_are() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == SAID
