"""Where requests spend time: per stage, on the critical path, in the slowest of several calls."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.schema import CRITICAL_PATH, STAGE_LATENCY, STRAGGLERS
from analytics.traces import common

STRAGGLERS_PER_RPC: Final = 100


def stage_latency(spans: DataFrame, requests: DataFrame) -> DataFrame:
    """Return `stage_latency`: the spans of an RPC's requests by stage.

    `share` is `total_us` divided by the duration of all requests of the RPC. Spans lie within spans
    and beside each other, so shares do not add up to 1; those of `critical_path` do.

    The join is on the trace. Adaptive execution splits the partition of a trace that has far
    more spans than others; the side of the requests has one row for it.
    """
    trace = common.key("trace_id")
    named = spans.select(trace, common.stage().alias("stage"), "duration_us").join(
        requests.select(trace, "rpc"), on="key"
    )
    stages = named.groupBy("rpc", "stage").agg(
        f.count("*").alias("count"),
        f.sum("duration_us").alias("total_us"),
        common.percentiles(f.col("duration_us")).alias("_at"),
    )
    whole = requests.groupBy("rpc").agg(f.sum("duration_us").alias("_whole_us"))
    share = f.try_divide("total_us", "_whole_us").alias("share")
    joined = stages.join(whole, on="rpc")
    return common.conform(joined.select("*", *common.spread("_at"), share), STAGE_LATENCY)


def critical_path(requests: DataFrame) -> DataFrame:
    """Return `critical_path`: the stages on the critical paths of the requests of a band.

    `traces` counts the requests that the stage is on the path of. `on_path_us` and `saving_us`
    are means over all requests of the band, so that those of a band add up to its mean duration;
    `share` is the fraction of that mean. A band has the requests from its percentile up to the
    next; `all` has all.
    """
    bands = f.filter(f.array(f.lit(common.BAND_ALL), f.col("band")), lambda band: band.isNotNull())
    requests = common.banded(requests).select("rpc", f.explode(bands).alias("band"), "path")
    # Each task reduces both sums, so a band with most requests moves no more rows than another.
    sizes = requests.groupBy("rpc", "band").agg(
        f.count("*").alias("_requests"),
        f.sum(_sum_of("path", "on_path_us")).alias("_whole_us"),
    )
    stages = requests.select("rpc", "band", f.inline("path"))
    summed = stages.groupBy("rpc", "band", "stage").agg(
        f.count("*").alias("traces"),
        f.sum("on_path_us").alias("_on_path_us"),
        f.sum("saving_us").alias("_saving_us"),
    )
    return common.conform(
        summed.join(sizes, on=["rpc", "band"]).select(
            "*",
            (f.col("_on_path_us") / f.col("_requests")).alias("on_path_us"),
            (f.col("_saving_us") / f.col("_requests")).alias("saving_us"),
            # Requests of no length have no time to share.
            f.try_divide("_on_path_us", "_whole_us").alias("share"),
        ),
        CRITICAL_PATH,
    )


def stragglers(requests: DataFrame, per_rpc: int = STRAGGLERS_PER_RPC) -> DataFrame:
    """Return `stragglers`: per RPC the fan-outs that lost most time to their slowest call.

    A fan-out is a span with at least FAN_OUT_MIN children that are calls to, or entries of,
    services. Of two middle values the lower one is the median, and with two calls the slow one is
    compared with the fast one. `ratio` is null where the median is 0. The lost time is `max_us -
    median_us`.
    """
    fan_outs = requests.select("trace_id", "rpc", f.inline("fan_outs"))
    order = [(f.col("median_us") - f.col("max_us")), f.col("trace_id"), f.col("parent_id")]
    ratio = f.try_divide("max_us", "median_us").alias("ratio")
    slowest = common.top(fan_outs, ["rpc"], order, per_rpc)
    return common.conform(slowest.select("*", ratio), STRAGGLERS)


def _sum_of(array: str, field: str) -> Column:
    """Return the sum of a field of the structs in an array."""
    return f.aggregate(array, f.lit(0).cast("bigint"), lambda total, item: total + item[field])
