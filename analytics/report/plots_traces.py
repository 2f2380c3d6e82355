"""Plots of the tables of traces: percentiles, stages, critical path, heatmap, p99 over time."""

from __future__ import annotations

import math
from typing import Any, Final

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
    colour,
    decades,
    log_ticks,
    round_ticks,
    tick_label,
    x_axis,
    y_axis,
)
from analytics.report.markup import Markup
from analytics.report.overview import Names, entries, records, stage_order
from analytics.report.reading import Tables

RPCS_DRAWN_MAX: Final = 10
PATHS_DRAWN_MAX: Final = 5
LINES_DRAWN_MAX: Final = 5
VIEWS_DRAWN_MAX: Final = 12
# Windows of a week are 10,000; a line with more points than pixels shows no more.
POINTS_MAX: Final = {NARROW: 90, WIDE: 240}
# Lines with more points get small dots without a rim, because rims would break up the line.
DOTS_LARGE_MAX: Final = 40
HEATMAP_COLUMNS_MAX: Final = 48
# Shades of the heatmap, the first for the fewest calls.
HEATMAP_SHADES: Final = 6
PERCENTILES: Final = ("p50_us", "p90_us", "p99_us")
PERCENTILES_LEGEND: Final = (("step0", "p50"), ("step1", "p90"), ("step2", "p99"))


def percentiles(tables: Tables, names: Names) -> Drawing | None:
    """Draw p50, p90 and p99 of each RPC, the median of its windows, on a logarithmic scale."""
    rows = entries(tables).dropna(subset=list(PERCENTILES)).head(RPCS_DRAWN_MAX)
    if rows.empty:
        return None
    rows = rows.sort_values("p99_us", ascending=False)
    return Drawing(
        "percentiles",
        "Latency per RPC",
        "Median over windows of p50, p90 and p99 of the RPCs on which most time is spent, "
        "on a logarithmic scale.",
        _percentile_rows([(names.short(row["rpc"]), row, "") for row in records(rows)]),
        legend=PERCENTILES_LEGEND,
    )


def _percentile_rows(rows: list[tuple[str, dict[str, Any], str]]) -> Markup:
    """Return a row for each name with its percentiles, and the text behind them."""
    ends = decades([row[name] for _, row, _ in rows for name in PERCENTILES])
    chart = RowChart(len(rows), ends, log_ticks(*ends), "us", right=12, logarithmic=True)
    for place, (label, row, more) in enumerate(rows):
        told = ", ".join(f"{name[:3]} {units.show(row[name], 'us')}" for name in PERCENTILES)
        marks = [(f"step{step}", row[name]) for step, name in enumerate(PERCENTILES)]
        chart.spread(place, label, marks, f"{label}: {told}{more}")
    return chart.canvas.svg("narrow")


def p99_over_time(tables: Tables, names: Names) -> Drawing | None:
    """Draw the p99 of the busiest RPCs in each window."""
    chosen = records(entries(tables).head(LINES_DRAWN_MAX))
    rows = tables["rpc_red"].dropna(subset=["p99_us", "window_start"])
    lines = []
    for entry in chosen:
        of = (rows["rpc"] == entry["rpc"]) & (rows["service"] == entry["service"])
        line = rows[of].sort_values("window_start")
        if not line.empty:
            lines.append((names.short(entry["rpc"]), line))
    if not lines or max(len(line) for _, line in lines) < 2:
        return None
    legend = tuple((colour(place), name) for place, (name, _) in enumerate(lines))
    return Drawing(
        "p99-over-time",
        "p99 over time",
        "p99 of the RPCs on which most time is spent, on a logarithmic scale (UTC). Where windows "
        "are too many, the worst of those that share a place.",
        _p99_lines(lines, NARROW),
        _p99_lines(lines, WIDE),
        legend,
    )


