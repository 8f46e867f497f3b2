"""The page in a real browser: it lives, it fits, it is quiet, and it takes text for text."""
# flake8: noqa: ASYNC910 - every wait is in what is called

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from examples.server.pages import load_assets, page
from examples.server.serving import serve
from examples.server.settings import parse_settings
from examples.server.status import Recent, Status
from kvlanes.engine import AdmissionGate
from kvlanes.engine.http import HttpRequest, HttpResponse
from tests.front.browser import CHROMIUM, Browser, Page, browsing
from tests.http.raw import serving as serving_pages
from tests.server.running import Running, nouls, predicates, running

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

SCREENS: list[dict[str, Any]] = [
    {"width": width, "height": height, "dark": dark}
    for width, height in ((390, 844), (1440, 900))
    for dark in (False, True)
]
LIVE = "document.getElementById('state').textContent === 'live'"
MOCKS = ("--permits=8", "--deadline=60", "--mock=mock-fast", "--mock=mock-stuck:latency=60")


@asynccontextmanager
async def seen(
    url: str, browser: Browser | None = None, wait: str = LIVE, **size: Any
) -> AsyncIterator[Page]:
    """A page, in a browser of its own unless given, that in the end complained about nothing."""
    async with AsyncExitStack() as stack:
        if browser is None:
            browser = await stack.enter_async_context(browsing())
        shown = await stack.enter_async_context(browser.page(url, **size))
        await shown.until(wait)
        yield shown
        assert shown.complaints() == []


async def fits(shown: Page, dark: bool) -> None:
    wider = await shown.value("document.documentElement.scrollWidth - innerWidth")
    assert wider <= 0, "the page itself must not scroll sideways"
    ground = await shown.value("getComputedStyle(document.body).backgroundColor")
    assert (brightness(ground) < 0.3) is dark


def number(name: str) -> str:
    return f"Number(document.getElementById('permits-{name}').textContent)"


async def test_numbers_change_while_requests_run_on_every_screen() -> None:
    async with running(*MOCKS) as server, browsing() as browser:
        for size in SCREENS:
            async with seen(f"{server.origin}/", browser, **size) as shown:
                await numbers_change(server, shown)
                await fits(shown, size["dark"])


async def numbers_change(server: Running, shown: Page) -> None:
    await shown.until(f"{number('total')} === 8 && {number('free')} === 8")
    async with server.client() as client:
        await server.occupy(client, "/v1/systemone", nouls("mock-stuck", 3))
        await shown.until(f"{number('held')} === 3 && {number('free')} === 5")
        row = await shown.until("document.querySelector('#holders tbody tr').textContent")
        assert "admitted, dispatched" in row
        since = "parseFloat(document.querySelector('#holders tbody tr').cells[2].textContent)"
        was = await shown.value(since)
        await shown.until(f"{since} > {was}")
    await shown.until(f"{number('held')} === 0")
    decided = "document.querySelectorAll('#decisions details').length"
    before = await shown.value(decided)
    await server.post("/v1/decisions", predicates("mock-fast", 1, "It rains. " * 40))
    await shown.until(f"{decided} === {before + 1}")
    await shown.until("!document.querySelector('.model').textContent.includes('index: 0 blocks')")


def brightness(color: str) -> float:
    parts = [float(part) for part in color.strip("rgb()").split(",")]
    return sum(parts) / 3 / 255


HOSTILE = "<img src=x onerror=alert(1)><script>document.title='owned'</script>"


@asynccontextmanager
async def hostile_status() -> AsyncIterator[tuple[str, AdmissionGate]]:
    """The page's own files before a gate of which a request has a hostile name."""
    gate = AdmissionGate(4)
    status, assets = Status(gate, {}, Recent()), load_assets()

    async def stream(send: Callable[[bytes], Any]) -> None:
        while True:
            await send(b"event: status\ndata: " + status.told() + b"\n\n")
            await trio.sleep(0.05)

    async def handle(request: HttpRequest) -> HttpResponse:
        if request.path == "/status/stream":
            return HttpResponse(200, content_type="text/event-stream", stream=stream)
        return assets.get(request.path, page(b""))

    async with serving_pages(handle) as served:
        yield f"http://127.0.0.1:{served.port}/", gate


async def test_a_hostile_request_id_is_text() -> None:
    async with hostile_status() as (url, gate), seen(url) as shown:
        with gate.admit_nowait(request_id=HOSTILE):
            cell = "document.querySelector('#holders tbody td')"
            await shown.until(f"{cell}.textContent.startsWith('<img')")
            assert await shown.value(f"{cell}.textContent") == HOSTILE
            assert await shown.value(f"{cell}.childElementCount") == 0
            assert await shown.value("document.title") == "kvlanes"
        await shown.until(f"{number('held')} === 0")


