"""Plots of the tables of snapshots: size, churn, latency around cuts, tenants, restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pandas as pd

from analytics.report import units
from analytics.report.drawing import (
    COLOURS,
    NARROW,
    OTHER,
    WIDE,
    Canvas,
    Drawing,
    Scale,
    byte_ticks,
    colour,
    round_ticks,
    x_axis,
    y_axis,
)
from analytics.report.markup import Markup
from analytics.report.overview import Names, newest, records, stage_order
from analytics.report.reading import Tables

GENERATIONS_DRAWN_MAX: Final = {NARROW: 24, WIDE: 60}
BARS_DRAWN_MAX: Final = 8
CUTS_DRAWN_MAX: Final = 12
LABEL_WIDTH: Final = 128
ROW_HEIGHT: Final = 24
AXIS_HEIGHT: Final = 22
HEIGHT: Final = 240
AXIS_LEFT: Final = 62
# A column may be no wider than this, or one snapshot would fill the plot.
COLUMN_WIDTH_MAX: Final = 34


def growth(tables: Tables, names: Names) -> Drawing | None:
    """Draw the bytes of each section in each snapshot, one upon the other."""
    rows = tables["snapshot_sections"].dropna(subset=["generation", "bytes"])
    if rows.empty:
        return None
    by_section = rows.groupby(["generation", "section"])["bytes"].sum().unstack(fill_value=0)
    heaviest = by_section.iloc[-1].sort_values(ascending=False, kind="stable").index
    coloured = stage_order(list(heaviest[: COLOURS - 1]))
    rest = [section for section in by_section.columns if section not in coloured]
    columns = by_section[coloured].assign(**({OTHER: by_section[rest].sum(axis=1)} if rest else {}))
    legend = [(colour(place), str(section)) for place, section in enumerate(coloured)]
    return Drawing(
        "growth",
        "Size of snapshots",
        "Bytes of each section in each snapshot, by generation.",
        _stacks(columns, NARROW),
        _stacks(columns, WIDE),
        tuple(legend + ([("cx", OTHER)] if rest else [])),
    )


def _stacks(columns: pd.DataFrame, width: int) -> Markup:
    """Return a column per generation, cut into the frame's columns in their order."""
    columns = _thinned(columns, GENERATIONS_DRAWN_MAX[width])
    canvas = Canvas(width, HEIGHT)
    ticks = byte_ticks(float(columns.sum(axis=1).max()))
    vertical = Scale(0, ticks[-1], HEIGHT - AXIS_HEIGHT, 8)
    y_axis(canvas, vertical, ticks, "bytes", AXIS_LEFT)
    step = (width - AXIS_LEFT - 4) / len(columns)
    thickness = min(COLUMN_WIDTH_MAX, max(1.5, step - 2))
    for place, (generation, row) in enumerate(columns.iterrows()):
        x = AXIS_LEFT + 4 + place * step + (step - thickness) / 2
        below = 0.0
        for category, (section, size) in enumerate(row.items()):
            top, bottom = vertical(below + size), vertical(below)
            below += size
            kind = "cx" if section == OTHER else colour(category)
            tip = f"Snapshot {generation}: {section} {units.show(size, 'bytes')}"
            gap = 1 if bottom - top > 2 else 0
            canvas.rect(x, top, thickness, bottom - top - gap, class_=f"mark {kind}", data_tip=tip)
    _generation_ticks(canvas, [int(value) for value in columns.index], step)
    return canvas.svg("narrow" if width == NARROW else "wide")


