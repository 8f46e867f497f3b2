"""Profiles for Hypothesis, and the rule that a skipped test needs a listed reason."""

from pathlib import Path

import pytest

import tests.support.profiles

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")

__all__ = ["tests"]


def _allowed() -> list[tuple[str, str]]:
    lines = ALLOWED_SKIPS.read_text().splitlines()
    rows = [line for line in lines if line.strip() and not line.startswith("#")]
    return [(row.split(": ", 1)[0], row.split(": ", 1)[1]) for row in rows]


def _reason(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


class SkipGuard:
    """Fails the run when a test was skipped whose reason does not stand in `allowed_skips.txt`."""

    def __init__(self) -> None:
        self.unexpected: list[str] = []
        self.allowed = _allowed()

    def _note(self, nodeid: str, reason: str) -> None:
        if not any(nodeid.startswith(node) and why in reason for node, why in self.allowed):
            self.unexpected.append(f"{nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._note(report.nodeid, _reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid, str(report.longrepr))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.unexpected:
            terminalreporter.write_line(f"unexpected skip: {line}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipGuard(), "kvlanes-skip-guard")
