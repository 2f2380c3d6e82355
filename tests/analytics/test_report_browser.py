"""The page as a browser shows it: Debian's Chromium, headless, driven through pipes.

Without Chromium these tests fail and name the package to install; they are never skipped.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analytics import report
from analytics.report import __main__ as report_command
from analytics.report import browser, image
from analytics.report.browser import Browser
from tests.analytics import report_pages, report_tables
from tests.analytics.test_report_escaping import hostile

pytestmark = pytest.mark.long

WIDTHS_PX = (390, 768, 1280)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
NOISE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
# The contrast that WCAG 2 requires of text at level AA.
CONTRAST_MIN = 4.5

NUMBERS = """
Array.from(document.querySelectorAll("data"), (element) => [
  Object.fromEntries(Array.from(element.attributes, (one) => [one.name, one.value])),
  element.textContent,
  element.getClientRects().length > 0,
])
"""
# The lowest contrast of any visible text with its background, and that text.
CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const channels = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data);
  };
  const luminance = (rgb) => rgb.slice(0, 3).map((channel) => channel / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = channels(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255 && !(one instanceof SVGElement)) return colour;
    }
    return channels("Canvas");
  };
  let worst = [99, ""];
  for (const element of document.querySelectorAll("body *")) {
    const own = Array.from(element.childNodes).some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = channels(element instanceof SVGElement ? style.fill : style.color);
    const pair = [luminance(ink), luminance(behind(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < worst[0]) worst = [contrast, element.outerHTML.slice(0, 200)];
  }
  return worst;
})()
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Yield a running browser; without one, fail with the package to install."""
    with browser.running() as running:
        yield running


@pytest.fixture(scope="module", params=["plain", "hostile"])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the sample's tables, with plain names and with hostile ones."""
    directory = tmp_path_factory.mktemp("report")
    if request.param == "hostile":
        return hostile(directory)
    return report_tables.sample(directory / "tables")


@pytest.fixture(scope="module")
def page(tables: Path) -> Path:
    """Return the page on the tables."""
    return report.write(tables, tables.parent / "report.html")


def evaluate(chromium: Browser, expression: str) -> Any:
    """Return the value of an expression in the page, awaited if it is a promise."""
    options = {"returnByValue": True, "awaitPromise": True}
    result = chromium.call("Runtime.evaluate", expression=expression, **options)
    assert "exceptionDetails" not in result, f"the page fails: {result['exceptionDetails']}"
    return result["result"].get("value")


def noise(chromium: Browser) -> list[dict[str, Any]]:
    """Return what the page wrote to the console, and errors and warnings about it."""
    return [event for event in chromium.events if event["method"] in NOISE]


def requests(chromium: Browser) -> list[str]:
    """Return the addresses that were asked for."""
    asked = [e for e in chromium.events if e["method"] == "Network.requestWillBeSent"]
    return [event["params"]["request"]["url"] for event in asked]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width_px", WIDTHS_PX)
def test_page_is_shown(
    chromium: Browser, page: Path, tables: Path, width_px: int, dark: bool
) -> None:
    """At each width and in both schemes: right numbers, quiet console, no request, no overflow."""
    chromium.open(page, width_px, dark=dark)
    numbers = evaluate(chromium, NUMBERS)
    assert len(numbers) > 40
    assert all(is_visible for _, _, is_visible in numbers)
    elements = [report_pages.Element("data", told, text) for told, text, _ in numbers]
    assert list(report_pages.wrong_numbers(report_pages.Page(elements=elements), tables)) == []
    evaluate(chromium, 'document.querySelectorAll("details").forEach((one) => { one.open = true })')
    contrast, where = evaluate(chromium, CONTRAST)
    assert contrast >= CONTRAST_MIN, where
    assert evaluate(chromium, "document.documentElement.scrollWidth") == width_px
    background = evaluate(chromium, "getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 15, 14)") == dark
    assert noise(chromium) == []
    assert requests(chromium) == [page.resolve().as_uri()]


def test_switch_changes_colours(chromium: Browser, page: Path) -> None:
    """The switch turns light into dark and back, whatever the system prefers."""
    seen = []
    for dark in (False, True):
        chromium.open(page, 1280, dark=dark)
        for _ in range(2):
            evaluate(chromium, 'document.getElementById("theme").click()')
            seen.append(evaluate(chromium, "getComputedStyle(document.body).backgroundColor"))
    assert seen[0] == seen[3] == "rgb(15, 15, 14)"
    assert seen[1] == seen[2] != seen[0]


def test_table_is_sorted(chromium: Browser, page: Path) -> None:
    """A heading sorts by value, not by text, down and then up, with absent values last."""
    chromium.open(page, 1280, dark=False)
    orders = evaluate(
        chromium,
        """
      (() => {
        const table = document.getElementById("table-growth-grid");
        const headings = [...table.tHead.rows[0].cells];
        const heading = headings.find((one) => one.textContent === "days to limit");
        return [1, 2].map(() => {
          heading.querySelector("button").click();
          const cells = [...table.tBodies[0].rows].map((row) => row.cells[heading.cellIndex]);
          return [heading.getAttribute("aria-sort"), cells.map((cell) => cell.dataset.raw ?? "")];
        });
      })()
    """,
    )
    assert orders == [
        ["descending", ["200", "21", "", ""]],
        ["ascending", ["21", "200", "", ""]],
    ]