def churn(tables: Tables, names: Names) -> Drawing | None:
    """Draw what each snapshot added and changed (up) and removed (down)."""
    rows = tables["churn"].dropna(subset=["generation"])
    if rows.empty:
        return None
    sums = rows.groupby("generation")[["added", "changed", "removed"]].sum()
    sums = _thinned(sums, GENERATIONS_DRAWN_MAX[NARROW])
    canvas = Canvas(NARROW, HEIGHT)
    up = float((sums["added"] + sums["changed"]).max())
    down = float(sums["removed"].max())
    ticks = round_ticks(max(up, down, 1.0), 4)
    lowest = -next(tick for tick in ticks if tick >= down)
    vertical = Scale(lowest, ticks[-1], HEIGHT - AXIS_HEIGHT, 8)
    below = [-tick for tick in ticks[1:] if -tick >= lowest]
    y_axis(canvas, vertical, [*ticks, *below], "count", AXIS_LEFT)
    step = (NARROW - AXIS_LEFT - 4) / len(sums)
    thickness = min(COLUMN_WIDTH_MAX, max(1.5, step - 2))
    for place, (generation, row) in enumerate(sums.iterrows()):
        x = AXIS_LEFT + 4 + place * step + (step - thickness) / 2
        tip = f"Snapshot {generation}: {row['added']:,} added, {row['changed']:,} changed, "
        tip += f"{row['removed']:,} removed"
        bars = ((0, row["added"], "c1"), (row["added"], row["changed"], "c0"))
        for start, length, kind in (*bars, (-row["removed"], row["removed"], "c5")):
            top, bottom = vertical(start + length), vertical(start)
            canvas.rect(x, top, thickness, bottom - top - 1, class_=f"mark {kind}", data_tip=tip)
    canvas.line(AXIS_LEFT, vertical(0), NARROW, vertical(0), class_="zero")
    _generation_ticks(canvas, [int(value) for value in sums.index], step)
    return Drawing(
        "churn",
        "Churn between snapshots",
        "Entities that each snapshot added, changed and removed since the one before.",
        canvas.svg("narrow"),
        legend=(("c1", "added"), ("c0", "changed"), ("c5", "removed")),
    )


def cuts(tables: Tables, names: Names) -> Drawing | None:
    """Draw p99 around each cut beside the p99 at other times, for the RPC that suffered most."""
    rows = tables["cut_latency"].dropna(subset=["generation", "p99_us_around", "p99_us_baseline"])
    if rows.empty:
        return None
    rows = rows.sort_values("ratio", ascending=False, kind="stable").drop_duplicates("generation")
    rows = rows.sort_values("generation", ascending=False).head(CUTS_DRAWN_MAX)
    ticks = round_ticks(float(rows[["p99_us_around", "p99_us_baseline"]].max().max()), 4)
    bottom = len(rows) * ROW_HEIGHT + 6
    canvas = Canvas(NARROW, bottom + AXIS_HEIGHT)
    scale = Scale(0, ticks[-1], LABEL_WIDTH + 8, NARROW - 14)
    x_axis(canvas, scale, ticks, "us", bottom)
    for place, row in enumerate(records(rows)):
        y = place * ROW_HEIGHT + ROW_HEIGHT / 2 + 4
        around, baseline = row["p99_us_around"], row["p99_us_baseline"]
        label = f"{row['generation']:.0f} {names.short(row['rpc'])}"
        tip = f"Snapshot {label}: {units.show(around, 'us')} around the cut, "
        tip += f"else {units.show(baseline, 'us')} ({units.show(row['ratio'], 'times')})"
        canvas.text(LABEL_WIDTH, y + 4, label, LABEL_WIDTH, class_="label", text_anchor="end")
        canvas.line(scale(baseline), y, scale(around), y, class_="span")
        canvas.circle(scale(baseline), y, 5, class_="mark step0", data_tip=tip)
        canvas.circle(scale(around), y, 5, class_="mark c7", data_tip=tip)
    return Drawing(
        "cuts",
        "p99 around cuts",
        "p99 while a snapshot was cut, and at other times, for the RPC that suffered most from it.",
        canvas.svg("narrow"),
        legend=(("step0", "other times"), ("c7", "around the cut")),
    )


