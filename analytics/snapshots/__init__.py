"""Snapshots as tables: the parts of the state, its growth, and its waste.

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

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["tables"]


@contextmanager
def tables(
    spark: SparkSession,
    directory: Path | None,
    spans: DataFrame | None = None,
    exports: Sequence[Path] = (),
) -> Iterator[dict[str, DataFrame]]:
    """Yield the snapshot tables of every generation by name, to be written inside the context.

    `directory` is a data directory, its `snapshots`, or a download. `exports` add generations to
    `snapshot_sections`, `growth` and `restore_estimate`; without a directory, only these tables are
    made. Without `spans`, the latency around cuts is left out. Data that is read several times is
    kept in memory or on local disks.
    """
    from pyspark import StorageLevel

    from analytics import schema
    from analytics.snapshots import growth, latency, sizes

    frames, kept = ({}, []) if directory is None else _in_place(spark, directory)
    known = frames.get(schema.SNAPSHOT_SECTIONS.name)
    sections = _with_exports(spark, known, directory, exports)
    kept.append(sections.persist(StorageLevel.MEMORY_AND_DISK))
    frames |= {
        schema.SNAPSHOT_SECTIONS.name: sections,
        schema.GROWTH.name: growth.growth(sections),
        schema.RESTORE_ESTIMATE.name: sizes.restore_estimate(sections, sizes.RestoreRates()),
    }
    if spans is not None:
        frames[schema.CUT_LATENCY.name] = latency.cut_latency(spans)
    try:
        yield frames
    finally:
        for frame in kept:
            frame.unpersist()


def _in_place(spark: SparkSession, directory: Path) -> tuple[dict[str, DataFrame], list[DataFrame]]:
    """Return the tables that need snapshot directories, and the cached frames behind them."""
    from pyspark import StorageLevel

    from analytics import schema
    from analytics.snapshots import change, garbage, reading, selection, sizes

    facts, sections, changes, layers = (
        reading.read(spark, directory, view=view, generation=selection.ALL)
        for view in ("facts", "sections", "changes", "layers")
    )
    kept = [frame.persist(StorageLevel.MEMORY_AND_DISK) for frame in (facts, changes, layers)]
    frames = {
        schema.SNAPSHOT_SECTIONS.name: sections,
        schema.SNAPSHOT_TENANTS.name: sizes.tenants(facts),
        schema.CHURN.name: change.churn(changes),
        schema.AMPLIFICATION.name: change.amplification(layers, changes),
        schema.GARBAGE.name: garbage.garbage(facts),
    }
    return frames, kept


def _with_exports(
    spark: SparkSession, known: DataFrame | None, directory: Path | None, paths: Sequence[Path]
) -> DataFrame:
    """Return the sections, those of exports too; of each generation only the first source named."""
    from analytics.snapshots import copies, exports

    there = set()
    if directory is not None:
        there.update(copies.generations(copies.copy_directories(directory)))
    frames = [] if known is None else [known]
    for export in map(exports.open_export, paths):
        if export.generation not in there:
            there.add(export.generation)
            frames.append(exports.sections(spark, export))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)
