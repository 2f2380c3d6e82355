"""The console of real replicas in a real browser: Debian's Chromium, headless.

Without Chromium these tests fail and name the package to install; they are never skipped.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from analytics.report import browser
from analytics.report.browser import Browser
from tests.analytics.test_report_browser import CONTRAST, CONTRAST_MIN
from tests.replicas.console_page import ConsolePage
from tests.replicas.trial import ReplicasTrial, trial
from viewstamp.api.users.v1 import users_pb2
from viewstamp.cluster import Program
from viewstamp.cluster.local import COORDINATOR
from viewstamp.cluster.preflight import free_address

pytestmark = pytest.mark.long

# The broker says nothing during a test, and is not fenced for that.
TIMEOUT_MS: Final = 3_600_000
WIDTHS_PX = (390, 1280)
HOSTILE: Final = "<script>document.title='taken'</script>"
PASSWORD: Final = "a reader's password"
# Of Chromium itself: it says in the log that an answer was no success, as of a login first.
EXPECTED_NOISE: Final = "status of 401"
ROLES: Final = ("banner", "main", "contentinfo", "navigation", "table", "columnheader", "meter")
REGIONS: Final = (
    *("Cluster", "Alarms", "Replicas", "This replica", "Snapshots", "Streams"),
    *("Consumer groups by lag", "Brokers"),
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Yield a running browser; without one, fail with the package to install."""
    with browser.running() as running:
        yield running


@dataclasses.dataclass
class Consoles:
    """A cluster, and where the console of each replica is."""

    made: ReplicasTrial
    addresses: list[str]

    def url(self, replica: int) -> str:
        """Return where a browser finds the console of a replica."""
        return f"http://{self.addresses[replica]}/"

    @property
    def root_password(self) -> str:
        """Root's password."""
        return self.made.replicas.root_password_path.read_text().strip()


@asynccontextmanager
async def consoles(directory: Path) -> AsyncIterator[Consoles]:
    """Start three replicas with consoles, and fill them."""
    addresses = [free_address("127.0.0.1:0") for _ in range(3)]

    def with_console(replica: int, program: Program) -> Program:
        if program.name != COORDINATOR:
            return program
        flag = f"--console-listen={addresses[replica]}"
        return dataclasses.replace(program, command=(*program.command, flag))

    async with trial(directory, callers=2, adapt=with_console) as made:
        await fill(made)
        yield Consoles(made, addresses)


async def fill(made: ReplicasTrial) -> None:
    """Create something for each panel."""
    client = made.admin
    await client.streams.create("harbour")
    await client.streams.create(HOSTILE)
    for number in range(60):
        await client.streams.create(f"stream-{number:02}")
    topic = await client.topics.create("harbour", "ships", partitions_count=1)
    await client.topics.create("harbour", HOSTILE, partitions_count=12)
    await client.topics.report_partition_ends("harbour", topic.topic_id, {0: 1_100})
    await client.groups.create("harbour", "ships", "pilots")
    await client.groups.commit_offsets("harbour", "ships", "pilots", {0: 100})
    endpoints = {"client": ("10.0.0.1", 9092)}
    await client.brokers.register(
        "tug", endpoints, storage_id="a", rack="r1", timeout_ms=TIMEOUT_MS
    )
    await client.snapshots.create()
    permissions = users_pb2.Permissions()
    getattr(permissions, "global").read_streams = True
    await client.users.create("reader", PASSWORD, permissions=permissions)


async def open_stream(page: ConsolePage, name: str) -> None:
    """Choose a stream, and wait for its topics."""
    buttons = "[...document.querySelectorAll('#panel-streams button.link')]"
    found = f"{buttons}.find((each) => each.textContent === '{name}')"
    await page.until(f"Boolean({found})")
    await page.evaluate(f"{found}.click()")
    await page.until_text("#title-topics", name)


async def test_console_shows_a_cluster_live(chromium: Browser, tmp_path: Path) -> None:
    """Login, all panels, changes without reload, looks, a failover, permissions, logout."""
    async with consoles(tmp_path) as made:
        page = ConsolePage(chromium)
        await page.look(1280, dark=False)
        backup = (await made.made.primary() + 1) % 3
        await page.go(made.url(backup))
        await page.log_in("root", made.root_password)
        await panels_are_filled(page, backup)
        await names_are_text(page)
        await changes_show_without_reload(page, made)
        await filter_finds(page)
        for width_px in WIDTHS_PX:
            for dark in (False, True):
                await looks_right(page, width_px, dark=dark)
        await page.look(1280, dark=False)
        await screen_readers_find_everything(page)
        assert all(url.startswith(made.url(backup)) for url in page.requested())
        assert [each for each in page.noise() if EXPECTED_NOISE not in each] == []
        await failover_shows(page, made)
        await logout_ends(page)
        await reader_sees_less(page, made)


async def panels_are_filled(page: ConsolePage, backup: int) -> None:
    """Every panel shows what was made."""
    await page.until_text("#facts", "replica")
    await page.until_text("#panel-replicas", "primary")
    await page.until_text("#panel-here", f"Replica\n{backup}")
    await page.until_text("#panel-here", "Disk data, free")
    await page.until_text("#panel-snapshots", "completed")
    await page.until_text("#panel-streams", "harbour")
    await page.until_text("#panel-brokers", "client://10.0.0.1:9092")
    await page.until_text("#panel-groups", "harbour / ships / pilots")
    await page.until_text("#panel-groups", "1,000")
    await page.until("document.querySelectorAll('#rates .spark path').length === 6")


