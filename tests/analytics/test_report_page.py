"""The page as a whole: complete, well-formed, repeatable, and true to the tables."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from pathlib import Path

import pytest

from analytics import report
from analytics.report import columns
from analytics.schema import TABLES
from tests.analytics import report_pages, report_tables


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with every table."""
    return report_tables.sample(tmp_path_factory.mktemp("report") / "tables")


@pytest.fixture(scope="module")
def html(tables: Path) -> str:
    """Return the page on all tables."""
    return report.write(tables, tables.parent / "out" / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> report_pages.Page:
    """Return the parsed page on all tables."""
    return report_pages.parse(html)


def test_page_is_well_formed(page: report_pages.Page) -> None:
    """Every element is closed where it should be, and no id occurs twice."""
    assert page.faults == []
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))


def test_every_number_is_that_of_the_tables(page: report_pages.Page, tables: Path) -> None:
    """Each number in headlines and findings equals the one computed again from the tables."""
    assert len(page.all("data")) > 40
    assert list(report_pages.wrong_numbers(page, tables)) == []


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("value", "1"), ("data-column", "count"), ("data-where", "{}"), ("data-unit", "bytes")],
)
def test_wrong_number_is_seen(
    page: report_pages.Page, tables: Path, attribute: str, value: str
) -> None:
    """The check above fails for a wrong value, column, condition or unit."""
    number = next(e for e in page.all("data") if e.attributes["data-column"] == "p99_us")
    planted = report_pages.Element("data", {**number.attributes, attribute: value}, number.text)
    assert list(report_pages.wrong_numbers(report_pages.Page(elements=[planted]), tables))


def test_all_parts_are_there(page: report_pages.Page) -> None:
    """If all tables have rows, the page shows each table and draws every plot."""
    shown = {e.attributes["id"] for e in page.all("details")}
    assert shown == {f"table-{name}" for name in TABLES if name != "spans"}
    assert {shown.name for shown in columns.SHOWN} == TABLES.keys() - {"spans"}
    assert not any("data-missing" in e.attributes for e in page.elements)
    assert [e.attributes["id"] for e in page.all("figure")] == [
        "plot-p99-over-time",
        "plot-percentiles",
        "plot-critical-path",
        "plot-stages",
        "plot-heatmap",
        "plot-service-graph",
        "plot-errors",
        "plot-view-changes",
        "plot-growth",
        "plot-churn",
        "plot-cuts",
        "plot-tenants",
        "plot-garbage",
        "plot-restore",
    ]


def test_words_are_those_of_the_page(page: report_pages.Page, tables: Path) -> None:
    """The words printed in a terminal equal those on the page, finding by finding."""
    items = [e for e in page.all("li") if "data-rule" in e.attributes]
    told = report.sentences(tables)
    assert len(told) == len(items) > 5
    for sentence, item in zip(told, items, strict=True):
        assert sentence.severity == item.attributes["class"]
        assert item.text.endswith(sentence.severity + sentence.text)


def raw_of(cell: report_pages.Element) -> float:
    """Return the raw value of a cell, NaN if it has none."""
    return float(cell.attributes.get("data-raw") or "nan")


def test_tables_have_semantics(page: report_pages.Page) -> None:
    """Each table has a caption, headings with a scope, and numbers with their raw value."""
    assert len(page.all("caption")) == len(page.all("table")) == len(TABLES) - 1
    assert all(e.attributes.get("scope") == "col" for e in page.all("th"))
    cells = [e for e in page.all("td") if e.attributes.get("class") == "number"]
    told = [cell for cell in cells if cell.text != report_pages.MISSING]
    assert len(told) > 500
    assert [cell.text for cell in told if not math.isfinite(raw_of(cell))] == []
    # The page shows an absent number as a dash, which sorts unlike any number.
    lacking = [cell for cell in cells if cell.text == report_pages.MISSING]
    assert lacking
    assert {cell.attributes.get("data-raw") for cell in lacking} == {None}


def test_long_table_is_cut_and_says_so(page: report_pages.Page) -> None:
    """From 360 rows the first 200 by their measure are shown, and the page says so."""
    red = next(e for e in page.all("details") if e.attributes["id"] == "table-rpc_red")
    assert "The 200 with the largest p99, of 360." in red.text
    assert "200 shown" in red.text


def test_page_is_repeatable(tables: Path, html: str, tmp_path: Path) -> None:
    """The same tables give the same page, byte for byte."""
    again = report.write(tables, tmp_path / "again.html")
    assert again.read_text(encoding="utf-8") == html
    assert [path.name for path in tmp_path.iterdir()] == ["again.html"]


def test_page_loads_nothing(html: str, page: report_pages.Page) -> None:
    """No element points outside, and the policy allows the style and the script in it alone."""
    assert "://" not in re.sub(r"http://www\.w3\.org/2000/svg", "", html)
    assert "url(" not in html
    links = [
        e.attributes[key] for e in page.elements for key in ("href", "src") if key in e.attributes
    ]
    assert all(str(link).startswith("#") for link in links)
    policy = next(e for e in page.all("meta") if "http-equiv" in e.attributes).attributes["content"]
    for tag in ("style", "script"):
        (asset,) = page.all(tag)
        digest = base64.b64encode(hashlib.sha256(asset.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'")
    assert not any("style" in e.attributes for e in page.elements)


def test_plots_are_described(page: report_pages.Page) -> None:
    """Each plot has a heading and a sentence; its drawing is left out for screen readers."""
    assert len(page.all("figcaption")) == len(page.all("figure"))
    assert all(e.attributes.get("aria-hidden") == "true" for e in page.all("svg"))
    assert all(len(e.text) > 30 for e in page.all("figcaption"))
