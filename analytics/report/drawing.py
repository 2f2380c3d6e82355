"""Inline SVG: a canvas, scales, ticks and legends. Colours are classes; the style sheet has them.

A drawing is as wide as the column it stands in, so that text keeps its size: NARROW for one column
and for phones, WIDE for two columns. Units are CSS pixels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from analytics.report import units
from analytics.report.markup import Markup, element

NARROW: Final = 380
WIDE: Final = 800
# The mean width of a character of the page's font at the size of labels.
CHARACTER_WIDTH: Final = 6.6
# Categories with a colour of their own; the rest shares one.
COLOURS: Final = 8
OTHER: Final = "other"
# Sizes of charts with a row for each name.
LABEL_WIDTH: Final = 128
ROW_HEIGHT: Final = 24
AXIS_HEIGHT: Final = 22


@dataclass(frozen=True, slots=True)
class Drawing:
    """One plot: drawings of the same data for one column, and for two if it takes two.

    `summary` describes the plot in words, for readers who cannot see it or want to know what to
    look for. `legend` has pairs of a class and a name.
    """

    key: str
    title: str
    summary: str
    narrow: Markup
    wide: Markup | None = None
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Canvas:
    """An SVG that grows by one element at a time; later elements cover earlier ones."""

    width: float
    height: float
    items: list[Markup] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, **attributes: object) -> None:
        """Add a rectangle with slightly round corners; one without area is left out."""
        if width <= 0 or height <= 0:
            return
        self._add("rect", x=x, y=y, width=width, height=height, **{"rx": 2, **attributes})

    def line(self, x1: float, y1: float, x2: float, y2: float, **attributes: object) -> None:
        """Add a line."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)

    def circle(self, cx: float, cy: float, r: float, **attributes: object) -> None:
        """Add a circle."""
        self._add("circle", cx=cx, cy=cy, r=r, **attributes)

    def path(self, points: str, **attributes: object) -> None:
        """Add a path; `points` is its attribute `d`."""
        self._add("path", d=points, **attributes)

    def text(
        self, x: float, y: float, words: str, width: float | None = None, **attributes: object
    ) -> None:
        """Add a line of text that begins at x, or ends or centres there by `text_anchor`.

        With a width, the text is cut to it.
        """
        shown = words if width is None else fit(words, width)
        self.items.append(element("text", shown, x=x, y=y, **attributes))

    def svg(self, variant: str) -> Markup:
        """Return the SVG. The heading and the words of its figure are its accessible name."""
        return element(
            "svg",
            self.items,
            viewBox=f"0 0 {self.width:.0f} {self.height:.0f}",
            width=self.width,
            height=self.height,
            class_=variant,
            aria_hidden="true",
        )

    def _add(self, tag: str, **attributes: object) -> None:
        self.items.append(element(tag, **attributes))


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to places: linear, or logarithmic from a `low` above 0."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value; values beyond an end get the place of that end."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        part = (value - low) / (high - low) if high > low else 0.5
        return self.start + part * (self.stop - self.start)


