"""Compares two windows of time: what changed, and whether chance explains it.

Tests, all two-sided, all computed from counts that Spark sums up:

    mean_us             Mann-Whitney U: are the requests of one window slower as a whole? The
                        ranks are those of durations rounded down to 1/64, with correction for ties
    p50_us p90_us p99_us   do different parts of the two windows lie above that percentile of both
                        together (two-proportion z test at the upper edge of its bin)?
    error_rate          two-proportion z test
    rate_per_s          none: load is no property of the system; p_value is null

`significant` is p < 0.01 divided by the number of tests in the table (Bonferroni). Requests that
come in bursts are not independent: read a p-value near the limit as none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from analytics.schema import COMPARISON
from analytics.traces import common
from analytics.traces.common import MICROSECONDS_PER_SECOND, QUANTILES

SIGNIFICANCE_LEVEL: Final = 0.01
# With fewer requests in a period, or fewer expected hits or misses, the normal distribution
# approximates the exact one badly.
REQUESTS_MIN: Final = 20
EXPECTED_MIN: Final = 5.0
# Bins of durations: exact below 64 us, above that 64 to each doubling, at most 1/64 wide.
BIN_BITS: Final = 6
BINS_PER_DOUBLING: Final = 2**BIN_BITS


@dataclass(frozen=True, slots=True)
class Period:
    """A period from `start_us` inclusive to `end_us` exclusive, in microseconds since 1970."""

    start_us: int
    end_us: int

    def __post_init__(self) -> None:
        """Refuse a period without length."""
        if self.start_us >= self.end_us:
            raise ValueError(
                f"a period from {self.start_us} to {self.end_us} us is empty: end it later"
            )

    def has(self, time: str) -> Column:
        """Return whether a column's time is in the period."""
        return (f.col(time) >= self.start_us) & (f.col(time) < self.end_us)

    @property
    def seconds(self) -> float:
        """The length of the period."""
        return (self.end_us - self.start_us) / MICROSECONDS_PER_SECOND


def comparison(requests: DataFrame, before: Period, after: Period) -> DataFrame:
    """Return `comparison`: each RPC's metrics in both periods, and a test of the difference.

    A metric is null for a period in which the RPC had no request; `p_value` is null where there
    is no test or too little to test, and `significant` is false then. Raises ValueError if the
    periods overlap: a request in both would be compared with itself.
    """
    if before.start_us < after.end_us and after.start_us < before.end_us:
        raise ValueError(f"{before} and {after} overlap: compare periods that do not")
    sides = requests.where(before.has("start_us") | after.has("start_us")).select(
        "rpc", "error", "duration_us", after.has("start_us").alias("is_after")
    )
    joined = _values(sides).join(_ranks(sides), on="rpc")
    rows = joined.select("rpc", f.inline(f.array(*_metrics(before.seconds, after.seconds))))
    return common.conform(_judged(rows), COMPARISON)


def _values(sides: DataFrame) -> DataFrame:
    """Return per RPC the metrics of both periods, with the names `before_...` and `after_...`."""
    columns = []
    for name, side in (("before", ~f.col("is_after")), ("after", f.col("is_after"))):
        duration = f.when(side, f.col("duration_us"))
        columns += [
            f.count_if(side).alias(f"{name}_count"),
            f.count_if(side & f.col("error")).alias(f"{name}_errors"),
            f.avg(duration).alias(f"{name}_mean_us"),
            common.percentiles(duration).alias(f"{name}_at"),
        ]
    return sides.groupBy("rpc").agg(*columns)


def _ranks(sides: DataFrame) -> DataFrame:
    """Return per RPC the U statistic, its ties, and how many lie above each percentile of both.

    Requests are counted per bin before rows are moved, so an RPC has a few thousand rows at most.
    """
    bins = sides.groupBy("rpc", _bin().alias("bin")).agg(
        f.count_if(~f.col("is_after")).alias("before"), f.count_if("is_after").alias("after")
    )
    whole = Window.partitionBy("rpc")
    lower = whole.orderBy("bin").rowsBetween(Window.unboundedPreceding, -1)
    both = f.col("before") + f.col("after")
    ranked = bins.select(
        "*",
        both.alias("both"),
        f.coalesce(f.sum("before").over(lower), f.lit(0)).alias("before_lower"),
        f.coalesce(f.sum(both).over(lower), f.lit(0)).alias("lower"),
        f.sum(both).over(whole).alias("whole"),
    )
    ties = f.col("both").cast("double")
    slower = f.col("after") * (f.col("before_lower") + f.col("before") / 2)
    above = []
    for name, share in QUANTILES.items():
        # Bins that begin at or above the percentile's rank are wholly above its bin.
        beyond = f.col("lower") >= f.col("whole") * f.lit(share)
        above += [
            f.sum(f.when(beyond, f.col(side)).otherwise(0)).alias(f"{side}_above_{name}")
            for side in ("before", "after")
        ]
    return ranked.groupBy("rpc").agg(
        f.sum(slower).alias("u"), f.sum(ties * ties * ties - ties).alias("ties"), *above
    )


