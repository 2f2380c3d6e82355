"""How the sections grow, and when they reach a limit.

The slope is Theil and Sen's: the median of the slopes between any two generations. Up to 29 % of
the generations may be outliers (a load test, a purge) without moving it. Its interval is Sen's, by
the normal approximation of Kendall's statistic (P. K. Sen, 1968); below four generations there is
none at 95 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from analytics.evidence import NORMAL_QUANTILE
from analytics.snapshots.selection import SECTION_NAMES
from viewstamp import limits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_US: Final = 3_600_000_000
FORECAST_HOURS: Final = 24
HOURS_PER_DAY: Final = 24
GENERATIONS_MIN: Final = 4
# The newest ones; slopes between any two of them are some 500,000.
GENERATIONS_MAX: Final = 1000
SIGNIFICANT: Final = "significant"
UNCERTAIN: Final = "uncertain"
TOO_FEW: Final = "too_few"
# The kind and the limit's name for a section that is followed as a whole.
ANY: Final = ""
WHOLE: Final = ""


class Limit(NamedTuple):
    """A limit of `viewstamp.limits` on the sum of a column over a section's rows of a kind."""

    section: str
    kind: str
    column: str
    name: str
    value: int


LIMITS: Final = (
    Limit("streams", "streams", "entities", "STREAMS_MAX", limits.STREAMS_MAX),
    Limit("sessions", "sessions", "entities", "SESSIONS_MAX", limits.SESSIONS_MAX),
    Limit(
        "sessions",
        "replies",
        "raw_bytes",
        "SESSION_REPLIES_BYTES_MAX",
        limits.SESSION_REPLIES_BYTES_MAX,
    ),
)
# The series over generations: each section as a whole, and each limited kind.
SERIES: Final = (
    *(Limit(section, ANY, "entities", WHOLE, 0) for section in SECTION_NAMES.values()),
    *LIMITS,
)


def growth(sections: DataFrame) -> DataFrame:
    """Return growth: one row per section, from snapshot_sections of several generations.

    Rates are of entities. `days_to_limit` is for the limit that is reached first, null where
    nothing grows towards a limit.
    """
    series = _rates(_pairs(_series(_values(sections))))
    is_whole = f.col("limit_name") == WHOLE
    hours = (f.col("limit_value") - f.col("now")) / f.col("per_hour")
    reached = f.struct(
        f.greatest(f.lit(0.0), hours / HOURS_PER_DAY).alias("days"), f.col("limit_name")
    )
    whole = f.struct("now", "per_hour", "per_hour_low", "per_hour_high", "slope", "generations")
    rows = series.groupBy("section").agg(
        f.min(f.when(~is_whole & (f.col("per_hour") > 0), reached)).alias("nearest"),
        f.max(f.when(is_whole, whole)).alias("whole"),
    )
    return rows.select("section", "nearest", "whole.*").select(
        "section",
        "per_hour",
        (f.col("now") + FORECAST_HOURS * f.col("per_hour")).alias("forecast_24h"),
        f.col("nearest.days").alias("days_to_limit"),
        "slope",
        f.col("nearest.limit_name").alias("limited_by"),
        "per_hour_low",
        "per_hour_high",
        _confidence().alias("confidence"),
        "generations",
    )


def _values(sections: DataFrame) -> DataFrame:
    """Return the newest generations, with each series' value in a column; absent values are 0."""
    is_of = [
        (f.col("section") == one.section)
        & (f.lit(one.kind == ANY) | f.coalesce(f.col("kind") == one.kind, f.lit(False)))
        for one in SERIES
    ]
    sums = [
        f.sum(f.when(holds, f.col(one.column)).otherwise(0)).cast("double").alias(f"value_{index}")
        for index, (one, holds) in enumerate(zip(SERIES, is_of, strict=True))
    ]
    by_generation = sections.groupBy("generation", "timestamp_us").agg(*sums)
    return by_generation.orderBy(f.col("generation").desc()).limit(GENERATIONS_MAX)


def _series(values: DataFrame) -> DataFrame:
    """Return a row per series, with its points by ascending generation."""
    columns = [f"value_{index}" for index in range(len(SERIES))]
    points = f.sort_array(f.collect_list(f.struct("generation", "timestamp_us", *columns)))
    rows = [
        f.struct(
            f.lit(one.section).alias("section"),
            f.lit(one.name).alias("limit_name"),
            f.lit(one.value).cast("bigint").alias("limit_value"),
            f.transform("points", _point(column)).alias("points"),
        )
        for one, column in zip(SERIES, columns, strict=True)
    ]
    whole = values.agg(points.alias("points")).where(f.size("points") > 0)
    return whole.select(f.inline(f.array(*rows)))


def _point(column: str) -> Callable[[Column], Column]:
    """Return a struct of one series' point in a generation."""
    return lambda point: f.struct(
        point["generation"].cast("double").alias("generation"),
        (point["timestamp_us"] / HOUR_US).alias("hours"),
        point[column].alias("value"),
    )


def _pairs(series: DataFrame) -> DataFrame:
    """Add the sorted slopes between any two points."""
    slopes = {
        name: f.sort_array(
            f.filter(
                f.flatten(f.transform("points", _slopes_after(name))),
                lambda slope: slope.isNotNull(),
            )
        )
        for name in ("hours", "generation")
    }
    return series.select(
        "section",
        "limit_name",
        "limit_value",
        f.size("points").cast("bigint").alias("generations"),
        f.element_at("points", -1)["value"].alias("now"),
        *(column.alias(name) for name, column in slopes.items()),
    )


def _slopes_after(name: str) -> Callable[[Column, Column], Column]:
    """Return a function from a point to its slopes to all later ones; null between equal times."""

    def slopes(point: Column, index: Column) -> Column:
        later = f.slice("points", index + 2, f.size("points"))
        return f.transform(
            later,
            lambda other: f.try_divide(other["value"] - point["value"], other[name] - point[name]),
        )

    return slopes


def _rates(pairs: DataFrame) -> DataFrame:
    low, high = _interval()
    return pairs.select(
        "section",
        "limit_name",
        "limit_value",
        "generations",
        "now",
        _median("hours").alias("per_hour"),
        _median("generation").alias("slope"),
        low.alias("per_hour_low"),
        high.alias("per_hour_high"),
    )


def _median(name: str) -> Column:
    """Return the middle of sorted slopes, the mean of both where there are two, null for none."""
    count = f.size(name)
    lower = f.try_element_at(name, f.floor((count + 1) / 2).cast("int"))
    upper = f.try_element_at(name, f.floor(count / 2).cast("int") + 1)
    return f.when(count > 0, (lower + upper) / 2)


def _interval() -> tuple[Column, Column]:
    """Return the ends of Sen's interval: the slopes so many ranks from the middle."""
    count = f.col("generations")
    pairs = f.size("hours")
    spread = NORMAL_QUANTILE * f.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = f.greatest(f.lit(1), f.floor((pairs - spread) / 2).cast("int"))
    high = f.least(pairs, f.ceil((pairs + spread) / 2).cast("int") + 1)
    is_enough = (count >= GENERATIONS_MIN) & (pairs > 0)
    return (
        f.when(is_enough, f.try_element_at("hours", low)),
        f.when(is_enough, f.try_element_at("hours", high)),
    )


def _confidence() -> Column:
    low, high = f.col("per_hour_low"), f.col("per_hour_high")
    return (
        f.when(low.isNull(), TOO_FEW).when((low > 0) | (high < 0), SIGNIFICANT).otherwise(UNCERTAIN)
    )