class RowChart:
    """A chart with a row for each name: the name, and marks on a scale whose axis is below."""

    def __init__(
        self,
        rows: int,
        ends: tuple[float, float],
        ticks: Sequence[float],
        unit: str,
        *,
        right: float,
        logarithmic: bool = False,
    ) -> None:
        """Draw the axis. The scale leaves `right` free for the text behind a bar."""
        bottom = rows * ROW_HEIGHT + 6
        self.canvas = Canvas(NARROW, bottom + AXIS_HEIGHT)
        self._scale = Scale(*ends, LABEL_WIDTH + 8, NARROW - right, logarithmic)
        x_axis(self.canvas, self._scale, ticks, unit, bottom)

    def spread(self, place: int, name: str, marks: Sequence[tuple[str, float]], tip: str) -> None:
        """Draw the finite values of a row, each with its class, on a line from first to last."""
        y = place * ROW_HEIGHT + ROW_HEIGHT / 2 + 4
        self._name(place, name)
        first, last = self._scale(marks[0][1]), self._scale(marks[-1][1])
        self.canvas.line(first, y, last, y, class_="span")
        for kind, value in marks:
            if math.isfinite(value):
                self.canvas.circle(self._scale(value), y, 5, class_=f"mark {kind}", data_tip=tip)

    def bar(self, place: int, name: str, value: float, told: str, kind: str, tip: str) -> None:
        """Draw the value of a row as a bar, with a text behind it."""
        x, y = self._scale(0), place * ROW_HEIGHT + 8
        length = max(self._scale(value) - x, 1)
        self._name(place, name)
        self.canvas.rect(x, y, length, 16, class_=f"mark {kind}", data_tip=tip)
        self.canvas.text(x + length + 5, y + 12, told, class_="label halo")

    def _name(self, place: int, name: str) -> None:
        y = place * ROW_HEIGHT + 20
        self.canvas.text(LABEL_WIDTH, y, name, LABEL_WIDTH, class_="label", text_anchor="end")


def fit(words: str, width: float) -> str:
    """Return the words, cut with an ellipsis in the middle if they are wider than that.

    Names differ at their ends as often as at their beginnings, so both are kept.
    """
    room = max(3, int(width / CHARACTER_WIDTH))
    if len(words) <= room:
        return words
    head = (room - 1) // 2
    return f"{words[: room - 1 - head]}…{words[len(words) - head :]}"


def colour(place: int) -> str:
    """Return the class of the colour for a category's place, counted from 0."""
    return f"c{place}" if place < COLOURS else "cx"


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Return powers of ten below and above all values: the ends of a logarithmic scale."""
    positive = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    low = math.floor(math.log10(min(positive)))
    high = math.ceil(math.log10(max(positive)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return the powers of ten from low to high, at most so many."""
    first, last = round(math.log10(low)), round(math.log10(high))
    step = max(1, math.ceil((last - first + 1) / most))
    return [10.0**power for power in range(first, last + 1, step)]


def round_ticks(high: float, most: int = 5) -> list[float]:
    """Return round values from 0 on; the last is at least `high`."""
    if not high > 0:
        return [0.0, 1.0]
    rough = high / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * place for place in range(math.ceil(high / step - 1e-9) + 1)]


def byte_ticks(high: float, most: int = 5) -> list[float]:
    """Return round numbers of a binary unit from 0 on; the last is at least `high`."""
    unit = 1024.0 ** max(0, math.floor(math.log(high, 1024))) if high >= 1 else 1.0
    return [tick * unit for tick in round_ticks(high / unit, most)]


def tick_label(value: float, unit: str) -> str:
    """Return the label of a value at an axis: no decimals that are 0, and 0 without a unit."""
    if value == 0:
        return "0"
    return re.sub(r"(\.\d*?)0+(?=\D|$)", r"\1", units.show(value, unit)).replace(
        f".{units.SPACE}", units.SPACE
    )


def x_axis(canvas: Canvas, scale: Scale, ticks: Sequence[float], unit: str, bottom: float) -> None:
    """Draw vertical grid lines from the top to `bottom`, and their labels below."""
    for tick in ticks:
        x = scale(tick)
        anchor = "end" if x > canvas.width - 20 else "start" if x < 20 else "middle"
        canvas.line(x, 4, x, bottom, class_="grid")
        canvas.text(x, bottom + 14, tick_label(tick, unit), class_="tick", text_anchor=anchor)


def y_axis(canvas: Canvas, scale: Scale, ticks: Sequence[float], unit: str, left: float) -> None:
    """Draw horizontal grid lines from `left` on, and their labels before."""
    for tick in ticks:
        y = scale(tick)
        canvas.line(left, y, canvas.width, y, class_="grid")
        canvas.text(left - 6, y + 4, tick_label(tick, unit), class_="tick", text_anchor="end")
