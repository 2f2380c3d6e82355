"""How the tables are shown: the unit of each column, and which rows come first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Rows of one table on the page; with 21 tables of these the page stays below about 3 MB.
ROWS_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Shown:
    """A table on the page: its title, its order (a column; descending), and a note."""

    name: str
    title: str
    order: str
    note: str = ""


SHOWN: Final = (
    Shown("rpc_red", "Rate, errors, duration per RPC and window", "p99_us"),
    Shown("stage_latency", "Latency per stage", "total_us", "Stages lie within each other."),
    Shown("critical_path", "Critical path", "on_path_us", "Means over the calls of the band."),
    Shown("stragglers", "Stragglers", "max_us", "Fan-outs that lost most to their slowest call."),
    Shown("errors", "Errors and their root causes", "traces"),
    Shown("exemplars", "Exemplars: traces to look at", "duration_us"),
    Shown("service_graph", "Service graph", "calls"),
    Shown("comparison", "Comparison of two periods", "ratio"),
    Shown("view_changes", "View changes", "start_us"),
    Shown("latency_heatmap", "Latency heatmap", "count"),
    Shown("snapshot_sections", "Snapshots by section and kind", "generation"),
    Shown("snapshot_tenants", "Snapshots by tenant", "generation"),
    Shown("growth", "Growth", "per_hour"),
    Shown("churn", "Churn", "generation"),
    Shown("amplification", "Write amplification", "generation"),
    Shown("restore_estimate", "Estimated time of a restart", "generation"),
    Shown("garbage", "Garbage", "generation"),
    Shown("cut_latency", "Latency around cuts", "ratio"),
    Shown("data_quality", "Quality of the data", "value"),
    Shown("quarantine", "Quarantine: what could not be read", "line_number"),
)

# The unit of each column whose name ends in none of SUFFIXES.
UNITS: Final[dict[str, str]] = {
    "window_start": "moment",
    "minute": "moment",
    "start_us": "moment",
    "end_us": "moment",
    "timestamp_us": "moment",
    "p99_us_around": "us",
    "p99_us_baseline": "us",
    "share": "share",
    "ratio": "times",
    "seconds": "s",
    "bytes": "bytes",
    "days_to_limit": "days",
    "per_hour": "entities_per_hour",
    "per_hour_low": "entities_per_hour",
    "per_hour_high": "entities_per_hour",
    "forecast_24h": "count",
    "changed_ratio": "times",
    "rate_per_s": "per_s",
    "p_value": "plain",
    "slope": "plain",
    "value": "plain",
    "before": "plain",
    "after": "plain",
    "generation": "name",
    "op": "name",
    "view": "name",
    "replica": "name",
    "cut_revision": "name",
    "line_number": "name",
    "bucket_log2_us": "name",
}
SUFFIXES: Final = (("_us", "us"), ("_bytes", "bytes"))
# The unit of a metric's values, by the end of the metric's name.
METRIC_SUFFIXES: Final = (("_rate", "share"), ("_per_s", "per_s"), *SUFFIXES)


def unit_of(column: str, metric: str = "") -> str:
    """Return the unit in which a column of numbers is shown; a metric's row may have its own."""
    if metric and UNITS.get(column) == "plain":
        return next((unit for suffix, unit in METRIC_SUFFIXES if metric.endswith(suffix)), "plain")
    if column in UNITS:
        return UNITS[column]
    return next((unit for suffix, unit in SUFFIXES if column.endswith(suffix)), "count")


def title_of(column: str) -> str:
    """Return a column's heading: its name without the unit, since each value shows the unit."""
    for suffix in ("_log2_us", "_us"):
        column = column.removesuffix(suffix)
    return column.replace("_us_", "_").replace("_", " ")
