"""`python -m examples.server`: parse the flags, listen, say where, stop on a signal."""

import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import trio

from examples.server.demo import Demo
from examples.server.serving import serve
from examples.server.settings import Settings, parse_settings
from kvlanes.engine import ConfigError

_EXAMPLE = {
    "model": "mock-fast",
    "input": "A customer was charged twice last week, wrote to us on Monday, got no answer, "
    "and now requests a refund today or wants to close the account.",
    "questions": [{"type": "predicate", "instructions": "Action is needed today."}],
}


def main() -> None:
    """Serve until SIGINT or SIGTERM, or until a demonstration is over.

    A second signal cancels what still runs.
    """
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    settings = parse_settings(sys.argv[1:])
    try:
        sound = trio.run(_main, settings)
    except* OSError as group:
        sys.exit(f"cannot listen on {settings.host}:{settings.port}: {_first(group)}")
    except* ConfigError as group:
        sys.exit(str(_first(group)))
    sys.exit(0 if sound else 1)


async def _main(settings: Settings) -> bool:
    """Whether all ended as it should."""
    enough, running, sound = trio.Event(), trio.CancelScope(), False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, enough, running)
            with running:
                sound = await _serve(settings, enough)
            nursery.cancel_scope.cancel()
    return sound or running.cancelled_caught


async def _serve(settings: Settings, enough: trio.Event) -> bool:
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(serve, settings, stopping)
        _say(listeners, settings)
        sound = await _until(enough, settings, listeners[0].socket.getsockname()[1])
        stopping.set()
    return sound


async def _until(enough: trio.Event, settings: Settings, port: int) -> bool:
    """Wait for a signal, or let a demonstration run until one comes or it is over."""
    if settings.demo is None:
        await enough.wait()
        return True
    key = f"Bearer {settings.api_keys[0]}" if settings.api_keys else None
    admin = f"Bearer {settings.admin_key}" if settings.admin_key else None
    return await Demo(port, key, admin).run(settings.demo, enough)


async def _obey(signals: AsyncIterator[int], enough: trio.Event, running: trio.CancelScope) -> None:
    await anext(signals)
    enough.set()
    await anext(signals)
    running.cancel()


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _say(listeners: Sequence[trio.SocketListener], settings: Settings) -> None:
    host, port = listeners[0].socket.getsockname()[:2]
    at = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    key = " -H 'authorization: Bearer <key>'" if settings.api_keys else ""
    body = json.dumps({**_EXAMPLE, "model": [*settings.mocks, *settings.upstreams][0]})
    print(f"listening on {at}\n", flush=True)
    if settings.loopback or settings.admin_key:
        print(f"open {at}/ in a browser, or ask:\n")
    print(f"curl -i {at}/v1/decisions -H 'content-type: application/json'{key} \\")
    print(f"  -d '{body}'", flush=True)


if __name__ == "__main__":
    main()