def _p99_lines(lines: list[tuple[str, pd.DataFrame]], width: int) -> Markup:
    """Return one line per RPC over the time of its windows."""
    every = pd.concat([line for _, line in lines])
    low, high = decades(list(every["p99_us"]))
    canvas = Canvas(width, 240)
    vertical = Scale(low, high, 240 - AXIS_HEIGHT, 8, logarithmic=True)
    times = (float(every["window_start"].min()), float(every["window_start"].max()))
    horizontal = Scale(*times, 58, width - 12)
    y_axis(canvas, vertical, log_ticks(low, high), "us", 52)
    _time_ticks(canvas, horizontal, 240 - 6)
    for place, (name, line) in reversed(list(enumerate(lines))):
        shown = records(highest(line, times, POINTS_MAX[width]))
        points = [(horizontal(r["window_start"]), vertical(r["p99_us"]), r) for r in shown]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        canvas.path(path, class_=f"curve l{place}")
        for x, y, row in points:
            tip = f"{name}, {units.show(row['window_start'], 'moment')}: p99 "
            tip += units.show(row["p99_us"], "us")
            size, kind = (2.0, "dot") if len(points) > DOTS_LARGE_MAX else (4.0, "")
            canvas.circle(x, y, size, class_=f"mark c{place} {kind}".rstrip(), data_tip=tip)
    return canvas.svg("narrow" if width == NARROW else "wide")


def highest(line: pd.DataFrame, times: tuple[float, float], most: int) -> pd.DataFrame:
    """Return at most so many windows: of those that share a place, the one with the worst p99."""
    places = ((line["window_start"] - times[0]) * (most - 1)) // max(1.0, times[1] - times[0])
    worst = line.groupby(places)["p99_us"].idxmax()
    return line.loc[worst] if len(line) > most else line


def stages(tables: Tables, names: Names) -> Drawing | None:
    """Draw per stage its median and p99 in the RPC on which most time is spent."""
    rows = tables["stage_latency"].dropna(subset=["p50_us", "p99_us"])
    chosen = [rpc for rpc in entries(tables)["rpc"] if (rows["rpc"] == rpc).any()]
    chosen = chosen or sorted(rows["rpc"].dropna().unique())
    if not chosen:
        return None
    rows = rows[rows["rpc"] == chosen[0]]
    rows = rows.sort_values("total_us", ascending=False).head(RPCS_DRAWN_MAX)
    by_stage = {str(row["stage"]): row for row in records(rows)}
    shares = {
        stage: f"; {units.show(row['share'], 'share')} of the RPC's time"
        for stage, row in by_stage.items()
    }
    ordered = stage_order(by_stage)
    return Drawing(
        "stages",
        f"Stages of {names.short(str(chosen[0]))}",
        "p50, p90 and p99 of each stage of the RPC on which most time is spent. Stages lie within "
        "each other, so they do not add up.",
        _percentile_rows([(stage, by_stage[stage], shares[stage]) for stage in ordered]),
        legend=PERCENTILES_LEGEND,
    )


def critical_path(tables: Tables, names: Names) -> Drawing | None:
    """Draw for each RPC which stages its critical path consists of, usual calls above slow ones."""
    rows = tables["critical_path"].dropna(subset=["share"])
    known = set(rows["rpc"])
    chosen = [rpc for rpc in entries(tables)["rpc"] if rpc in known] or sorted(known)
    bars = [
        (rpc, band, rows[(rows["rpc"] == rpc) & (rows["band"] == band)])
        for rpc in chosen[:PATHS_DRAWN_MAX]
        for band in ("p50", "p99", "all")
    ]
    # `all` stands in for an RPC with too few calls for bands.
    has_bands = {rpc for rpc, band, bar in bars if band != "all" and not bar.empty}
    bars = [(r, b, bar) for r, b, bar in bars if not bar.empty and (b != "all") == (r in has_bands)]
    if not bars:
        return None
    drawn = pd.concat([bar for _, _, bar in bars])
    weight = drawn.groupby("stage")["share"].sum().sort_values(ascending=False, kind="stable")
    coloured = stage_order(list(weight.index)[: COLOURS - 1])
    places = {stage: place for place, stage in enumerate(coloured)}
    has_other = len(weight) > len(coloured)
    legend = [(colour(place), stage) for stage, place in places.items()]
    return Drawing(
        "critical-path",
        "Critical path by stage",
        "Share of each stage in the critical path of usual calls (p50) and of the slowest (p99).",
        _path_bars(bars, places, names),
        legend=tuple(legend + ([("cx", OTHER)] if has_other else [])),
    )