def garbage(tables: Tables, names: Names) -> Drawing | None:
    """Draw the bytes of each sort of garbage in each snapshot, one upon the other."""
    rows = tables["garbage"].dropna(subset=["generation", "what", "bytes"])
    if rows.empty or not rows["bytes"].sum():
        return None
    sorts = rows.assign(what=rows["what"].str.replace("_", " "))
    columns = sorts.groupby(["generation", "what"])["bytes"].sum().unstack(fill_value=0)
    columns = columns.loc[:, columns.sum() > 0]
    return Drawing(
        "garbage",
        "Garbage in snapshots",
        "Bytes, before compression, of what nobody has any use for, in each snapshot.",
        _stacks(columns, NARROW),
        legend=tuple((colour(place), str(what)) for place, what in enumerate(columns.columns)),
    )


class _Bars(NamedTuple):
    """A plot of bars: what it is called, the rows and their columns."""

    key: str
    title: str
    summary: str
    table: str
    label: str
    value: str
    unit: str


def tenants(tables: Tables, names: Names) -> Drawing | None:
    """Draw the bytes of the largest tenants in the newest snapshot."""
    return _newest_bars(
        tables,
        _Bars(
            "tenants",
            "Largest tenants",
            "Bytes of the largest tenants in the newest snapshot.",
            "snapshot_tenants",
            "tenant",
            "bytes",
            "bytes",
        ),
    )


def restore(tables: Tables, names: Names) -> Drawing | None:
    """Draw how long each section takes to restore from the newest snapshot."""
    return _newest_bars(
        tables,
        _Bars(
            "restore",
            "Restart from the newest snapshot",
            "Estimated time of each section.",
            "restore_estimate",
            "section",
            "seconds",
            "s",
        ),
    )


def _newest_bars(tables: Tables, bars: _Bars) -> Drawing | None:
    """Return a bar per label, the longest first, from the rows of the newest generation."""
    generation = newest(tables, bars.table)
    rows = tables[bars.table]
    rows = rows[rows["generation"] == generation]
    sums = rows.groupby(bars.label)[bars.value].sum()
    sums = sums[sums > 0].sort_values(ascending=False, kind="stable").head(BARS_DRAWN_MAX)
    if sums.empty:
        return None
    bottom = len(sums) * ROW_HEIGHT + 6
    canvas = Canvas(NARROW, bottom)
    scale = Scale(0, float(sums.max()), LABEL_WIDTH + 8, NARROW - 68)
    canvas.line(LABEL_WIDTH + 8, 4, LABEL_WIDTH + 8, bottom, class_="grid")
    for place, (label, value) in enumerate(sums.items()):
        _bar(
            canvas, scale, place, str(label).replace("_", " "), units.show(value, bars.unit), value
        )
    return Drawing(bars.key, bars.title, bars.summary, canvas.svg("narrow"))


def _bar(canvas: Canvas, scale: Scale, place: int, label: str, told: str, value: Any) -> None:
    """Draw one bar with its label before it and its value behind it."""
    y = place * ROW_HEIGHT + 6
    x, length = scale(0), max(1.0, scale(float(value)) - scale(0))
    canvas.text(LABEL_WIDTH, y + 12, label, LABEL_WIDTH, class_="label", text_anchor="end")
    canvas.rect(x, y, length, 16, class_="mark c0", data_tip=f"{label}: {told}")
    canvas.text(x + length + 5, y + 12, told, class_="label")


def _thinned(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return at most so many rows: the last, and others at equal distances before it."""
    every = -(-len(rows) // most)
    return rows.iloc[::-every].iloc[::-1]


def _generation_ticks(canvas: Canvas, generations: Sequence[int], step: float) -> None:
    """Write generations below their columns, as many as there is room for."""
    every = max(1, -(-44 // max(1, int(step))))
    for place in range(len(generations) - 1, -1, -every):
        x = AXIS_LEFT + 4 + (place + 0.5) * step
        anchor = "end" if x > canvas.width - 14 else "middle"
        canvas.text(x, HEIGHT - 6, str(generations[place]), class_="tick", text_anchor=anchor)
