"""Where errors begin and how far they go, and which traces to look at first."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from analytics.schema import ERRORS, EXEMPLARS
from analytics.traces import common

EXEMPLARS_PER_BAND: Final = 5


def errors(requests: DataFrame) -> DataFrame:
    """Return `errors`: traces with a failed span, by root cause and by how far it went up.

    `rpc` and `service` are those of the trace's root. The root cause is the deepest failed span
    without a failed child; `propagated_to` are the services above it that failed with it,
    nearest first, joined by ' > ': '' if its caller did not fail.
    """
    failed = requests.where(f.col("cause").isNotNull())
    groups = failed.groupBy(
        "rpc",
        "service",
        f.col("cause.reason").alias("reason"),
        f.col("cause.service").alias("root_cause_service"),
        f.col("cause.propagated_to").alias("propagated_to"),
    )
    return common.conform(groups.agg(f.count("*").alias("traces")), ERRORS)


def exemplars(requests: DataFrame, per_band: int = EXEMPLARS_PER_BAND) -> DataFrame:
    """Return `exemplars`: per RPC and band, the traces to look at.

    From band p99 the slowest; from p50 and p90 the nearest above that percentile, since the slowest
    of p50 would be nearly p90. Bands are those of `critical_path`, without `all`.
    """
    in_tail = f.col("band") == "p99"
    duration = f.col("duration_us")
    order = [f.when(in_tail, -duration).otherwise(duration), f.col("trace_id")]
    candidates = common.banded(requests).where(f.col("band").isNotNull())
    return common.conform(common.top(candidates, ["rpc", "band"], order, per_band), EXEMPLARS)
