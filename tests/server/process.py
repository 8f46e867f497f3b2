"""One server process for all tests of a module, started as a black-box check starts it."""
# flake8: noqa: ASYNC910, ASYNC912 - each look asks the server something

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from tests.server.running import PATIENCE_SECONDS, Running

ROOT = Path(__file__).parents[2]
COMMAND = shlex.split(
    "--permits 8 --max-questions 16 --deadline 2 --grace 0.5 --max-body 65536 --body-timeout 2 "
    "--alias jev-latest=mock-fast --mock mock-fast --mock mock-slow:latency=0.3 "
    "--mock mock-stuck:latency=60 --mock mock-stubborn:latency=60,stubborn=1.5 "
    "--mock mock-blocking:preflight=0.8 --mock mock-blocking-long:preflight=3 "
    "--mock mock-down:down --mock mock-bad:bad --mock mock-busy:busy --mock mock-refuse:refuse "
    "--mock mock-tie:tie"
)
# What that line has no model for, and the log in which the rest can be seen.
MORE = shlex.split(
    "--mock mock-impossible:impossible --mock mock-crash:crash --mock mock-mute:mute --access-log"
)


@attrs.frozen
class Outside:
    """The process as a client and an operator see it."""

    server: Running
    log: Path

    async def logged(self, pattern: str) -> str:
        """The first line of its log that matches, once it is there."""
        with trio.fail_after(PATIENCE_SECONDS):
            async with self.server.client() as client:
                while not (found := re.search(f"^.*{pattern}.*$", self.said(), re.MULTILINE)):
                    await client.request(path="/healthz", method="GET")
        return found[0]

    def said(self) -> str:
        return self.log.read_text()


@contextmanager
def outside(log: Path, *flags: str) -> Iterator[Outside]:
    """Run the server on a port of its choice until the block ends; it must stop by itself."""
    command = [sys.executable, "-m", "examples.server", "--port", "0", *flags]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT)
    assert process.stdout is not None
    try:
        first = process.stdout.readline().decode()
        found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", first)
        assert found, (first, log.read_text())
        yield Outside(Running(int(found[1])), log)
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
