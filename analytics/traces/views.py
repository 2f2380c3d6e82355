"""The view changes of a cluster, and how long each kept commands waiting."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from analytics.schema import VIEW_CHANGES
from analytics.traces import common

VIEW_CHANGE_SPAN: Final = "view change"
PREPARE_SPAN: Final = "prepare"
VIEW_ATTRIBUTE: Final = "viewstamp.view"

# If the last prepare is this long before a view change, or the first one this long after it, there
# were no requests: callers did not wait.
IDLE_MIN_US: Final = 10 * common.MICROSECONDS_PER_SECOND

_KEYS: Final = ("cluster_id", "view")


def view_changes(spans: DataFrame) -> DataFrame:
    """Return `view_changes`: each replica's part in each view change.

    `unavailable_us` is the cluster's, the same for all replicas of a view: from the end of the
    last prepare of an earlier view to the end of the first of this or a later one. Where the
    cluster was idle (IDLE_MIN_US) on a side, or has no prepare there, that side is instead the
    first replica's start, or the first replica's end, of the view change.
    """
    changes = _with_view(spans, VIEW_CHANGE_SPAN)
    windows = changes.groupBy(*_KEYS).agg(
        f.min("start_us").alias("first_start_us"), f.min("end_us").alias("first_end_us")
    )
    # One row per view: small whatever the number of spans.
    waits = _around(windows, _with_view(spans, PREPARE_SPAN)).select(
        *_KEYS, _unavailable().alias("unavailable_us")
    )
    rows = changes.join(waits, on=list(_KEYS)).withColumnRenamed("replica_id", "replica")
    return common.conform(rows, VIEW_CHANGES)


def _with_view(spans: DataFrame, name: str) -> DataFrame:
    """Return the spans of this name that say their view."""
    view = f.col("attributes")[VIEW_ATTRIBUTE].try_cast("bigint").alias("view")
    cluster = f.coalesce("cluster_id", f.lit("")).alias("cluster_id")
    found = spans.where(f.col("name") == name).select(
        cluster, view, "replica_id", "start_us", "end_us"
    )
    return found.where(f.col("view").isNotNull())


def _around(windows: DataFrame, prepares: DataFrame) -> DataFrame:
    """Return the windows with the end of the last prepare before, and of the first after."""
    bounds = prepares.groupBy(*_KEYS).agg(
        f.min("end_us").alias("first_us"), f.max("end_us").alias("last_us")
    )
    both = windows.join(bounds, on=list(_KEYS), how="full")
    by_view = Window.partitionBy("cluster_id").orderBy("view")
    earlier = by_view.rowsBetween(Window.unboundedPreceding, -1)
    from_here = by_view.rowsBetween(0, Window.unboundedFollowing)
    known = both.select(
        "*",
        f.max("last_us").over(earlier).alias("before_us"),
        f.min("first_us").over(from_here).alias("after_us"),
    )
    return known.where(f.col("first_start_us").isNotNull())


def _unavailable() -> Column:
    """Return the length of the window in microseconds."""
    start, end = f.col("first_start_us"), f.col("first_end_us")
    before, after = f.col("before_us"), f.col("after_us")
    since = f.when(before.between(start - IDLE_MIN_US, end), before).otherwise(start)
    until = f.when(after.between(end, end + IDLE_MIN_US), after).otherwise(end)
    return f.greatest(until - since, f.lit(0))
