"""The files of the page, read once, and the headers that keep them to themselves."""

from pathlib import Path

from kvlanes.engine.http import HttpResponse

_HERE = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ASSETS = {
    "/": "page.html",
    "/page/page.css": "page.css",
    "/page/page.js": "page.js",
    "/page/icon.svg": "icon.svg",
}

# Nothing from elsewhere, no inline script or style, nobody may frame it.
HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)


def load_assets() -> dict[str, HttpResponse]:
    """The page and what it needs, by path; read once."""
    return {path: _asset(_HERE / name) for path, name in _ASSETS.items()}


def _asset(file: Path) -> HttpResponse:
    return page(file.read_bytes(), _TYPES[file.suffix])


def page(body: bytes, content_type: str = _TYPES[".html"]) -> HttpResponse:
    return HttpResponse(200, body, HEADERS, content_type)
