"""The console in a real browser: what the tests do with it, and what they ask of the page."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any, Final

from analytics.report.browser import Browser

NOISE: Final = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
HEIGHT_PX: Final = 900
UNTIL_S: Final = 60.0
LOOK_S: Final = 0.1
# Where pictures are kept, for people who want to look at them.
PICTURES_VARIABLE: Final = "VIEWSTAMP_PICTURES"


class ConsolePage:
    """One page of a browser. Its calls wait in a thread, so that the test's loop goes on."""

    def __init__(self, browser: Browser) -> None:
        """Take over the page of a browser."""
        self._browser = browser

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a method of the DevTools protocol."""
        return await asyncio.to_thread(lambda: self._browser.call(method, **parameters))

    async def look(self, width_px: int, *, dark: bool) -> None:
        """Show the page at a width, in light or dark."""
        metrics = {"width": width_px, "height": HEIGHT_PX, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def go(self, url: str) -> None:
        """Go to an address, and wait until the page has begun."""
        self._browser.events.clear()
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, awaited if it is a promise."""
        options = {"returnByValue": True, "awaitPromise": True}
        result = await self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in result, f"the page fails: {result['exceptionDetails']}"
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true in the page, and return it."""
        try:
            async with asyncio.timeout(UNTIL_S):
                while True:
                    if value := await self.evaluate(expression):
                        return value
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as error:
            shown = await self.evaluate("document.body.innerText")
            told = f"never: {expression}\n{self.noise()}\nthe page shows:\n{shown}"
            raise AssertionError(told) from error

    async def until_text(self, selector: str, text: str) -> None:
        """Wait until an element has some text."""
        found = f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        await self.until(f"({found}).includes({json.dumps(text)})")

    async def text(self, selector: str) -> str:
        """Return the text of an element as it is shown."""
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        names = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **names)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **names)

    async def write(self, text: str) -> None:
        """Write into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def log_in(self, username: str, password: str) -> None:
        """Log in by the keyboard alone."""
        await self.until("document.activeElement?.id === 'username'")
        await self.write(username)
        await self.press("Tab", 9)
        await self.write(password)
        await self.press("Enter", 13, "\r")
        await self.until_text("#connection", "live")

    def noise(self) -> list[str]:
        """Return what the page wrote to the console, and errors and warnings about it."""
        return [str(each) for each in self._browser.events if each["method"] in NOISE]

    def requested(self) -> set[str]:
        """Return the addresses that were asked for."""
        asked = [e for e in self._browser.events if e["method"] == "Network.requestWillBeSent"]
        return {event["params"]["request"]["url"] for event in asked}

    async def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of everything that a screen reader is told of."""
        await self.call("Accessibility.enable")
        nodes = (await self.call("Accessibility.getFullAXTree"))["nodes"]
        shown = [node for node in nodes if not node.get("ignored")]
        return [
            (node.get("role", {}).get("value", ""), node.get("name", {}).get("value", ""))
            for node in shown
        ]

    async def picture(self, name: str) -> bytes:
        """Return the whole page as PNG; it is kept if a variable names a directory."""
        taken = base64.b64decode(await asyncio.to_thread(self._browser.screenshot))
        if directory := os.environ.get(PICTURES_VARIABLE):
            await asyncio.to_thread((Path(directory) / f"{name}.png").write_bytes, taken)
        return taken
