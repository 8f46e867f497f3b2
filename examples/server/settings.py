"""What can be set on the command line, and what is refused there."""

import argparse
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

import attrs

from examples.server.behaviour import Behaviour, parse_mock
from examples.server.tenants import SCOPES

_log = logging.getLogger("examples.server")

# Knobs that may be raised above their default, with the most that is accepted.
_MOST = {
    "permits": 4096,
    "deadline": 3600.0,
    "max_input_tokens": 1_048_576,
}


@attrs.frozen(kw_only=True)
class Settings:
    """One server's settings; seconds, bytes and counts as the flags of the same names say."""

    host: str = "127.0.0.1"
    port: int = 8080
    permits: int = 256
    max_questions: int = 128
    max_body: int = 4 * 1024 * 1024
    deadline: float = 300.0
    grace: float = 1.0
    body_timeout: float = 30.0
    max_input_tokens: int = 65_536
    max_candidates: int = 255
    fanout: int = 4
    preflight_slots: int = 16
    workers: int = 4
    cache_blocks: int = 4096
    block_size: int = 16
    stop_seconds: float = 10.0
    cache_scope: str = "caller"
    insecure: bool = False
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    mocks: Mapping[str, Behaviour] = attrs.field(factory=lambda: {"mock-fast": Behaviour()})
    aliases: Mapping[str, str] = attrs.field(factory=lambda: {"jev-latest": "mock-fast"})

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Read the command line.

    Raises:
        SystemExit: A value that is refused; the reason is on standard error.
    """
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    keys = [*given.pop("api_key"), *_keys_of_file(given.pop("api_key_file"))]
    keys += filter(None, os.environ.get("KVLANES_API_KEYS", "").split(","))
    mocks, aliases = dict(given.pop("mock") or ()), dict(given.pop("alias") or ())
    if mocks:
        given |= {"mocks": mocks, "aliases": aliases}
    elif aliases:
        given["aliases"] = aliases
    settings = Settings(api_keys=tuple(keys), **given)
    _judge(parser, settings)
    return settings


def _judge(parser: argparse.ArgumentParser, settings: Settings) -> None:
    for alias, model in settings.aliases.items():
        if model not in settings.mocks or alias in settings.mocks:
            parser.error(f"--alias {alias}={model}: no such model, or the alias is one")
    if not (settings.loopback or settings.api_keys or settings.insecure):
        parser.error(f"--host {settings.host} needs --api-key, or --insecure to serve anybody")
    if not (settings.loopback or settings.api_keys):
        _log.warning("serving anybody who can reach %s, without any key", settings.host)
    for name, most in _MOST.items():
        if getattr(settings, name) > most:
            parser.error(f"--{name.replace('_', '-')} must be at most {most}")
        default = getattr(attrs.fields(Settings), name).default
        if getattr(settings, name) > default:
            _log.warning("%s is %s, above its default %s", name, getattr(settings, name), default)


def _keys_of_file(path: Path | None) -> list[str]:
    return [] if path is None else path.read_text().split()


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not 0.0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError
    return name, value


_COUNTS = {
    "--permits": "questions answered at once, over all requests",
    "--max-questions": "questions of one request",
    "--max-body": "bytes of one body",
    "--max-input-tokens": "tokens of one request, the shared input counted for each question",
    "--max-candidates": "candidates of one question",
    "--fanout": "further questions of one request at once",
    "--preflight-slots": "threads that prepare requests",
    "--workers": "simulated workers of each model",
    "--cache-blocks": "blocks that each simulated worker can cache",
    "--block-size": "tokens of a block",
}
_SECONDS = {
    "--deadline": "seconds that one request may take",
    "--grace": "seconds that cancelled work is waited for",
    "--body-timeout": "seconds that a body may take to arrive",
    "--stop-seconds": "seconds that running requests get when the server stops",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.server",
        description=__doc__,
        argument_default=argparse.SUPPRESS,
    )
    add: Callable[..., object] = parser.add_argument
    add("--host", help="address to listen on (127.0.0.1)")
    add("--port", type=int, help="port to listen on, 0 for any (8080)")
    for flag, says in _COUNTS.items():
        add(flag, type=_count, metavar="N", help=f"{says} ({_default(flag)})")
    for flag, says in _SECONDS.items():
        add(flag, type=_seconds, metavar="S", help=f"{says} ({_default(flag)})")
    add("--api-key", action="append", default=[], help="a key that may ask; also KVLANES_API_KEYS")
    add("--api-key-file", type=Path, default=None, help="keys that may ask, one a line")
    add("--alias", action="append", type=_pair, default=None, metavar="A=M", help="a second name")
    add("--mock", action="append", type=parse_mock, default=None, metavar="NAME[:…]",
        help="a simulated model and how it behaves: latency=S, stubborn=S, preflight=S, "
        "down, bad, busy, refuse, tie")  # fmt: skip
    add("--cache-scope", choices=SCOPES, help="who shares cached prefixes (caller)")
    add("--insecure", action="store_true", help="serve other machines without any key")
    return parser


def _default(flag: str) -> object:
    return getattr(attrs.fields(Settings), flag[2:].replace("-", "_")).default
