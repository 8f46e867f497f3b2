"""`python -m examples.server`: parse the flags, listen, say where, stop on a signal."""

import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import trio

from examples.server.serving import serve
from examples.server.settings import Settings, parse_settings

_EXAMPLE = {
    "model": "mock-fast",
    "input": "A customer was charged twice last week, wrote to us on Monday, got no answer, "
    "and now requests a refund today or wants to close the account.",
    "questions": [{"type": "predicate", "instructions": "Action is needed today."}],
}


def main() -> None:
    """Serve until SIGINT or SIGTERM; the second one cancels what still runs."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    settings = parse_settings(sys.argv[1:])
    try:
        trio.run(_main, settings)
    except* OSError as group:
        sys.exit(f"cannot listen on {settings.host}:{settings.port}: {_first(group)}")


async def _main(settings: Settings) -> None:
    stopping, running = trio.Event(), trio.CancelScope()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, stopping, running)
            with running:
                await _serve(settings, stopping)
            nursery.cancel_scope.cancel()


async def _serve(settings: Settings, stopping: trio.Event) -> None:
    async with trio.open_nursery() as nursery:
        _say(await nursery.start(serve, settings, stopping), settings)


async def _obey(
    signals: AsyncIterator[int], stopping: trio.Event, running: trio.CancelScope
) -> None:
    await anext(signals)
    stopping.set()
    await anext(signals)
    running.cancel()


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _say(listeners: Sequence[trio.SocketListener], settings: Settings) -> None:
    host, port = listeners[0].socket.getsockname()[:2]
    at = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    key = " -H 'authorization: Bearer <key>'" if settings.api_keys else ""
    body = json.dumps({**_EXAMPLE, "model": next(iter(settings.mocks))})
    print(f"listening on {at}\n", flush=True)
    print(f"curl -i {at}/v1/decisions -H 'content-type: application/json'{key} \\")
    print(f"  -d '{body}'", flush=True)


if __name__ == "__main__":
    main()