async def names_are_text(page: ConsolePage) -> None:
    """A name that is markup is shown as it is, and does nothing."""
    await page.until_text("#panel-streams", HOSTILE)
    await open_stream(page, "harbour")
    await page.until_text("#panel-topics", HOSTILE)
    assert await page.evaluate("document.title") == "Viewstamp console"
    assert await page.evaluate("document.querySelectorAll('script').length") == 1


async def changes_show_without_reload(page: ConsolePage, made: Consoles) -> None:
    """What another client does is shown in the open page."""
    await page.evaluate("window.stayed = true")
    await made.made.admin.topics.create("harbour", "lighthouses", partitions_count=3)
    await page.until_text("#panel-topics", "lighthouses")
    await made.made.admin.topics.delete("harbour", "lighthouses")
    await page.until("!document.querySelector('#panel-topics').innerText.includes('lighthouses')")
    assert await page.evaluate("window.stayed")


async def filter_finds(page: ConsolePage) -> None:
    """A filter finds what is on no page that is shown, and the pages lead there, too."""
    await page.until("!document.querySelector('#panel-streams').innerText.includes('stream-59')")
    await page.evaluate("document.querySelector('#panel-streams-filter').focus()")
    await page.write("STREAM-59")
    await page.until_text("#panel-streams", "stream-59")
    assert "stream-10" not in await page.text("#panel-streams")
    await page.evaluate(
        "document.querySelector('#panel-streams-filter').value = '';"
        "document.querySelector('#panel-streams-filter').dispatchEvent(new Event('input'))"
    )
    await page.until_text("#panel-streams", "stream-10")
    await page.evaluate("document.querySelector('#panel-streams [data-key=\"Next page\"]').click()")
    await page.until_text("#panel-streams", "stream-59")
    await page.evaluate(
        "document.querySelector('#panel-streams [data-key=\"Previous page\"]').click()"
    )
    await page.until_text("#panel-streams", "stream-10")


async def looks_right(page: ConsolePage, width_px: int, *, dark: bool) -> None:
    """At a width, in light or dark: no overflow, readable text, the right background."""
    await page.look(width_px, dark=dark)
    await page.until(f"document.documentElement.clientWidth === {width_px}")
    assert await page.evaluate("document.documentElement.scrollWidth") == width_px
    # Whatever moves from one colour to the other has arrived.
    await page.evaluate("Promise.allSettled(document.getAnimations().map((each) => each.finished))")
    contrast, where = await page.evaluate(CONTRAST)
    assert contrast >= CONTRAST_MIN, where
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 21, 27)") == dark
    await page.evaluate("window.scrollTo(0, 0)")
    written = await page.picture(f"console-{width_px}-{'dark' if dark else 'light'}")
    assert struct.unpack(">II", written[16:24])[0] == width_px


async def screen_readers_find_everything(page: ConsolePage) -> None:
    """Landmarks, regions with names, tables with headings, and labels of all controls."""
    told = await page.accessible()
    roles = {role for role, _ in told}
    assert roles >= set(ROLES)
    regions = {name for role, name in told if role == "region"}
    assert regions >= set(REGIONS), regions
    controls = [each for each in told if each[0] in ("button", "searchbox", "textbox", "image")]
    assert controls and all(name for _, name in controls), controls
    assert ("status", "") not in told or ("StaticText", "live") in told
    # The keyboard reaches what the mouse does: the first stop skips the bar.
    await page.evaluate("document.activeElement?.blur(); window.scrollTo(0, 0)")
    await page.look(390, dark=False)
    narrow = await page.accessible()
    assert ("rowheader" in {role for role, _ in narrow}) and ("table" in {r for r, _ in narrow})
    await page.look(1280, dark=False)


async def failover_shows(page: ConsolePage, made: Consoles) -> None:
    """The primary is killed: the page of a backup goes on, and shows the new primary."""
    former = await made.made.primary()
    before = await page.text("#facts")
    assert f"replica {former}" in before
    made.made.replicas.replicas[former].kill(COORDINATOR)
    await page.until(
        "/replica \\d/.test(document.querySelector('#facts').innerText) &&"
        f" !document.querySelector('#facts').innerText.includes('replica {former}')"
    )
    await made.made.replicas.wait_ready()
    await page.until_text("#connection", "live")
    await made.made.admin.topics.create("harbour", "buoys", partitions_count=1)
    await page.until_text("#panel-topics", "buoys")
    assert await page.evaluate("window.stayed")


async def logout_ends(page: ConsolePage) -> None:
    """After logout nothing is left on the page, and the cookie opens nothing."""
    await page.evaluate("document.querySelector('#logout').click()")
    await page.until("!document.querySelector('#login').hidden")
    assert await page.evaluate("document.querySelector('#panels').hidden")
    assert "harbour" not in await page.evaluate("document.body.textContent")
    assert await page.evaluate("fetch('/session').then((answer) => answer.status)") == 401
    await page.picture("console-login")


async def reader_sees_less(page: ConsolePage, made: Consoles) -> None:
    """A user sees what it may read, and the other panels say why they show nothing. When its
    password is changed, the page ends by itself."""
    await page.until("document.activeElement?.id === 'username'")
    await page.write("reader")
    await page.press("Tab", 9)
    await page.write("wrong")
    await page.press("Enter", 13, "\r")
    await page.until("document.querySelector('#login-error').innerText !== ''")
    await page.evaluate("location.reload()")
    await page.log_in("reader", PASSWORD)
    await page.until_text("#panel-overview [data-problem]", "Your user may not see this")
    await page.until_text("#panel-streams", "harbour")
    await page.until_text("#panel-brokers", "tug")
    await page.picture("console-reader")
    await made.made.admin.users.change_password(f"{PASSWORD}!", user="reader")
    await page.until_text("#login-error", "The login has ended")
    assert "harbour" not in await page.evaluate("document.body.textContent")
