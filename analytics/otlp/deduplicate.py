"""Keeps one row per span. Exporters retry, so a span may have been written more than once.

Copies of a span have the same (trace_id, span_id); the one with the most information is kept. The
choice is a total order over the content of rows, so it does not depend on files, partitions or
batches: deduplicating in steps and at once gives the same rows.
"""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import tables
from analytics.schema import KINDS, SPANS, STATUSES, UNKNOWN_SERVICE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REPEATED: Final = "repeated"
ID: Final = ("trace_id", "span_id")
# Above this, the hashes of repeated spans are not sent to every task, but joined by a shuffle: the
# driver has them in memory, about 100 bytes each.
BROADCAST_ROWS_MAX: Final = 500_000


def key() -> Column:
    """Return 64 bits for a span's id. Two spans may share them: never decide by them alone."""
    from pyspark.sql import functions as f

    return f.xxhash64(*ID)


def deduplicate(rows: DataFrame, output: Path) -> DataFrame:
    """Return one row per span. `rows` has the columns of `spans`, in files: it is read again.

    Only rows that share a key with another row are sorted and shuffled.
    """
    keys = repeated(rows, output)
    return rows if keys is None else among(rows, keys)


def repeated(rows: DataFrame, output: Path) -> DataFrame | None:
    """Return each `key` that more than one row has, None if there is no such key.

    The keys stay in the output's scratch space until the caller deletes it.
    """
    from pyspark.sql import functions as f

    hashes = rows.select(key().alias("key"))
    path = str(tables.scratch(output, REPEATED))
    hashes.groupBy("key").count().where("count > 1").select("key").write.parquet(path)
    keys = rows.sparkSession.read.schema("key BIGINT").parquet(path)
    count = keys.count()
    if count == 0:
        return None
    return f.broadcast(keys) if count <= BROADCAST_ROWS_MAX else keys


def among(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Return one row per span, where only spans with one of the keys may be there twice."""
    keyed = rows.withColumn("key", key())
    single = keyed.join(keys, "key", "left_anti").drop("key")
    return single.unionByName(best(keyed.join(keys, "key", "left_semi").drop("key")))


def best(rows: DataFrame) -> DataFrame:
    """Return the best row of each span, by a sort of all rows."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # The whole content breaks the last ties, so no two different rows are equal.
    content = f.to_json(f.struct(*SPANS.column_names()))
    order = [filled().desc(), f.desc("duration_us"), content]
    place = f.row_number().over(Window.partitionBy(*ID).orderBy(*order))
    return rows.withColumn("place", place).where(f.col("place") == 1).drop("place")


def filled() -> Column:
    """Return how many values a span has: of two copies, the fuller one is kept."""
    from pyspark.sql import functions as f

    said = (
        f.col("parent_span_id").isNotNull(),
        f.col("name") != "",
        f.col("service") != UNKNOWN_SERVICE,
        f.col("instance").isNotNull(),
        f.col("kind") != KINDS[0],
        f.col("status") != STATUSES[0],
        f.col("status_message").isNotNull(),
    )
    sizes = [f.size(name) for name in ("attributes", "events", "links")]
    return functools.reduce(operator.add, [*sizes, *(one.cast("int") for one in said)])