def _path_bars(
    bars: list[tuple[str, str, pd.DataFrame]], places: dict[str, int], names: Names
) -> Markup:
    """Return one bar per RPC and band, cut into stages; names stand above their bars."""
    height = 40
    bottom = len(bars) * height + 4
    canvas = Canvas(NARROW, bottom + AXIS_HEIGHT)
    scale = Scale(0, 1, 2, NARROW - 4)
    x_axis(canvas, scale, [0, 0.25, 0.5, 0.75, 1], "share", bottom)
    for place, (rpc, band, rows) in enumerate(bars):
        y = place * height
        label = f"{names.short(rpc)}, {'all calls' if band == 'all' else band}"
        canvas.text(2, y + 15, label, NARROW - 8, class_="label halo")
        shares = {str(row["stage"]): row for row in records(rows)}
        start = 0.0
        ordered = [stage for stage in places if stage in shares]
        ordered += sorted(stage for stage in shares if stage not in places)
        for stage in ordered:
            share = float(shares[stage]["share"])
            x = scale(start)
            tip = f"{label}: {stage} {units.show(share, 'share')}, "
            tip += f"{units.show(shares[stage]['on_path_us'], 'us')} on the path"
            start += share
            kind = colour(places.get(stage, COLOURS))
            canvas.rect(x, y + 20, scale(start) - x - 1, 15, class_=f"mark {kind}", data_tip=tip)
    return canvas.svg("narrow")


def heatmap(tables: Tables, names: Names) -> Drawing | None:
    """Draw how many calls took how long, minute by minute."""
    rows = tables["latency_heatmap"].dropna(subset=["minute", "bucket_log2_us"])
    if rows.empty:
        return None
    return Drawing(
        "heatmap",
        "Latency heatmap",
        "Calls of all RPCs by time (UTC) and duration. Each row is twice as long as the one below.",
        _heat(rows),
        legend=(("h1", "few calls"), ("h3", "more"), (f"h{HEATMAP_SHADES}", "most")),
    )


