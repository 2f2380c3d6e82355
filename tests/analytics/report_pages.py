"""Reads the report's page back: its elements, and its numbers computed again from the tables.

This module uses no code of the report, so that it does not repeat the report's mistakes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.analytics import report_tables

VOID = frozenset({"meta", "input", "br", "hr"})
Attributes = Mapping[str, str | None]

MISSING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
# Each unit as shown, and its size in the unit of the table.
FACTORS: dict[str, dict[str, float]] = {
    "us": {"µs": 1, "ms": 1e3, "s": 1e6, "min": 6e7, "h": 3.6e9},
    "s": {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600},
    "bytes": {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    "count": {"": 1, "million": 1e6, "billion": 1e9, "trillion": 1e12},
    "share": {"%": 0.01},
    "times": {TIMES: 1},
    "per_s": {"/s": 1},
    "entities_per_hour": {"entities/h": 1},
    "days": {"days": 1, "years": 365},
    "plain": {"": 1},
}
SHOWN = re.compile(r"(-?[\d,.]+(?:e-?\d+)?)\u202f?(\D*)")


@dataclass(slots=True)
class Element:
    """An element of the page: its tag, its attributes, the text below it."""

    tag: str
    attributes: Attributes
    text: str = ""


@dataclass(slots=True)
class Page(HTMLParser):
    """A parsed page. `faults` lists what is not well-formed."""

    elements: list[Element] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    open_elements: list[Element] = field(default_factory=list)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in VOID:
            self.open_elements.append(element)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be this one."""
        if not self.open_elements or self.open_elements.pop().tag != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        """Give text to all elements that are open."""
        for element in self.open_elements:
            element.text += data

    def all(self, tag: str) -> list[Element]:
        """Return the elements of a tag."""
        return [element for element in self.elements if element.tag == tag]

    def with_class(self, name: str) -> list[Element]:
        """Return the elements of a class."""
        return [e for e in self.elements if name in (e.attributes.get("class") or "").split()]

    def findings(self) -> list[tuple[str, str]]:
        """Return severity and sentence of each finding, in plain characters."""
        lists = [e for e in self.elements if e.attributes.get("data-rule")]
        words = [e.text.replace("\u202f", " ").replace(TIMES, "x") for e in lists]
        return [
            (str(element.attributes["class"]), text.split(str(element.attributes["class"]), 1)[1])
            for element, text in zip(lists, words, strict=True)
        ]


def parse(html: str) -> Page:
    """Return the parsed page; an element that stays open at the end is a fault."""
    page = Page()
    HTMLParser.__init__(page)
    page.feed(html)
    page.close()
    page.faults += [f"<{element.tag}> is not closed" for element in page.open_elements]
    return page


def wrong_numbers(page: Page, directory: Path) -> Iterator[str]:
    """Yield a line for each number on the page that differs from the tables."""
    for element in page.all("data"):
        told = {key: value or "" for key, value in element.attributes.items()}
        want = computed(told, directory)
        if not math.isclose(float(told["value"]), want, rel_tol=1e-9):
            yield f"{told['title']}: the page has {told['value']}, the tables {want}"
        if not shows(element.text, told["data-unit"], want):
            yield f"{told['title']}: the page shows {element.text!r} for {want}"


def computed(told: Mapping[str, str], directory: Path) -> float:
    """Return the number that the attributes describe, from the tables on disk."""
    rows = _rows(directory, told["data-table"], json.loads(told["data-where"]))
    value = _put_together(rows, told["data-column"], told["data-aggregate"])
    if "data-over" not in told:
        return value
    if "data-over-table" in told:
        rows = _rows(directory, told["data-over-table"], json.loads(told["data-over-where"]))
    return value / _put_together(rows, told["data-over"], "sum")


def shows(text: str, unit: str, value: float) -> bool:
    """Return whether the text is the value, rounded to the last digit that is shown."""
    match = SHOWN.fullmatch(text)
    if match is None:
        return False
    digits, factor = match[1].replace(",", ""), FACTORS[unit].get(match[2])
    # The value of one unit of the last digit.
    step = 10.0 ** int(Decimal(digits).as_tuple().exponent)
    return factor is not None and abs(float(digits) - value / factor) <= step * 0.5001


def _rows(directory: Path, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that have all these values."""
    rows = report_tables.read(directory, table)
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def _put_together(rows: list[dict[str, Any]], column: str, how: str) -> float:
    """Return the combined values of the column."""
    if how == "rows":
        return float(len(rows))
    values = [float(row[column]) for row in rows if row[column] is not None]
    if how == "only":
        (value,) = values
        return value
    assert how in {"sum", "max"}, f"{how!r} is no way to put values together"
    return math.fsum(values) if how == "sum" else max(values)
