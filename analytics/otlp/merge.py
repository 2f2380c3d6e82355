"""Adds rows to an existing table in one step; adding the same rows again has no effect.

The new table shares the files that did not change with the old one, by hard links. Only partitions
that hold another copy of a new span are written again, and those of too many small files.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import tables
from analytics.otlp import staging
from analytics.otlp.deduplicate import best, deduplicate, key, repeated
from analytics.schema import QUARANTINE, SPANS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MERGED: Final = "merged"
# Spark puts rows without a date here; every span has a date.
NO_DATE: Final = "date=__HIVE_DEFAULT_PARTITION__"
# Each merge adds files to its partitions; so many small files in one are combined.
PARTITION_FILES_MAX: Final = 32
# Below half of this a file is small.
FILE_BYTES: Final = 128 * 1024 * 1024
# With so many tasks for each core, all cores end at about the same time.
TASKS_PER_CORE: Final = 4
# File systems without hard links raise one of these errors.
NO_LINKS: Final = frozenset({errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK})


def adopt_spans(rows: DataFrame, place: Path, output: Path) -> None:
    """Make the staged files below the place the table `spans`; `rows` are the spans in them.

    Files with a span that has another copy are written again without that span, and its fullest
    copy goes into a new file. All other files move into the table unchanged.
    """
    adopted = tables.scratch(output, MERGED)
    adopted.mkdir()
    keys = repeated(rows, output)
    again: set[Path] = set()
    if keys is not None:
        again = _without(rows, keys, place, adopted)
        copies = rows.withColumn("key", key()).join(keys, "key", "left_semi").drop("key")
        once = tables.conform(best(copies), SPANS)
        once.write.partitionBy(*SPANS.partition_by).mode("append").parquet(str(adopted))
    _link_others(
        place,
        adopted,
        lambda path: (
            path.absolute() not in again and not _partition(path, place).startswith(NO_DATE)
        ),
    )
    tables.publish(adopted, SPANS, output)


def merge_spans(fresh: DataFrame, output: Path) -> None:
    """Add spans to the table `spans`, keeping the fuller of two copies. Read several times.

    Merging the same rows again changes nothing, so a merge cut short may simply be repeated.
    """
    if not tables.exists(SPANS, output):
        tables.write(deduplicate(fresh, output), SPANS, output)
        return
    tables.check(SPANS, output)
    place = output / SPANS.name
    crowded = _crowded(place)
    again = sorted(_colliding(fresh, place) | crowded)
    there = [place / partition for partition in again]
    rows = fresh.unionByName(_read(fresh, place, there)) if again else fresh
    merged = tables.scratch(output, MERGED)
    conformed = tables.conform(deduplicate(rows, output), SPANS)
    # Every task writes a file of its own into each partition that it has rows for.
    chosen = conformed.coalesce(_file_count(rows)) if crowded else conformed
    chosen.write.partitionBy(*SPANS.partition_by).parquet(str(merged))
    _link_others(place, merged, lambda path: _partition(path, place) not in again)
    tables.publish(merged, SPANS, output)


def merge_quarantine(fresh: DataFrame, output: Path) -> None:
    """Add rows to the table `quarantine`, each once."""
    rows = fresh
    if tables.exists(QUARANTINE, output):
        rows = fresh.unionByName(tables.read(fresh.sparkSession, QUARANTINE, output))
    tables.write(rows.distinct(), QUARANTINE, output)


def _colliding(fresh: DataFrame, place: Path) -> set[str]:
    """Return the partitions that may hold a copy of one of the spans, as paths in the table.

    Reads the ids of all spans in the table, and no other column.
    """
    from pyspark.sql import functions as f

    there = fresh.sparkSession.read.schema(SPANS.struct()).parquet(str(place))
    keyed = there.select(key().alias("key"), f.col("_metadata.file_path").alias("path"))
    new = fresh.select(key().alias("key")).distinct()
    paths = keyed.join(new, "key", "left_semi").select("path").distinct().collect()
    return {_partition(staging.local(row.path), place) for row in paths}


def _crowded(place: Path) -> set[str]:
    """Return the partitions with so many small files that writing them again pays."""
    counts: dict[str, int] = {}
    small = (path for path in place.rglob("*.parquet") if path.stat().st_size < FILE_BYTES // 2)
    for path in small:
        partition = _partition(path, place)
        counts[partition] = counts.get(partition, 0) + 1
    return {partition for partition, count in counts.items() if count >= PARTITION_FILES_MAX}


def _file_count(rows: DataFrame) -> int:
    """Return how many files of FILE_BYTES the files that the rows come from would fill."""
    paths = (staging.local(name) for name in rows.inputFiles())
    return sum(path.stat().st_size for path in paths) // FILE_BYTES + 1


def _partition(path: Path, place: Path) -> str:
    """Return the folder of a file below the table."""
    return str(path.parent.relative_to(place.absolute() if path.is_absolute() else place))


def _read(like: DataFrame, place: Path, paths: Iterable[Path]) -> DataFrame:
    """Return the rows of some files or partitions below the place."""
    reader = like.sparkSession.read.schema(SPANS.struct()).option("basePath", str(place))
    return reader.parquet(*map(str, paths)).select(*SPANS.column_names())


def _without(rows: DataFrame, keys: DataFrame, place: Path, adopted: Path) -> set[Path]:
    """Write the files that hold a span with one of the keys again, without it; return them."""
    from pyspark.sql import functions as f

    keyed = rows.select(
        key().alias("key"),
        f.col("_metadata.file_path").alias("path"),
        f.col("_metadata.row_index").alias("row"),
    )
    found = keyed.join(keys, "key", "left_semi").groupBy("path").agg(f.collect_list("row"))
    # Spark keeps an explicit number of partitions; it would merge such small input into one task.
    tasks = found.repartition(rows.sparkSession.sparkContext.defaultParallelism * TASKS_PER_CORE)
    work = functools.partial(staging.rewrite, place.absolute(), adopted)
    told = tasks.mapInArrow(work, staging.REWRITTEN).collect()
    staging.finish(adopted, (name for row in told for name in row.files))
    return {staging.local(row.path) for row in told}


def _link_others(place: Path, merged: Path, is_wanted: Callable[[Path], bool]) -> None:
    """Link the files of the place that stay unchanged into the new table."""
    for path in sorted(place.rglob("*.parquet")):
        if is_wanted(path):
            target = merged / path.parent.relative_to(place)
            target.mkdir(parents=True, exist_ok=True)
            link(path, target / path.name)


def link(source: Path, target: Path) -> None:
    """Link the target to the file, or copy the file where the file system has no links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(source, target)
