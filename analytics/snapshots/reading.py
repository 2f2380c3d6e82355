"""Reads snapshots as DataFrames, after a check in the driver.

Spark looks for files in processes of its own, whose errors arrive wrapped and whose warnings end in
a log. This module opens the same files first, so that callers get plain errors and Python warnings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analytics.snapshots import copies, selection
from analytics.snapshots.chain import chain_of, opened
from analytics.snapshots.source import FORMAT, SnapshotDataSource
from analytics.snapshots.views import ENTITIES, view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("viewstamp-snapshot")` known to a session."""
    spark.dataSource.register(SnapshotDataSource)


def read(
    spark: SparkSession,
    directory: Path | None = None,
    *,
    view: str = ENTITIES,
    generation: int | str | Sequence[int] = selection.NEWEST,
    section: str | None = None,
    kind: str | None = None,
    copies: Sequence[Path] = (),
    partition_bytes: int = selection.PARTITION_BYTES_DEFAULT,
) -> DataFrame:
    """Return a view of snapshots below `directory`, or in the directories `copies`.

    `generation` is a number, several, `newest` or `all`. Warns by SnapshotCopyWarning of copies
    that cannot be used; raises SnapshotError where a file is good in none, NewerSnapshotError where
    it is of a later version.
    """
    options = {
        selection.VIEW: view,
        selection.GENERATION: _generation(generation),
        selection.PARTITION_BYTES: str(partition_bytes),
    }
    if directory is not None:
        options[selection.PATH] = str(directory.absolute())
    if copies:
        options[selection.COPIES] = os.pathsep.join(str(path.absolute()) for path in copies)
    if section is not None:
        options[selection.SECTION] = section
    if kind is not None:
        options[selection.KIND] = kind
    view_of(view, kind)
    check(options)
    register(spark)
    path = options.pop(selection.PATH, None)
    return spark.read.format(FORMAT).options(**options).load(path)


def check(options: dict[str, str]) -> None:
    """Open every manifest and layer that is selected. Warns and raises as `read` does."""
    selected = selection.selection_of(options)
    for manifest in selected.manifests():
        message = copies.decoded(manifest)
        for stage in selected.stages:
            with opened(selected.directories, chain_of(message, stage)):
                pass


def _generation(generation: int | str | Sequence[int]) -> str:
    if isinstance(generation, int | str):
        return str(generation)
    return ",".join(map(str, generation))
