"""Who may see what only the operator should."""

import hmac
from base64 import b64decode
from ipaddress import ip_address

import attrs

from kvlanes.engine.decisions import UNAUTHORIZED, DecisionError, Fault
from kvlanes.engine.http import HttpRequest

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
            if not _local(request.header("host")):
                raise DecisionError(HOST)
        elif not hmac.compare_digest(presented(request).encode(), self.key.encode()):
            raise DecisionError(UNAUTHORIZED)


def _local(header: str | None) -> bool:
    """Whether a Host header names this machine by loopback."""
    name = (header or "").lower()
    bracket = name.find("]")
    host = name[1:bracket] if bracket > 0 else name.partition(":")[0]
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


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