async def test_the_page_is_used_by_keyboard() -> None:
    async with running(*MOCKS) as server, seen(f"{server.origin}/") as shown:
        await server.post("/v1/decisions", predicates("mock-fast", 1, "It rains. " * 40))
        await shown.until("document.querySelector('#decisions details')")
        focus = "document.activeElement"
        reached = []
        for _ in range(40):
            await shown.press("Tab")
            reached.append(await shown.value(f"{focus}.id || {focus}.tagName"))
            if reached[-1] == "pause":
                await shown.press("Enter")
            if reached[-1] == "SUMMARY":
                await shown.press("Enter")
                break
        assert reached[:2] == ["A", "pause"], "first the way past the head, then the button"
        assert "DIV" in reached, "tables that scroll can be scrolled by keys"
        assert await shown.until("document.querySelector('#decisions details').open")
        assert await shown.value("document.getElementById('pause').ariaPressed") == "true"
        outline = await shown.value(f"getComputedStyle({focus}).outlineStyle")
        assert outline != "none"


async def test_a_paused_page_stands_still_and_catches_up() -> None:
    async with running(*MOCKS) as server, seen(f"{server.origin}/") as shown:
        await shown.until(f"{number('free')} === 8")
        await shown.value("document.getElementById('pause').click()")
        async with server.client() as client:
            await server.occupy(client, "/v1/systemone", nouls("mock-stuck", 3))
            await shown.until("latest.permits.held === 3")
            assert await shown.value(number("held")) == 0
            await shown.value("document.getElementById('pause').click()")
            assert await shown.value(number("held")) == 3


async def test_an_opened_decision_stays_open_while_others_come() -> None:
    async with running(*MOCKS) as server, seen(f"{server.origin}/") as shown:
        await server.post("/v1/decisions", predicates("mock-fast", 1, "It rains. " * 40))
        await shown.until("document.querySelector('#decisions details')")
        await shown.value("document.querySelector('#decisions details').open = true")
        for i in range(3):
            await server.post("/v1/decisions", predicates("mock-fast", 1, f"{i}. " * 90))
        await shown.until("document.querySelectorAll('#decisions details').length === 4")
        opened = "[...document.querySelectorAll('#decisions details')].map((d) => d.open)"
        assert await shown.value(opened) == [False, False, False, True]
        assert await shown.value("document.querySelectorAll('details[open] tr.chosen').length") == 1


async def test_the_page_finds_a_server_that_was_restarted() -> None:
    async with (
        browsing() as browser,
        server_on(0) as (port, stopping),
        browser.page(f"http://127.0.0.1:{port}/") as shown,
    ):
        await decided(port, shown, "first")
        stopping.set()
        await shown.until("document.getElementById('state').textContent.includes('lost')")
        # Its connection was closed first, so the port can be bound again at once.
        async with server_on(port) as (_, stopping_again):
            await shown.until(LIVE)
            await decided(port, shown, "second")
            stopping_again.set()


@asynccontextmanager
async def server_on(port: int) -> AsyncIterator[tuple[int, trio.Event]]:
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        settings = parse_settings([f"--port={port}", *MOCKS])
        listeners = await nursery.start(serve, settings, stopping)
        yield listeners[0].socket.getsockname()[1], stopping


async def decided(port: int, shown: Page, name: str) -> None:
    """Ask once, and see that decision alone: another server's are gone, its numbers too."""
    server = Running(port, trio.Event(), trio.Event())
    body = predicates("mock-fast", 1, "It rains. " * 40)
    await server.post("/v1/decisions", body, f"x-request-id: {name}\r\n")
    summary = "document.querySelector('#decisions summary').textContent"
    await shown.until(f"{summary}.startsWith('{name}#')")
    assert await shown.value("document.querySelectorAll('#decisions details').length") == 1


async def test_the_api_description_fits_every_screen() -> None:
    many = "document.querySelectorAll('section').length > 20"
    async with running(*MOCKS) as server, browsing() as browser:
        for size in SCREENS:
            async with seen(f"{server.origin}/docs", browser, many, **size) as shown:
                await fits(shown, size["dark"])


# The colour of an element's text, and of the nearest ground behind it.
COLOURS = """(() => {
    const element = document.querySelector('%s');
    let ground = element;
    while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)')
        ground = ground.parentElement;
    return [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
})()"""
PLACES = ("h1", "h3", ".model td", ".model th", "#state", "footer p", "a[href='/docs']")


async def test_colours_are_told_apart() -> None:
    """Text stands out from its ground by the usual measure, 4.5 to 1, in both schemes."""
    async with running(*MOCKS) as server, browsing() as browser:
        for dark in (False, True):
            async with seen(f"{server.origin}/", browser, dark=dark) as shown:
                await shown.until("document.querySelector('.model td')")
                for place in PLACES:
                    pair = await shown.value(COLOURS % place.replace("'", "\\'"))
                    assert contrast(*pair) >= 4.5, (place, dark, pair)


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(color: str) -> float:
    parts = [float(part) / 255 for part in color.strip("rgb()").split(",")]
    linear = [p / 12.92 if p <= 0.03928 else math.pow((p + 0.055) / 1.055, 2.4) for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
