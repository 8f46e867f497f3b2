"""What can be set on the command line, and what is refused there."""

import argparse
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs

from examples.server import demo
from examples.server.behaviour import Behaviour, parse_mock
from examples.server.config_file import arguments_of
from examples.server.tenants import SCOPES
from examples.server.upstream_address import worker_url

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
    upstreams: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    tokenizers: Mapping[str, Path] = attrs.field(factory=dict)
    admin_key: str | None = attrs.field(default=None, repr=False)
    access_log: bool = False
    demo: float | None = None

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
    # Later flags have the last word.
    shown = any(argument.partition("=")[0] == "--demo" for argument in arguments)
    before = [*(demo.FLAGS if shown else ()), *_configured(parser, arguments)]
    given = vars(parser.parse_args([*before, *arguments]))
    given.pop("config", None)
    keys = [*given.pop("api_key"), *_keys_of_file(given.pop("api_key_file"))]
    keys += filter(None, os.environ.get("KVLANES_API_KEYS", "").split(","))
    settings = Settings(api_keys=tuple(keys), **_named(given), **given)
    _judge(parser, settings)
    return settings


def _configured(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """What `--config` says, to stand before the flags, which then have the last word."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path, default=None)
    file: Path | None = finder.parse_known_args(arguments)[0].config
    if file is None:
        return []
    try:
        return arguments_of(file)
    except (OSError, ValueError) as error:
        parser.error(f"--config {file}: {error}")


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """Take the flags that name models out of `given`, as settings."""
    mocks, aliases = dict(given.pop("mock") or ()), dict(given.pop("alias") or ())
    upstreams: dict[str, tuple[str, ...]] = {}
    for name, url in given.pop("worker") or ():
        upstreams[name] = (*upstreams.get(name, ()), url)
    found: dict[str, Any] = {
        "upstreams": upstreams,
        "tokenizers": {name: Path(file) for name, file in given.pop("tokenizer") or ()},
    }
    if upstreams and not aliases:
        aliases = {"jev-latest": next(iter(upstreams))}  # what one of the clients asks for
    if mocks or upstreams:
        found |= {"mocks": mocks, "aliases": aliases}
    elif aliases:
        found["aliases"] = aliases
    return found


def _judge(parser: argparse.ArgumentParser, settings: Settings) -> None:
    models = (*settings.mocks, *settings.upstreams)
    if len(set(models)) != len(models):
        parser.error("a --mock and a --worker have the same name")
    if not settings.tokenizers.keys() <= settings.upstreams.keys():
        parser.error("--tokenizer names a model without a --worker")
    for alias, model in settings.aliases.items():
        if model not in models or alias in models:
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


def _worker(text: str) -> tuple[str, str]:
    name, url = _pair(text)
    return name, worker_url(url)


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
        allow_abbrev=False,  # a flag that is nearly right is an unknown one
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
    add("--worker", action="append", type=_worker, default=None, metavar="NAME=URL",
        help="a real engine (vLLM, SGLang) that serves a model; repeat for more")  # fmt: skip
    add("--tokenizer", action="append", type=_pair, default=None, metavar="NAME=FILE",
        help="a model's tokenizer.json; without one its engines tokenise")  # fmt: skip
    add("--config", type=Path, metavar="FILE", help="TOML with these flags as keys")
    add("--admin-key", help="shows the page, /docs and /metrics to whoever has it")
    add("--access-log", action="store_true", help="a line for each request on standard error")
    add("--demo", nargs="?", type=_seconds, const=60.0, metavar="S",
        help="let built-in clients come and go for S seconds (60), then stop")  # fmt: skip
    add("--mock", action="append", type=parse_mock, default=None, metavar="NAME[:…]",
        help="a simulated model and how it behaves: latency=S, stubborn=S, preflight=S, "
        "down, bad, busy, refuse, tie, impossible, crash, mute")  # fmt: skip
    add("--cache-scope", choices=SCOPES, help="who shares cached prefixes (caller)")
    add("--insecure", action="store_true", help="serve other machines without any key")
    return parser


def _default(flag: str) -> object:
    return getattr(attrs.fields(Settings), flag[2:].replace("-", "_")).default
