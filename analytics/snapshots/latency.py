"""The cost of snapshots for callers: latency of commands around cuts against all other times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CUT: Final = "cut"
SNAPSHOT: Final = "snapshot"
# A command that began so long before the cut may have waited for it, and the queues after a cut
# take as long to drain.
AROUND_US: Final = 1_000_000
# The join finds windows by the minute.
BUCKET_US: Final = 60_000_000
# A span that claims to last longer is cut off here; snapshots end after 120 s.
WINDOW_US_MAX: Final = 600_000_000
# The rank of a percentile is accurate to one row in so many.
PERCENTILE_ACCURACY: Final = 10_000
P99: Final = 0.99


def cut_latency(spans: DataFrame, *, around_us: int = AROUND_US) -> DataFrame:
    """Return cut_latency from the table `spans`.

    A command is around a cut if it began within `around_us` before or after the spans `cut` of a
    generation (`snapshot`, where no cut was traced). The baseline are the commands that began
    around no cut and during no snapshot. Commands are the spans of kind SERVER with rpc.system
    grpc.
    """
    traced = spans.where(f.col("generation").isNotNull() & f.col("name").isin(CUT, SNAPSHOT))
    cut_generations = traced.where(f.col("name") == CUT).select("generation").distinct()
    cuts = traced.where(f.col("name") == CUT).unionByName(
        traced.where(f.col("name") == SNAPSHOT).join(cut_generations, "generation", "left_anti")
    )
    commands = spans.where(
        (f.col("kind") == "SERVER")
        & f.col("rpc").isNotNull()
        & (f.col("attributes")["rpc.system"] == "grpc")
    ).select(
        "rpc",
        "trace_id",
        "span_id",
        "start_us",
        "duration_us",
        _bucket("start_us").alias("bucket"),
    )
    around = _within(commands, _windows(cuts, around_us)).dropDuplicates(
        ["generation", "trace_id", "span_id"]
    )
    busy = _within(commands, _windows(traced, around_us)).select("trace_id", "span_id")
    calm = commands.join(busy, ["trace_id", "span_id"], "left_anti")
    of_cuts = around.groupBy("generation", "rpc").agg(
        _p99().alias("p99_us_around"), f.count("*").alias("calls_around")
    )
    of_rest = calm.groupBy("rpc").agg(
        _p99().alias("p99_us_baseline"), f.count("*").alias("calls_baseline")
    )
    ratio = f.try_divide("p99_us_around", "p99_us_baseline")
    return of_cuts.join(of_rest, "rpc", "left").select(
        "generation",
        "rpc",
        "p99_us_around",
        "p99_us_baseline",
        ratio.alias("ratio"),
        "calls_around",
        f.coalesce("calls_baseline", f.lit(0)).alias("calls_baseline"),
    )


def _windows(spans: DataFrame, around_us: int) -> DataFrame:
    """Return the time around each span, once per minute that it touches."""
    first = f.col("start_us") - around_us
    last = f.least("end_us", f.col("start_us") + WINDOW_US_MAX) + around_us
    edges = spans.select("generation", first.alias("first_us"), last.alias("last_us"))
    buckets = f.sequence(_bucket("first_us"), _bucket("last_us"))
    return edges.withColumn("bucket", f.explode(buckets))


def _within(commands: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the commands that began in a window, with its generation, once for each window."""
    return commands.join(windows, "bucket").where("start_us BETWEEN first_us AND last_us")


def _bucket(column: str) -> Column:
    return f.floor(f.col(column) / BUCKET_US).cast("bigint")


def _p99() -> Column:
    return f.percentile_approx("duration_us", P99, PERCENTILE_ACCURACY).cast("double")
