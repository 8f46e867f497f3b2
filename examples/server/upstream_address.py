"""Addresses of real engines."""

from urllib.parse import urlsplit


def worker_url(text: str) -> str:
    """An engine's address, checked: `http://HOST[:PORT]`, with or without `/v1`.

    Raises:
        ValueError: Another scheme, no host, a user name, a path or a query.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{text!r} is no http address")
    if parts.path.rstrip("/") not in ("", "/v1") or parts.query or parts.fragment:
        raise ValueError(f"{text!r} must end after the host, or with /v1")
    return f"{parts.scheme}://{parts.netloc}"


def name_of(url: str) -> str:
    """Host and port: what an engine is called as a worker."""
    return urlsplit(url).netloc
