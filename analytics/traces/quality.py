"""Measures how far traces can be trusted: what is missing in them, and what is impossible."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from analytics.schema import DATA_QUALITY
from analytics.traces import common
from analytics.traces.walk import TRACE_SPANS_MAX

# Metric and how it follows from the sums over all traces. Rates of nothing are 0.
METRICS: Final[dict[str, str]] = {
    "trace_count": "traces",
    "trace_spans": "spans",
    "trace_spans_max": "spans_max",
    "trace_orphan_spans": "orphans",
    "trace_orphan_rate": "orphans / greatest(spans, 1)",
    "trace_incomplete_traces": "incomplete",
    "trace_incomplete_rate": "incomplete / greatest(traces, 1)",
    "trace_rootless_traces": "rootless",
    "trace_many_roots_traces": "many_roots",
    "trace_oversized_traces": "oversized",
    "trace_skewed_spans": "skewed",
    "trace_skewed_rate": "skewed / greatest(spans, 1)",
}


def trace_quality(spans: DataFrame, requests: DataFrame) -> DataFrame:
    """Return the rows of `data_quality` that need whole traces; METRICS names them.

    An orphan is a span whose parent is not there; an incomplete trace has one; a rootless trace
    has no span without parent. A skewed span answers a call and does not lie within it, which
    only clocks that disagree explain. An oversized trace is walked in part (TRACE_SPANS_MAX), so
    all its spans are counted here again; without such traces, Spark skips this step.
    """
    large = requests.where(f.col("seen").isNull()).select("trace_id")
    again = spans.join(f.broadcast(large), on="trace_id", how="left_semi")
    traces = requests.where(f.col("seen").isNotNull()).select("seen.*").unionByName(_seen(again))
    sums = traces.agg(
        f.count("*").alias("traces"),
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in ("spans", "orphans", "skewed")),
        f.coalesce(f.max("spans"), f.lit(0)).alias("spans_max"),
        f.count_if(f.col("orphans") > 0).alias("incomplete"),
        f.count_if(f.col("roots") == 0).alias("rootless"),
        f.count_if(f.col("roots") > 1).alias("many_roots"),
        f.count_if(f.col("spans") > TRACE_SPANS_MAX).alias("oversized"),
    )
    rows = [
        f.struct(f.lit(metric).alias("metric"), f.expr(value).cast("double").alias("value"))
        for metric, value in METRICS.items()
    ]
    return common.conform(sums.select(f.inline(f.array(*rows))), DATA_QUALITY)


def _seen(spans: DataFrame) -> DataFrame:
    """Return for each trace the counts that the walk gives for traces it walks whole."""
    traces = (
        _judged(spans)
        .groupBy("trace_id")
        .agg(
            f.count("*").alias("spans"),
            f.count_if("is_orphan").alias("orphans"),
            f.count_if(f.col("parent_id").isNull()).alias("roots"),
            f.count_if("is_skewed").alias("skewed"),
        )
    )
    return traces.drop("trace_id")


def _judged(spans: DataFrame) -> DataFrame:
    """Return the spans with what their parents tell about them.

    The left join is split by adaptive execution where one parent has very many children.
    """
    host = f.concat_ws("|", "service", "instance")
    children = spans.select(
        "trace_id",
        common.parent_id().alias("parent_id"),
        "kind",
        "start_us",
        "end_us",
        host.alias("host"),
    )
    parents = spans.select(
        "trace_id",
        f.col("span_id").alias("parent_id"),
        f.col("start_us").alias("parent_start_us"),
        f.col("end_us").alias("parent_end_us"),
        host.alias("parent_host"),
    )
    joined = children.join(parents, on=["trace_id", "parent_id"], how="left")
    outside = (f.col("start_us") < f.col("parent_start_us")) | (
        f.col("end_us") > f.col("parent_end_us")
    )
    answers = (f.col("kind") == "SERVER") & (f.col("host") != f.col("parent_host"))
    return joined.select(
        "trace_id",
        "parent_id",
        (f.col("parent_id").isNotNull() & f.col("parent_host").isNull()).alias("is_orphan"),
        (outside & answers).alias("is_skewed"),
    )
