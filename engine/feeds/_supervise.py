"""Keeps a stream followed: one connection after the other, whatever the engine does."""
# flake8: noqa: ASYNC910 - every round of the loop sleeps

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.engine.feeds._errors import ConnectionLost, PublisherRestarted, ResyncNeeded
from kvlanes.engine.feeds._feed import FeedState
from kvlanes.engine.feeds._follow import Follower
from kvlanes.engine.feeds._protocols import Link

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0


@enable_ki_protection
async def supervise(
    follower: Follower, connect: Callable[[], AbstractAsyncContextManager[Link]]
) -> None:
    """Follow a publisher through restarts and outages until cancelled.

    Between two connections it waits 50 ms at first and then twice as long each time, at most
    5 s; a connection that stood starts over. Ctrl-C goes to the main task: here it could tear a
    batch, or leave a socket open that the end of its context would wait for.
    """
    await follower.begin()
    pause = FIRST_PAUSE_SECONDS
    while True:
        if await _follow_once(follower, connect):
            pause = FIRST_PAUSE_SECONDS
        await trio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _follow_once(
    follower: Follower, connect: Callable[[], AbstractAsyncContextManager[Link]]
) -> bool:
    """One connection from beginning to end; whether it stood."""
    counts = follower.feed.counts
    connects = counts.connects
    try:
        async with connect() as link:
            counts.connects += 1
            await follower.follow(link)
    except ConnectionLost as error:
        counts.failures += 1
        _interrupted(follower, error)
    except PublisherRestarted as error:
        _interrupted(follower, error)
        await follower.restart()
    except ResyncNeeded as error:
        _interrupted(follower, error)
        await follower.resync()
    return counts.connects > connects


def _interrupted(follower: Follower, error: Exception) -> None:
    feed = follower.feed
    feed.error = str(error)
    feed.become(FeedState.COLD if feed.state is FeedState.COLD else FeedState.STALE)
