"""Shared by all trace tables: percentiles, the stage of a span, bands of requests.

Every function takes and returns DataFrames or columns and computes nothing by itself.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from analytics.schema import TableSchema

# The rank of a percentile is off by at most 1/10,000 of the rows of its group: p99 lies between
# p98.99 and p99.01. Groups of fewer than 5,000 rows are exact (nearest rank), since the sketch
# keeps every value until then. A sketch takes at most about 1 MB per group and task.
PERCENTILE_ACCURACY: Final = 10_000
QUANTILES: Final[dict[str, float]] = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99}

# A band begins at its percentile and ends before the next; `all` has every request.
BANDS: Final[dict[str, str]] = {"p50": "p50_us", "p90": "p90_us", "p99": "p99_us"}
BAND_ALL: Final = "all"

MICROSECONDS_PER_SECOND: Final = 1_000_000
MINUTE_US: Final = 60 * MICROSECONDS_PER_SECOND

# The kinds of span in which a service does work that another process asked for.
ENTRY_KINDS: Final = ("SERVER", "CONSUMER")
# The kinds of span in which a service asks another for something.
CALL_KINDS: Final = ("CLIENT", "PRODUCER")
ERROR_STATUS: Final = "ERROR"


def conform(frame: DataFrame, table: TableSchema) -> DataFrame:
    """Return the columns of the table, in its order and with its types."""
    return frame.select(
        *(f.col(field.name).cast(field.dataType).alias(field.name) for field in table.struct())
    )


def parent_id() -> Column:
    """Return the id of the parent, null where a span has none; some producers write ''."""
    return f.nullif(f.col("parent_span_id"), f.lit(""))


def key(*ids: str) -> Column:
    """Return 64 bits for ids, named `key`; null where one of them is.

    Joins use them, because Spark moves and compares them in a fraction of the time of text. Among
    100 million spans, the chance that two share a key is about 1 in 1,000.
    """
    are_there = functools.reduce(operator.and_, (f.col(one).isNotNull() for one in ids))
    return f.when(are_there, f.xxhash64(*ids)).alias("key")


def is_error() -> Column:
    """Return whether the span failed; never null."""
    return f.coalesce(f.col("status") == ERROR_STATUS, f.lit(False))


def stage() -> Column:
    """Return the stage of a span of any producer.

    A span that takes up a request counts for its service; any other span counts for the `stage` it
    names, or for its name.
    """
    enters = f.col("kind").isin(*ENTRY_KINDS) | parent_id().isNull()
    return f.when(enters, f.col("service")).otherwise(f.coalesce("stage", "name"))


def entries(spans: DataFrame) -> DataFrame:
    """Return the spans that take up work in a service: of entry kinds, or without parent."""
    return spans.where(f.col("kind").isin(*ENTRY_KINDS) | parent_id().isNull())


def floor_us(time: str, width_us: int) -> Column:
    """Return the start of the window of this width around a time, in microseconds."""
    return f.col(time) - f.pmod(f.col(time), f.lit(width_us))


def percentiles(value: Column) -> Column:
    """Return an array of the values at QUANTILES; nulls do not count.

    The sketches are merged from all tasks before rows are moved, so one group that has most of
    the rows costs no more than any other, and needs no salt.
    """
    return f.percentile_approx(value, list(QUANTILES.values()), PERCENTILE_ACCURACY)


def spread(array: str, names: Iterable[str] = tuple(QUANTILES)) -> list[Column]:
    """Return a column per element of an array, with these names."""
    return [f.get(f.col(array), f.lit(place)).alias(name) for place, name in enumerate(names)]


def banded(requests: DataFrame) -> DataFrame:
    """Return the requests with `band`, null below the median of their `rpc`, and the percentiles.

    The join is on `rpc`, and a single RPC may have nearly all requests. Adaptive execution either
    broadcasts the percentiles, or splits the crowded partition of the requests.
    """
    limits = requests.groupBy("rpc").agg(percentiles(f.col("duration_us")).alias("_at"))
    limits = limits.select("rpc", *spread("_at"))
    joined = requests.join(limits, on="rpc")
    band = f.lit(None).cast("string")
    for name, threshold in BANDS.items():
        band = f.when(f.col("duration_us") >= f.col(threshold), f.lit(name)).otherwise(band)
    return joined.withColumn("band", band)


def top(frame: DataFrame, keys: list[str], order: list[Column], count: int) -> DataFrame:
    """Return the first `count` rows of each group of keys, in this order.

    Spark cuts each task's rows to `count` per group before it moves them (WindowGroupLimit), so
    a group with most of the rows does not fill one task.
    """
    window = Window.partitionBy(*keys).orderBy(*order)
    ranked = frame.withColumn("_rank", f.row_number().over(window))
    return ranked.where(f.col("_rank") <= count).drop("_rank")
