"""Several calls that stand and fall together."""
# flake8: noqa: ASYNC910 - a checkpoint where a branch is one

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

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
            too, it lets the caller have that error within its grace where a branch ignores its
            cancellation.

    Returns:
        The results by ordinal, in whatever order they came.

    Raises:
        ValueError: `at_once` is less than 1.
        Exception: The first error of a branch.

    A checkpoint where a branch is one. One nursery, `at_once` tasks.
    """
    if at_once < 1:
        raise ValueError(f"at_once must be >= 1, got {at_once}")
    results: dict[int, T] = {}
    errors: list[Exception] = []
    pending = iter(enumerate(branches))

    def fail(ordinal: int, error: Exception) -> None:
        errors.append(error)
        if len(errors) > 1:
            # Only its kind is named: an error's text may quote a prompt.
            logger.info("branch %d failed too, with %s", ordinal, type(error).__name__)
            return
        if ending is not None:
            ending.end(lambda: error)
        nursery.cancel_scope.cancel()

    async def run_some() -> None:
        for ordinal, branch in pending:
            if errors:
                return
            try:
                results[ordinal] = await branch()
            except Exception as error:
                fail(ordinal, error)
            except BaseExceptionGroup as group:
                kept, others = group.split(Exception)
                if kept is not None:
                    fail(ordinal, kept)
                if others is not None:
                    raise others from None

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, len(branches))):
            nursery.start_soon(run_some)
    if errors:
        raise errors[0]
    return [results[ordinal] for ordinal in range(len(branches))]
