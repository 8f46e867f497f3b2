"""Several calls that stand and fall together."""
# flake8: noqa: ASYNC910 - a checkpoint where a branch is one

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

import attrs
import trio

from kvlanes.indexer import require_count
from kvlanes.nursery._dispatch import Ending

T = TypeVar("T")

logger = logging.getLogger("kvlanes.nursery")


async def run_branches(
    branches: Sequence[Callable[[], Awaitable[T]]],
    *,
    at_once: int = 4,
    ending: Ending | None = None,
) -> list[T]:
    """Run calls side by side; the first error cancels the others and is the only one raised.

    To be called from the work of one dispatch, whose holding then covers all branches until the
    last of them has ended.

    Args:
        branches: The calls, in the order of their results. They start in that order.
        at_once: How many run at the same time.
        ending: Ended with the first error, before the others have drained. Given to the dispatch
            too, and to no other, it lets the caller have that error within its grace where a
            branch ignores its cancellation.

    Returns:
        The results by ordinal, in whatever order they came.

    Raises:
        ValueError: `at_once` is less than 1 (`TypeError`: no integer).
        Exception: The first error of a branch.

    A checkpoint where a branch is one. One nursery, `at_once` tasks.
    """
    require_count("at_once", at_once, 1)
    async with trio.open_nursery() as nursery:
        run = _Run[T](enumerate(branches), ending, nursery.cancel_scope)
        for _ in range(min(at_once, len(branches))):
            nursery.start_soon(run.some)
    if run.error is not None:
        raise run.error
    return [run.results[ordinal] for ordinal in range(len(branches))]


@attrs.define(eq=False)
class _Run(Generic[T]):
    """The branches of one call, and how they ended; written by the tasks that run them."""

    _pending: Iterator[tuple[int, Callable[[], Awaitable[T]]]]  # shared by the tasks
    _ending: Ending | None
    _scope: trio.CancelScope
    results: dict[int, T] = attrs.Factory(dict)
    error: Exception | None = None

    async def some(self) -> None:
        """Run pending branches, one after the other, until one of any task has failed."""
        for ordinal, branch in self._pending:
            if self.error is not None:
                return
            try:
                self.results[ordinal] = await branch()
            except Exception as error:
                self._fail(ordinal, error)
            except BaseExceptionGroup as group:
                errors, others = group.split(Exception)
                if errors is not None:
                    self._fail(ordinal, errors)
                if others is not None:
                    raise others from None

    def _fail(self, ordinal: int, error: Exception) -> None:
        if self.error is not None:
            # Only its kind is named: an error's text may quote a prompt.
            logger.info("branch %d failed too, with %s", ordinal, type(error).__name__)
            return
        self.error = error
        if self._ending is not None:
            self._ending.end(lambda: error)
        self._scope.cancel()