def _heat(rows: pd.DataFrame) -> Markup:
    """Return a cell per column of minutes and power of two; darker is more."""
    low, high = int(rows["bucket_log2_us"].min()), int(rows["bucket_log2_us"].max())
    height = min(18, 220 / (high - low + 1))
    bottom = height * (high - low + 1) + 6
    canvas = Canvas(NARROW, bottom + AXIS_HEIGHT)
    first, last = int(rows["minute"].min()), int(rows["minute"].max())
    minutes = (last - first) // (60 * units.MICROSECONDS_PER_SECOND) + 1
    columns = min(minutes, HEATMAP_COLUMNS_MAX)
    column_us = -(-minutes // columns) * 60 * units.MICROSECONDS_PER_SECOND
    columns = (last - first) // column_us + 1
    counts = rows.assign(column=(rows["minute"] - first) // column_us)
    counts = counts.groupby(["column", "bucket_log2_us"], as_index=False)["count"].sum()
    most = max(1, counts["count"].max())
    step = (NARROW - 64) / columns
    for row in records(counts):
        x, bucket = 58 + row["column"] * step, int(row["bucket_log2_us"])
        y = 6 + (high - bucket) * height
        # The square root keeps a few slow calls visible beside many fast ones.
        shade = max(1, math.ceil(HEATMAP_SHADES * math.sqrt(row["count"] / most)))
        tip = f"{units.show(first + row['column'] * column_us, 'moment')}, "
        tip += f"{units.show(2.0**bucket, 'us')} to {units.show(2.0 ** (bucket + 1), 'us')}: "
        tip += f"{row['count']:,} calls"
        canvas.rect(x, y, step - 1, height - 1, rx=1, class_=f"mark h{shade}", data_tip=tip)
    every = max(1, math.ceil(16 / height))
    for bucket in range(low, high + 1, every):
        y = 6 + (high - bucket + 1) * height + 4
        label = tick_label(float(f"{2.0**bucket:.2g}"), "us")
        canvas.text(52, y, label, class_="tick", text_anchor="end")
    scale = Scale(first, first + columns * column_us, 58, NARROW - 6)
    _time_ticks(canvas, scale, bottom + 16)
    return canvas.svg("narrow")


def view_changes(tables: Tables, names: Names) -> Drawing | None:
    """Draw for how long each of the last view changes kept commands waiting."""
    rows = tables["view_changes"].dropna(subset=["view", "start_us", "unavailable_us"])
    if rows.empty:
        return None
    views = rows.groupby("view", as_index=False).agg(
        start_us=("start_us", "min"),
        unavailable_us=("unavailable_us", "max"),
        replicas=("replica", "nunique"),
    )
    views = views.sort_values(["start_us", "view"]).tail(VIEWS_DRAWN_MAX)
    ticks = round_ticks(max(1.0, float(views["unavailable_us"].max())), 4)
    chart = RowChart(len(views), (0, ticks[-1]), ticks, "us", right=62)
    for place, row in enumerate(records(views)):
        began = units.show(row["start_us"], "moment")
        waited = units.show(row["unavailable_us"], "us")
        label = f"view {row['view']:.0f}, {began[11:19]}"
        tip = f"View {row['view']:.0f}, {began}: {waited} without commands, "
        tip += f"told by {row['replicas']:.0f} replicas"
        chart.bar(place, label, row["unavailable_us"], waited, "c7", tip)
    return Drawing(
        "view-changes",
        "View changes",
        "How long commands waited in each of the last view changes, restarts of a lone replica "
        "among them (UTC).",
        chart.canvas.svg("narrow"),
    )


def errors(tables: Tables, names: Names) -> Drawing | None:
    """Draw the error rate of the RPCs that failed."""
    rows = entries(tables)
    rows = rows.assign(rate=rows["errors"] / rows["calls"])
    rows = rows[rows["errors"] > 0]
    if rows.empty:
        return None
    rows = rows.sort_values("rate", ascending=False).head(RPCS_DRAWN_MAX)
    ticks = round_ticks(float(rows["rate"].max()), 4)
    chart = RowChart(len(rows), (0, ticks[-1]), ticks, "share", right=52)
    for place, row in enumerate(records(rows)):
        label = names.short(row["rpc"])
        tip = f"{label}: {row['errors']:,} of {row['calls']:,} calls failed"
        chart.bar(place, label, row["rate"], units.show(row["rate"], "share"), "bad", tip)
    summary = "Calls that failed, of all calls of the RPC."
    return Drawing("errors", "Error rate", summary, chart.canvas.svg("narrow"))


def _time_ticks(canvas: Canvas, scale: Scale, y: float) -> None:
    """Write the times of the first, the last and, where there is room, the middle."""
    parts = (0.0, 0.5, 1.0) if canvas.width == WIDE else (0.0, 1.0)
    within_day = scale.high - scale.low < units.SECONDS_PER_DAY * units.MICROSECONDS_PER_SECOND
    for part in parts:
        time = scale.low + part * (scale.high - scale.low)
        told = units.show(time, "moment")
        told = told[11:16] if within_day and part > 0 else told[:16]
        anchor = {0.0: "start", 1.0: "end"}.get(part, "middle")
        canvas.text(scale(time), y, told, class_="tick", text_anchor=anchor)
