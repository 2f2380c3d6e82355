"""Plots of the tables of snapshots: size, churn, latency around cuts, tenants, restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from analytics.report import units
from analytics.report.drawing import (
    AXIS_HEIGHT,
    COLOURS,
    NARROW,
    OTHER,
    WIDE,
    Canvas,
    Drawing,
    RowChart,
    Scale,
    byte_ticks,
    colour,
    round_ticks,
    y_axis,
)
from analytics.report.markup import Markup
from analytics.report.overview import Names, newest, records, stage_order
from analytics.report.reading import Tables

GENERATIONS_DRAWN_MAX: Final = {NARROW: 24, WIDE: 60}
BARS_DRAWN_MAX: Final = 8
CUTS_DRAWN_MAX: Final = 12
HEIGHT: Final = 240
AXIS_LEFT: Final = 62
# The largest width of a column; without it, a single snapshot would fill the plot.
COLUMN_WIDTH_MAX: Final = 34


def growth(tables: Tables, names: Names) -> Drawing | None:
    """Draw the bytes of each section in each snapshot as stacked columns."""
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
    chart = RowChart(len(rows), (0, ticks[-1]), ticks, "us", right=14)
    for place, row in enumerate(records(rows)):
        around, baseline = row["p99_us_around"], row["p99_us_baseline"]
        label = f"{row['generation']:.0f} {names.short(row['rpc'])}"
        tip = f"Snapshot {label}: {units.show(around, 'us')} around the cut, "
        tip += f"else {units.show(baseline, 'us')} ({units.show(row['ratio'], 'times')})"
        chart.spread(place, label, (("step0", baseline), ("c7", around)), tip)
    return Drawing(
        "cuts",
        "p99 around cuts",
        "p99 while a snapshot was cut, and at other times, for the RPC that suffered most from it.",
        chart.canvas.svg("narrow"),
        legend=(("step0", "other times"), ("c7", "around the cut")),
    )


def garbage(tables: Tables, names: Names) -> Drawing | None:
    """Draw the bytes of each sort of garbage in each snapshot as stacked columns."""
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


def tenants(tables: Tables, names: Names) -> Drawing | None:
    """Draw the bytes of the largest tenants in the newest snapshot."""
    summary = "Bytes of the largest tenants in the newest snapshot."
    svg = _newest_bars(tables, "snapshot_tenants", "tenant", "bytes", "bytes")
    return None if svg is None else Drawing("tenants", "Largest tenants", summary, svg)


def restore(tables: Tables, names: Names) -> Drawing | None:
    """Draw how long each section takes to restore from the newest snapshot."""
    title = "Restart from the newest snapshot"
    svg = _newest_bars(tables, "restore_estimate", "section", "seconds", "s")
    return (
        None if svg is None else Drawing("restore", title, "Estimated time of each section.", svg)
    )


def _newest_bars(tables: Tables, table: str, label: str, column: str, unit: str) -> Markup | None:
    """Return a bar for each label, the longest first, from the rows of the newest generation."""
    rows = tables[table]
    rows = rows[rows["generation"] == newest(tables, table)]
    sums = rows.groupby(label)[column].sum()
    sums = sums[sums > 0].sort_values(ascending=False, kind="stable").head(BARS_DRAWN_MAX)
    if sums.empty:
        return None
    chart = RowChart(len(sums), (0, float(sums.max())), (0,), unit, right=68)
    for place, (key, value) in enumerate(sums.items()):
        name, told = str(key).replace("_", " "), units.show(value, unit)
        chart.bar(place, name, float(value), told, "c0", f"{name}: {told}")
    return chart.canvas.svg("narrow")


def _thinned(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return at most so many rows: the last one, and rows at equal distances before it."""
    every = -(-len(rows) // most)
    return rows.iloc[::-every].iloc[::-1]


def _generation_ticks(canvas: Canvas, generations: Sequence[int], step: float) -> None:
    """Write generations below their columns, as many as there is room for."""
    every = max(1, -(-44 // max(1, int(step))))
    for place in range(len(generations) - 1, -1, -every):
        x = AXIS_LEFT + 4 + (place + 0.5) * step
        anchor = "end" if x > canvas.width - 14 else "middle"
        canvas.text(x, HEIGHT - 6, str(generations[place]), class_="tick", text_anchor=anchor)