def _bin() -> Column:
    """Return the number of the bin of a duration; a longer duration has no lower bin."""
    whole_us = f.greatest(f.floor("duration_us"), f.lit(0)).cast("bigint")
    doubling = f.length(f.bin(whole_us)) - 1
    exponent = f.greatest(doubling - BIN_BITS, f.lit(0))
    # For 64 us and more the shifted value is 64 to 127, so the bins follow on those below.
    shifted = f.call_function("shiftright", whole_us, exponent)
    return (exponent * BINS_PER_DOUBLING + shifted).alias("bin")


def _metrics(before_seconds: float, after_seconds: float) -> list[Column]:
    """Return one struct per metric: its name, both values, and z of its test."""
    counts = (f.col("before_count"), f.col("after_count"))
    rows = [_row("mean_us", f.col("before_mean_us"), f.col("after_mean_us"), _z_of_ranks(*counts))]
    for place, name in enumerate(QUANTILES):
        values = (f.get("before_at", f.lit(place)), f.get("after_at", f.lit(place)))
        hits = (f.col(f"before_above_{name}"), f.col(f"after_above_{name}"))
        rows.append(_row(name, *values, _z_of_parts(*hits, *counts)))
    failed = (f.col("before_errors"), f.col("after_errors"))
    rates = (f.try_divide(failed[0], counts[0]), f.try_divide(failed[1], counts[1]))
    rows.append(_row("error_rate", *rates, _z_of_parts(*failed, *counts)))
    no_test = f.lit(None).cast("double")
    per_s = (counts[0] / f.lit(before_seconds), counts[1] / f.lit(after_seconds))
    rows.append(_row("rate_per_s", *per_s, no_test))
    return rows


def _row(metric: str, before: Column, after: Column, z: Column) -> Column:
    """Return a struct of a metric, its values and z."""
    return f.struct(
        f.lit(metric).alias("metric"),
        before.cast("double").alias("before"),
        after.cast("double").alias("after"),
        z.cast("double").alias("z"),
    )


def _z_of_ranks(before: Column, after: Column) -> Column:
    """Return z of the Mann-Whitney test, with corrections for ties and continuity, or null."""
    pairs = before.cast("double") * after
    count = before + after
    correction = f.try_divide(f.col("ties"), count.cast("double") * (count - 1))
    deviation = f.sqrt(pairs / 12 * (count + 1 - correction))
    distance = f.greatest(f.abs(f.col("u") - pairs / 2) - 0.5, f.lit(0.0))
    # All requests took equally long: nothing differs.
    z = f.when(deviation > 0, f.try_divide(distance, deviation)).otherwise(f.lit(0.0))
    return f.when(f.least(before, after) >= REQUESTS_MIN, z)


def _z_of_parts(before_hits: Column, after_hits: Column, before: Column, after: Column) -> Column:
    """Return z of the two-proportion test, or null where there is too little to test."""
    part = f.try_divide(before_hits + after_hits, before + after)
    smaller = f.least(before, after)
    expected = smaller * f.least(part, 1 - part)
    error = f.sqrt(
        part * (1 - part) * (f.try_divide(f.lit(1), before) + f.try_divide(f.lit(1), after))
    )
    distance = f.abs(f.try_divide(before_hits, before) - f.try_divide(after_hits, after))
    enough = (smaller >= REQUESTS_MIN) & (expected >= EXPECTED_MIN)
    return f.when(enough, f.try_divide(distance, error))


def _judged(rows: DataFrame) -> DataFrame:
    """Return the rows with ratio, p-value and judgement; there are a few per RPC."""
    p_value = f.udf(_two_sided, "double", useArrow=False)(f.col("z")).alias("p_value")
    ratio = f.try_divide("after", "before").alias("ratio")
    tested = rows.select("*", ratio, p_value)
    tests = f.count("p_value").over(Window.partitionBy(f.lit(0)))
    limit = f.lit(SIGNIFICANCE_LEVEL) / f.greatest(tests, f.lit(1))
    return tested.select(
        "*", f.coalesce(f.col("p_value") < limit, f.lit(False)).alias("significant")
    )


def _two_sided(z: float | None) -> float | None:
    """Return the probability that a normal deviate is at least this far from 0."""
    return None if z is None else math.erfc(abs(z) / math.sqrt(2))
