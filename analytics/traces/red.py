"""Rate, errors and duration per RPC and service, and a heatmap of durations over time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from analytics.schema import LATENCY_HEATMAP, RPC_RED
from analytics.traces import common
from analytics.traces.common import MICROSECONDS_PER_SECOND, MINUTE_US


def rpc_red(spans: DataFrame, window_us: int = MINUTE_US) -> DataFrame:
    """Return `rpc_red`: per RPC, service and window, what the service took up.

    A request counts once in each service that took it up, in the window in which it began there.
    `rate_per_s` is over the whole window. `window_start` is in microseconds since 1970, a
    multiple of `window_us`. Rows are reduced in each task before they are moved: no salt is needed.
    """
    assert window_us > 0, f"a window of {window_us} us has no length: give at least 1"
    duration = f.col("duration_us")
    groups = common.entries(spans).groupBy(
        "rpc", "service", common.floor_us("start_us", window_us).alias("window_start")
    )
    red = groups.agg(
        f.count("*").alias("count"),
        f.count_if(common.is_error()).alias("errors"),
        common.percentiles(duration).alias("_at"),
        f.max(duration).alias("max_us"),
    )
    seconds = window_us / MICROSECONDS_PER_SECOND
    rate = (f.col("count") / f.lit(seconds)).alias("rate_per_s")
    return common.conform(red.select("*", rate, *common.spread("_at")), RPC_RED)


def latency_heatmap(requests: DataFrame) -> DataFrame:
    """Return `latency_heatmap`: requests per RPC, minute and power of two of the duration.

    `minute` is the start of the minute in microseconds since 1970. Bucket b has durations from
    2^b up to and without 2^(b+1) us; bucket 0 those below 1 us too.
    """
    whole_us = f.greatest(f.floor("duration_us"), f.lit(1)).cast("bigint")
    # The number of binary digits is exact, while a logarithm would round.
    bucket = f.length(f.bin(whole_us)) - 1
    groups = requests.groupBy(
        "rpc",
        common.floor_us("start_us", MINUTE_US).alias("minute"),
        bucket.alias("bucket_log2_us"),
    )
    return common.conform(groups.agg(f.count("*").alias("count")), LATENCY_HEATMAP)
