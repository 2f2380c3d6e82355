"""Snapshots as tables: what the state consists of, how it grows, and what of it is waste.

errors      reasons why a snapshot cannot be read, and the warning for a copy passed over
copies      copy directories: generations, and manifests from the first good copy
layers      one layer out of several copies, block by block
chain       a section as a chain of layers: key ranges, merged entities, what changed
columns     columns of each kind of entity, as an export has them
views       what can be read of a snapshot, and the partitions of each
source      `spark.read.format("viewstamp-snapshot")`
reading     the same with the checks and warnings in the driver
exports     exports written by `viewstamp snapshot export`
sizes       snapshot_sections, snapshot_tenants, restore_estimate
growth      growth
change      churn, amplification
garbage     garbage
latency     cut_latency
history     a generator of snapshot directories for tests and load
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["tables"]


@contextmanager
def tables(
    spark: SparkSession, directory: Path, spans: DataFrame | None = None
) -> Iterator[dict[str, DataFrame]]:
    """Yield the snapshot tables of every generation by name, to be written inside the context.

    `directory` is a data directory, its `snapshots`, or a download. Without `spans`, the latency
    around cuts is left out. What is read several times is kept in memory or on local disks.
    """
    from pyspark import StorageLevel

    from analytics import schema
    from analytics.snapshots import change, garbage, growth, latency, reading, selection, sizes

    def read(view: str) -> DataFrame:
        found = reading.read(spark, directory, view=view, generation=selection.ALL)
        return found.persist(StorageLevel.MEMORY_AND_DISK)

    facts, sections, changes, layers = map(read, ("facts", "sections", "changes", "layers"))
    frames = {
        schema.SNAPSHOT_SECTIONS.name: sections,
        schema.SNAPSHOT_TENANTS.name: sizes.tenants(facts),
        schema.GROWTH.name: growth.growth(sections),
        schema.CHURN.name: change.churn(changes),
        schema.AMPLIFICATION.name: change.amplification(layers, changes),
        schema.RESTORE_ESTIMATE.name: sizes.restore_estimate(sections, sizes.RestoreRates()),
        schema.GARBAGE.name: garbage.garbage(facts),
    }
    if spans is not None:
        frames[schema.CUT_LATENCY.name] = latency.cut_latency(spans)
    try:
        yield frames
    finally:
        for frame in (facts, sections, changes, layers):
            frame.unpersist()
