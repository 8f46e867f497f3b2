"""Token ids of a real model: from an engine's tokenise endpoint, or from a file."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from kvlanes.engine import ConfigError
from kvlanes.engine.decisions import NOT_READY, DecisionError

if TYPE_CHECKING:
    import httpx2

Tokenize: TypeAlias = Callable[[str], Sequence[int]]

_LABEL_CHARACTERS = 3  # no label is longer, and no prompt so short


@attrs.frozen
class Endpoint:
    """Where an engine tokenises."""

    url: str
    model: str


class EngineTokenizer:
    """Asks engines, the next one when one fails. Its calls block: for preflight threads.

    All engines of a model have its tokeniser, so any of them may answer. Labels are few and
    always the same: each is asked for once. Threads share it; a lost update of what it remembers
    costs one more call.

    Args:
        client: Shared by all threads; its timeouts bound what cannot be cancelled.
        endpoints: Where to ask, the first choice first.
    """

    def __init__(
        self, client: "httpx2.Client", endpoints: Callable[[], Sequence[Endpoint]]
    ) -> None:
        self._client = client
        self._endpoints = endpoints
        self._labels: dict[str, list[int]] = {}
        self._good: Endpoint | None = None  # answered last, so asked first

    def __call__(self, text: str) -> list[int]:
        """The token ids of a prompt or a label. Blocking.

        Raises:
            DecisionError: `NOT_READY`: no engine tokenised it.
        """
        if len(text) > _LABEL_CHARACTERS:
            return self._ask(text, special=True)
        if text not in self._labels:
            self._labels[text] = self._ask(text, special=False)
        return self._labels[text]

    def _ask(self, text: str, *, special: bool) -> list[int]:
        import httpx2

        for endpoint in sorted(self._endpoints(), key=lambda known: known != self._good):
            body = {"model": endpoint.model, "prompt": text, "add_special_tokens": special}
            try:
                response = self._client.post(f"{endpoint.url}/tokenize", json=body)
                tokens = _tokens(response.json() if response.status_code == 200 else None)
            except (httpx2.TransportError, ValueError):
                continue
            self._good = endpoint
            return tokens
        raise DecisionError(NOT_READY)


def _tokens(answer: object) -> list[int]:
    found = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise ValueError("no token ids")
    return found


def file_tokenizer(path: Path) -> Tokenize:
    """The tokeniser of a `tokenizer.json`.

    Raises:
        ConfigError: The library `tokenizers` is not installed, or the file is none of its files.
    """
    try:
        library: Any = importlib.import_module("tokenizers")
    except ImportError as error:
        raise ConfigError("--tokenizer needs the library: pip install tokenizers") from error
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"--tokenizer {path}: {error}") from error

    def tokenize(text: str) -> list[int]:
        special = len(text) > _LABEL_CHARACTERS
        return list(tokenizer.encode(text, add_special_tokens=special).ids)

    return tokenize
