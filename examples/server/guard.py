"""Who may see what only the operator should."""

import hmac
from base64 import b64decode

import attrs

from kvlanes.engine.decisions import UNAUTHORIZED, DecisionError, Fault
from kvlanes.engine.http import HttpRequest

_LOCAL = ("127.0.0.1", "localhost", "[::1]")

HOST = Fault("host_not_allowed", "this page is served under a loopback name only", 421, 421)
CLOSED = Fault("not_found", "start the server with --admin-key to see this", 404, 404)


@attrs.frozen
class Guard:
    """Who may see what only the operator should.

    Attributes:
        key: The admin key; without one only a server on loopback shows anything.
        loopback: Whether only this machine can connect.
    """

    key: str | None = attrs.field(repr=False)
    loopback: bool

    def judge(self, request: HttpRequest) -> None:
        """Let the request pass, or not.

        A server on loopback without a key also looks at the name it was called by: a page from
        elsewhere can make a browser connect here, but not under one of these names.

        Raises:
            DecisionError: `CLOSED`, `HOST` or `UNAUTHORIZED`.
        """
        if self.key is None and not self.loopback:
            raise DecisionError(CLOSED)
        if self.key is None:
            if _host(request.header("host")) not in _LOCAL:
                raise DecisionError(HOST)
        elif not hmac.compare_digest(presented(request).encode(), self.key.encode()):
            raise DecisionError(UNAUTHORIZED)


def _host(header: str | None) -> str:
    """A Host header without its port."""
    name = (header or "").lower()
    return name[: name.index("]") + 1] if "]" in name else name.partition(":")[0]


def presented(request: HttpRequest) -> str:
    """The key in an `Authorization` header: a bearer, or the password that a browser asks for."""
    scheme, _, given = (request.header("authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(given.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
