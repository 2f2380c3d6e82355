"""What each generation changed, and the bytes written for these changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def churn(changes: DataFrame) -> DataFrame:
    """Return churn: entities added, changed and removed by generation and section.

    Reads the view `changes`. A section that did not change has zeros. A section has no row if the
    earlier generation was deleted, so that its earlier state is unknown.
    """
    return changes.groupBy("generation", "section").agg(
        *(f.sum(name).alias(name) for name in ("added", "changed", "removed"))
    )


def amplification(
    layers: DataFrame, changes: DataFrame, log_bytes: DataFrame | None = None
) -> DataFrame:
    """Return amplification, from the views `layers` and `changes` of all present generations.

    `layer_bytes` counts one copy of the files that a generation is the first to name: its deltas,
    and bases that were merged since the generation before. `changed_bytes` counts the entries that
    made a difference, before compression. `log_bytes` (generation, log_bytes) says how much journal
    lies between the cut and the one before; without it the column is null.
    """
    written = _written(layers)
    changed_bytes = f.col("added_bytes") + f.col("changed_bytes") + f.col("removed_bytes")
    changed = changes.groupBy("generation").agg(f.sum(changed_bytes).alias("changed_bytes"))
    rows = written.join(changed, "generation", "left")
    if log_bytes is None:
        rows = rows.withColumn("log_bytes", f.lit(None).cast("bigint"))
    else:
        rows = rows.join(log_bytes.select("generation", "log_bytes"), "generation", "left")
    ratio = f.try_divide("layer_bytes", "log_bytes")
    changed_ratio = f.try_divide("layer_bytes", "changed_bytes")
    return rows.select(
        "generation",
        "layer_bytes",
        f.col("log_bytes").cast("bigint").alias("log_bytes"),
        ratio.alias("ratio"),
        "changed_bytes",
        changed_ratio.alias("changed_ratio"),
    )


def _written(layers: DataFrame) -> DataFrame:
    """Return the bytes of layers that each generation is the first to name.

    The oldest generation may have taken layers over from deleted ones, so only its layers with its
    own number count.
    """
    oldest = f.min("generation").over(Window.partitionBy())
    first = f.min("generation").over(Window.partitionBy("digest"))
    is_new = (f.col("first") == f.col("generation")) & (
        (f.col("generation") != f.col("oldest"))
        | (f.col("layer_generation") == f.col("generation"))
    )
    marked = layers.withColumn("oldest", oldest).withColumn("first", first)
    size_bytes = f.when(is_new, f.col("size_bytes")).otherwise(0)
    return marked.groupBy("generation").agg(f.sum(size_bytes).alias("layer_bytes"))
