"""A headless Chromium, spoken to over its debugging pipe: no port, no driver, no web socket."""
# flake8: noqa: ASYNC910 - every wait has the test's patience around it

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import attrs
import trio

CHROMIUM = shutil.which("chromium")
PATIENCE_SECONDS = 30.0

# It runs without its own sandbox, since tests may run as root, and talks to nobody but the test.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# The pipe's numbers are fixed: it reads 3 and writes 4.
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


@attrs.define(eq=False)
class Browser:
    """Sends commands and keeps what comes back. One reader task settles all calls."""

    _out: trio.lowlevel.FdStream
    _ids: "count[int]" = attrs.field(factory=lambda: count(1))
    _replies: dict[int, Any] = attrs.field(factory=dict)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    events: list[dict[str, Any]] = attrs.field(factory=list)

    async def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        await self._out.send_all(json.dumps(message).encode() + b"\0")
        with trio.fail_after(PATIENCE_SECONDS):
            while number not in self._replies:
                await self._changed.park()
        reply = self._replies.pop(number)
        assert "error" not in reply, (method, reply)
        return reply["result"]

    async def read(self, source: trio.lowlevel.FdStream) -> None:
        rest = b""
        async for piece in source:
            *messages, rest = (rest + piece).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._replies[message["id"]] = message
                else:
                    self.events.append(message)
            self._changed.unpark_all()

    @asynccontextmanager
    async def page(self, url: str, **size: Any) -> AsyncIterator["Page"]:
        """Open a page; `width`, `height` and `dark` say on what it is seen."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, attached["sessionId"])
        await page.prepare(**size)
        await page.call("Page.navigate", url=url)
        try:
            yield page
        finally:
            with trio.CancelScope(shield=True, relative_deadline=PATIENCE_SECONDS):
                await self.call("Target.closeTarget", targetId=target)


@attrs.frozen(eq=False)
class Page:
    """One tab."""

    _browser: Browser
    _session: str

    async def call(self, method: str, **params: Any) -> Any:
        return await self._browser.call(method, self._session, **params)

    async def prepare(self, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression is, in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, (expression, result)
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true; asked again after every frame of the page."""
        waiting = (
            "new Promise((done) => { const look = () => { const value = (() => {"
            "try { return " + expression + "} catch { return null } })();"
            "value ? done(value) : setTimeout(look, 20) }; look() })"
        )
        with trio.fail_after(PATIENCE_SECONDS):
            result = await self.call(
                "Runtime.evaluate", expression=waiting, awaitPromise=True, returnByValue=True
            )
        return result["result"].get("value")

    async def press(self, key: str) -> None:
        """A key on the keyboard, such as `Tab` or `Enter`."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )

    async def picture(self) -> bytes:
        """A PNG of the whole page."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def complaints(self) -> list[dict[str, Any]]:
        """Errors, warnings and refused loads that the page has caused so far."""
        mine = [e for e in self._browser.events if e.get("sessionId") == self._session]
        return [event["params"] for event in mine if _complains(event)]


def _complains(event: dict[str, Any]) -> bool:
    params = event["params"]
    match event["method"]:
        case "Runtime.exceptionThrown":
            return True
        case "Runtime.consoleAPICalled":
            return params["type"] in ("error", "warning", "assert")
        case "Log.entryAdded":
            return params["entry"]["level"] in ("error", "warning")
        case "Network.loadingFailed":
            return not params["canceled"]
    return False


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """Run Chromium with an empty profile for as long as the block."""
    assert CHROMIUM is not None
    to_it, from_us = os.pipe()
    from_it, to_us = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        started = [sys.executable, "-c", _START, str(to_it), str(to_us), CHROMIUM, *_FLAGS]
        process = await trio.lowlevel.open_process(
            [*started, f"--user-data-dir={profile}"],
            pass_fds=(to_it, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_it)
        os.close(to_us)
        async with trio.lowlevel.FdStream(from_us) as out, trio.lowlevel.FdStream(from_it) as back:
            browser = Browser(out)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(browser.read, back)
                try:
                    yield browser
                finally:
                    nursery.cancel_scope.cancel()
                    process.kill()
                    with trio.CancelScope(shield=True, relative_deadline=PATIENCE_SECONDS):
                        await process.wait()
