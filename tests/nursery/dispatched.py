"""Work and holdings for tests of dispatch."""

import pytest
import trio


class Ledger:
    """A holding that writes down what happens to it."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __enter__(self) -> None:
        self.steps.append("enter")

    def __exit__(self, *exc: object) -> None:
        self.steps.append("exit")


async def answer(text: str, seconds: float = 0.0) -> str:
    await trio.sleep(seconds)
    return text


async def fail(error: BaseException, seconds: float = 0.0) -> None:
    await trio.sleep(seconds)
    raise error


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


LATE_RESULT = "work of request r ended with a result that nobody was left to take"
