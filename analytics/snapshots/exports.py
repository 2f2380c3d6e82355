"""Exports written by `viewstamp snapshot export`, as docs/export.md describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from analytics.schema import SNAPSHOT_SECTIONS
from analytics.snapshots.errors import NewerSnapshotError, SnapshotError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
SUCCESS: Final = "_SUCCESS"
LAYERS: Final = "layers"
_COLUMNS: Final = SNAPSHOT_SECTIONS.columns


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export. `tables` has the manifest's description of each kind, and of `layers`."""

    directory: Path
    manifest: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]

    @property
    def generation(self) -> int:
        """The generation of the export."""
        return int(self.manifest["generation"])

    def table(self, spark: SparkSession, name: str) -> DataFrame:
        """Return the table of a kind, or `layers`. Raises SnapshotError for any other name."""
        if name not in self.tables:
            known = ", ".join(self.tables)
            raise SnapshotError(f"{self.directory} has no table {name!r}: choose from {known}")
        return spark.read.parquet(*self._paths(name))

    def layers(self, spark: SparkSession) -> DataFrame:
        """Return the columns of the view `layers` of a snapshot directory."""
        return self.table(spark, LAYERS).selectExpr(
            "CAST(generation AS BIGINT)",
            "section",
            "CAST(position AS BIGINT)",
            "is_base",
            *(f"CAST({name} AS BIGINT)" for name in ("layer_generation", "base_generation")),
            "digest",
            *(
                f"CAST({name} AS BIGINT)"
                for name in ("size_bytes", "raw_bytes", "entries", "tombstones")
            ),
        )

    def _paths(self, name: str) -> list[str]:
        directory = self.directory / self.tables[name]["path"]
        return [str(directory / part) for part in self.tables[name]["parts"]]


def open_export(directory: Path) -> Export:
    """Return an export, after checking that it is whole and known.

    Raises SnapshotError where `_SUCCESS`, the manifest or a part is missing or damaged, and
    NewerSnapshotError for a schema version that this program does not know.
    """
    if not (directory / SUCCESS).is_file():
        raise SnapshotError(
            f"{directory} has no {SUCCESS}, so it is no export, or one that did not end: export"
            " again"
        )
    manifest = _manifest(directory / MANIFEST)
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise NewerSnapshotError(
            f"{directory} has schema version {version!r}, this program reads {SCHEMA_VERSION}:"
            " upgrade it, or export with this version"
        )
    try:
        tables = {table["kind"] or LAYERS: table for table in manifest["tables"]}
        parts = [Path(table["path"], part) for table in tables.values() for part in table["parts"]]
        int(manifest["generation"])
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(
            f"{directory / MANIFEST} does not say what an export holds ({error!r}): export again"
        ) from error
    missing = [str(part) for part in parts if not (directory / part).is_file()]
    if missing:
        raise SnapshotError(f"{directory} lacks {', '.join(missing)}: export again")
    return Export(directory, manifest, tables)


def sections(spark: SparkSession, export: Export) -> DataFrame:
    """Return snapshot_sections of an export.

    An export does not say which kind the bytes of a layer belong to: rows of kinds have entities
    and no bytes, and one row per section, whose kind is null, has its bytes.
    """
    cut_revision = int(export.manifest["cut_revision"])
    timestamp_us = int(export.manifest["timestamp"])
    layers = {about["section"]: about["layers"] for about in export.manifest["sections"]}
    kinds = [
        (export.generation, one["section"], kind, one["rows"], 0, 0, layers[one["section"]], 0, 0)
        for kind, one in export.tables.items()
        if kind != LAYERS and one["rows"]
    ]
    counted = spark.createDataFrame([(*row, cut_revision, timestamp_us) for row in kinds], _COLUMNS)
    base_bytes = f.sum(f.when(f.col("is_base"), f.col("size_bytes")).otherwise(0))
    weighed = export.layers(spark).groupBy("generation", "section")
    sums = {
        "kind": f.lit(None).cast("string"),
        "entities": f.lit(0).cast("bigint"),
        "bytes": f.sum("size_bytes"),
        "raw_bytes": f.sum("raw_bytes"),
        "layers": f.count("*"),
        "base_bytes": base_bytes,
        "delta_bytes": f.sum("size_bytes") - base_bytes,
        "cut_revision": f.lit(cut_revision).cast("bigint"),
        "timestamp_us": f.lit(timestamp_us).cast("bigint"),
    }
    return counted.unionByName(weighed.agg(*(value.alias(name) for name, value in sums.items())))


def _manifest(path: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{path} cannot be read ({error}): export again") from error
    if not isinstance(manifest, dict):
        raise SnapshotError(f"{path} is no manifest of an export: export again")
    return manifest
