"""Looks at a publisher for a while, without an index."""
# flake8: noqa: ASYNC910 - the link waits

import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.engine.feeds._dial import DialledLink, connected
from kvlanes.engine.feeds._errors import ConnectionLost, FrameInvalid, ReplayTruncated
from kvlanes.engine.feeds._socket import zmq_context
from kvlanes.engine.feeds._sources import VllmEvents
from kvlanes.engine.feeds._survey import Survey
from kvlanes.nursery import open_bare_nursery


@enable_ki_protection
async def probe(source: VllmEvents, seconds: float) -> Survey:
    """Take a replay if there is one, then live batches for so long.

    Raises:
        ConnectionLost: The publisher cannot be reached.
    """
    survey = Survey()
    with zmq_context() as context:
        async with open_bare_nursery() as nursery:
            async with connected(context, source.target(0), nursery) as link:
                if link.replayable:
                    await _replay(link, survey, source.options.replay_idle_seconds)
                await _live(link, survey, seconds)
            nursery.cancel_scope.cancel()
    return survey


async def _replay(link: DialledLink, survey: Survey, idle_seconds: float) -> None:
    with link.replay(0) as replies:
        try:
            while (frame := await replies.receive(idle_seconds)) is not None:
                survey.take(frame)
            survey.whole = True
        except (ReplayTruncated, FrameInvalid):
            survey.whole = False
    if survey.whole or survey.batches:
        survey.replay = survey.batches


async def _live(link: DialledLink, survey: Survey, seconds: float) -> None:
    begun = trio.current_time()
    deadline = begun + seconds
    try:
        while (left := deadline - trio.current_time()) > 0:
            frame = await link.receive(left)
            if frame is not None:
                survey.take(frame)
                survey.live += 1
    except (ConnectionLost, FrameInvalid) as error:
        survey.events[f"{type(error).__name__}"] += 1
    survey.seconds = trio.current_time() - begun
