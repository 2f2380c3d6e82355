"""Headless Chromium, driven by the DevTools protocol through two pipes: no port, no library.

Messages are JSON, each ended by a zero byte: requests on the browser's descriptor 3, responses and
events on its 4. One page at a time. The profile is a new directory that is removed at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from analytics.report.reading import ReportError

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
REMEDY: Final = "install the Debian package `chromium`"
FLAGS: Final = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# A page takes far less; a browser that is silent for so long will not answer any more.
ANSWER_SECONDS_MAX: Final = 120
READ_BYTES: Final = 1 << 16
# Above the descriptors that the browser gets, so that setting one cannot close another.
DESCRIPTOR_MIN: Final = 10
REQUESTS_DESCRIPTOR: Final = 3
ANSWERS_DESCRIPTOR: Final = 4


class Browser:
    """A running browser with one page. `events` has its unsolicited messages, in order."""

    def __init__(self, requests: int, answers: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._requests = requests
        self._answers = answers
        self._held = b""
        self._last = 0
        self._session: str | None = None

    def attach(self) -> None:
        """Open an empty page; all later calls are about it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a method. Raises ReportError if it fails or has no answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        _write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._last:
                self.events.append(answer)
            elif "error" in answer:
                raise ReportError(f"the browser refuses {method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path, width_px: int, *, dark: bool) -> None:
        """Show a file at this width and in these colours; return when it is loaded."""
        metrics = {"width": width_px, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def screenshot(self) -> str:
        """Return the whole page, all its height, as PNG in base64."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        data: str = taken["data"]
        return data

    def _next(self) -> dict[str, Any]:
        """Return the next message. Raises ReportError if none comes."""
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._answers], [], [], ANSWER_SECONDS_MAX)
            more = os.read(self._answers, READ_BYTES) if ready else b""
            if not more:
                why = "ended" if ready else f"did not answer for {ANSWER_SECONDS_MAX} s"
                raise ReportError(f"the browser {why}: start it by hand to see why")
            self._held += more
        message, _, self._held = self._held.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded


def program() -> str:
    """Return the browser's program. Raises ReportError with what to install if there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise ReportError(f"no browser is found ({', '.join(PROGRAMS)}): {REMEDY}")
    return found


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    """Yield a browser with an empty page; end it and all that it started on exit."""
    path = program()
    with contextlib.ExitStack() as stack:
        # Processes of the browser may write there until the last of them has gone.
        home = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="viewstamp-report-", ignore_cleanup_errors=True)
        )
        their_requests, requests = _pipe()
        stack.callback(os.close, requests)
        answers, their_answers = _pipe()
        stack.callback(os.close, answers)
        try:
            process = _spawn(path, home, their_requests, their_answers)
        finally:
            # Only the browser holds these ends, so the pipe ends when the browser ends.
            os.close(their_requests)
            os.close(their_answers)
        stack.callback(_end, process)
        browser = Browser(requests, answers)
        browser.attach()
        yield browser


def _spawn(path: str, home: str, requests: int, answers: int) -> int:
    """Start the browser in a process group of its own; return its process id."""
    arguments = [path, *FLAGS, f"--user-data-dir={home}"]
    if os.geteuid() == 0:
        # Chromium refuses its sandbox to root. The page is ours, and loads nothing.
        arguments.append("--no-sandbox")
    places = ((requests, REQUESTS_DESCRIPTOR), (answers, ANSWERS_DESCRIPTOR))
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in range(3)
    ]
    actions += [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in places]
    environment = os.environ | {"HOME": home}
    return os.posix_spawn(path, arguments, environment, file_actions=actions, setpgroup=0)


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe to read and to write, from DESCRIPTOR_MIN on."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _end(process: int) -> None:
    """End the browser and what it started, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _write(descriptor: int, message: bytes) -> None:
    """Write all of a message. Raises ReportError if the browser has ended."""
    try:
        while message:
            message = message[os.write(descriptor, message) :]
    except BrokenPipeError as error:
        raise ReportError("the browser ended: start it by hand to see why") from error
