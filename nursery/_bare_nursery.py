"""A nursery that takes its own exception-group layer off again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.lowlevel import enable_ki_protection


@asynccontextmanager
@enable_ki_protection
async def open_bare_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose single error leaves as itself; a user's own group stays whole.

    Several errors leave as the nursery's group, as ever.
    """
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        # This is always the layer that the line above added: it wraps a single error too.
        if len(group.exceptions) > 1:
            raise
        alone = group.exceptions[0]
    else:
        return
    context = alone.__context__
    try:
        raise alone
    finally:
        alone.__context__ = context  # raising it here must not rewrite its history
        del alone
