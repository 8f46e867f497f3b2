"""Who asks, and which cached prefixes they may share."""

import hashlib
import hmac
import secrets
from collections.abc import Collection

import attrs

from kvlanes.engine.decisions import Decision

SCOPES = ("caller", "request", "server")


@attrs.frozen
class Tenants:
    """Checks keys and makes cache namespaces. Keys appear nowhere else.

    Attributes:
        scope: `caller`: prefixes are shared by requests with the same key and
            `prompt_cache_key`; `request`: by nobody; `server`: by all.
    """

    scope: str
    _keys: tuple[bytes, ...] = attrs.field(repr=False)
    _secret: bytes = attrs.field(repr=False)

    @classmethod
    def make(cls, scope: str, keys: Collection[str]) -> "Tenants":
        secret = secrets.token_bytes(32)
        return cls(scope, tuple(_mac(secret, key.encode()) for key in keys), secret)

    def admits(self, key: str) -> bool:
        """Whether `key` may ask, in the same time for every key; anybody may without any keys."""
        presented = _mac(self._secret, key.encode())
        # All are compared, so that the time does not tell which one was close.
        matches = [hmac.compare_digest(presented, known) for known in self._keys]
        return any(matches) or not self._keys

    def namespace(self, key: str, decision: Decision) -> str:
        """The salt under which this request's prefixes are cached, here and on the worker."""
        if self.scope == "request" or not decision.reuse:
            return secrets.token_hex(16)
        if self.scope == "server":
            return _mac(self._secret, b"").hex()
        parts = (key.encode(), (decision.cache_key or "").encode())
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return _mac(self._secret, framed).hex()


def bearer(authorization: str | None) -> str:
    """The key of an `Authorization` header, empty without one."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _mac(secret: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, data, hashlib.sha256)
