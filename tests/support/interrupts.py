"""Ctrl-C before a chosen line of ours, in programs that must end all the same."""

import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs
from trio.lowlevel import currently_ki_protected

BOUND_SECONDS = 10  # of real time, and only where a test fails: whoever hangs hears no Ctrl-C

Line = tuple[str, str, int]  # file, function, number


@contextmanager
def bounded() -> Iterator[None]:
    """A program that does not end fails its test."""

    def hangs(*_: object) -> None:
        raise TimeoutError(f"the program has not ended within {BOUND_SECONDS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(BOUND_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@attrs.define(eq=False)
class Interrupter:
    """Notes the lines of `files` that run unprotected, and raises SIGINT before one, once."""

    files: Collection[str]
    before: Line | None = None
    lines: dict[Line, None] = attrs.Factory(dict)
    _outer: Any = None

    def __enter__(self) -> "Interrupter":
        self._outer = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._outer)

    def _called(self, frame: FrameType, event: str, _: object) -> Any:
        return self._stepped if frame.f_code.co_filename in self.files else None

    def _stepped(self, frame: FrameType, event: str, _: object) -> Any:
        line = frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno
        if event == "line" and line not in self.lines and not currently_ki_protected():
            self.lines[line] = None
            if line == self.before:
                signal.raise_signal(signal.SIGINT)
        return self._stepped