def test_table_is_filtered(chromium: Browser, page: Path) -> None:
    """The filter keeps the rows that have every word, and shows their number."""
    chromium.open(page, 1280, dark=False)
    left = evaluate(
        chromium,
        """
      (() => {
        const input = document.querySelector('[data-filter="table-critical_path-grid"]');
        input.value = "JOURNAL p99";
        input.dispatchEvent(new Event("input"));
        const rows = [...document.querySelectorAll("#table-critical_path-grid tbody tr")];
        return [rows.filter((row) => !row.hidden).map((row) => row.cells[2].textContent.slice(-7)),
          document.querySelector('[data-count="table-critical_path-grid"]').textContent];
      })()
    """,
    )
    assert left == [["journal"] * 3, "3 shown"]


def test_mark_says_what_it_is(chromium: Browser, page: Path) -> None:
    """The pointer on a mark shows its words, as text."""
    chromium.open(page, 1280, dark=False)
    told = evaluate(
        chromium,
        """
      (() => {
        const mark = document.querySelector("#plot-errors [data-tip]");
        mark.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
        const tip = document.getElementById("tip");
        return [tip.hidden, tip.textContent === mark.dataset.tip, tip.children.length];
      })()
    """,
    )
    assert told == [False, True, 0]


def test_plots_become_pictures(chromium: Browser, page: Path) -> None:
    """Each plot is saved as a PNG of twice its size that shows more than its background."""
    chromium.open(page, 1280, dark=True)
    pictures = evaluate(
        chromium,
        """
      (async () => {
        const made = [];
        for (const figure of document.querySelectorAll("figure")) {
          const blob = await png(figure);
          const bitmap = await createImageBitmap(blob);
          const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
          context.drawImage(bitmap, 0, 0);
          const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
          const colours = new Set(new Uint32Array(data.buffer));
          made.push([figure.id, blob.type, bitmap.width, colours.size]);
        }
        return made;
      })()
    """,
    )
    assert len(pictures) == 14
    for name, kind, width, colours in pictures:
        assert kind == "image/png", name
        assert width == (1600 if name in WIDE_PLOTS else 760), name
        assert colours > 10, name
    assert noise(chromium) == []
    assert not [url for url in requests(chromium) if not url.startswith(("file:", "blob:"))]


WIDE_PLOTS = {"plot-p99-over-time", "plot-service-graph", "plot-growth"}


def test_injected_script_would_be_refused(chromium: Browser, page: Path) -> None:
    """The page's policy refuses to run a script that a name injects, and the tests would see it."""
    planted = page.with_name("planted.html")
    markup = '<img src="x" onerror="document.title=1"><script>document.title=2</script></body>'
    planted.write_text(page.read_text("utf-8").replace("</body>", markup), encoding="utf-8")
    chromium.open(planted, 1280, dark=False)
    assert evaluate(chromium, "document.title") == "Viewstamp insight"
    assert noise(chromium)


def test_page_becomes_a_picture(page: Path) -> None:
    """The whole page is written as PNG, as wide as asked for, and higher than a screen."""
    written = image.write(page, page.with_suffix(".png"), 800, dark=True).read_bytes()
    assert written.startswith(PNG_SIGNATURE)
    width, height = struct.unpack(">II", written[16:24])
    assert width == 800
    assert height > 2_000


@pytest.mark.parametrize("dark", [False, True])
def test_command_takes_the_picture(tables: Path, tmp_path: Path, dark: bool) -> None:
    """`python -m analytics.report … --png` writes page and picture, in the colours asked for."""
    picture = tmp_path / "report.png"
    command = [str(tables), str(tmp_path / "report.html"), "--png", str(picture)]
    assert report_command.main([*command, *(["--dark"] if dark else [])]) == 0
    written = picture.read_bytes()
    assert (tmp_path / "report.html").is_file()
    assert struct.unpack(">II", written[16:24])[0] == image.WIDTH_PX
    taken = image.write(tmp_path / "report.html", tmp_path / "other.png", dark=not dark)
    assert taken.read_bytes() != written


def test_picture_that_cannot_be_written(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 1 and one line that names the file."""
    command = [str(tables), str(tmp_path / "report.html"), "--png", str(tmp_path / "no" / "x.png")]
    assert report_command.main(command) == 1
    assert "x.png cannot be written (No such file or directory)" in capsys.readouterr().err


def test_page_is_read_without_script(chromium: Browser, page: Path) -> None:
    """Without JavaScript the page is drawn, and shows no control that needs a script."""
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(page, 390, dark=False)
        picture = base64.b64decode(chromium.screenshot())
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    assert picture.startswith(PNG_SIGNATURE)
    parsed = report_pages.parse(page.read_text("utf-8"))
    controls = [*parsed.all("button"), *parsed.with_class("filter")]
    assert controls
    assert all("hidden" in control.attributes for control in controls)


def test_missing_browser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without Chromium the error says which package to install."""
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(report.ReportError, match="install the Debian package `chromium`"):
        browser.program()
