"""Exports are read if they are whole and known; a snapshot read in place has the same tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analytics import schema, tables
from analytics.snapshots import exports, reading
from analytics.snapshots.errors import NewerSnapshotError, SnapshotCopyWarning, SnapshotError
from testkit.generators.history import StateLife, write_history
from tests.analytics import snapshot_cases
from tests.analytics.snapshot_cases import collected
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.export import SCHEMA_VERSION, export
from viewstamp.snapshots.generation import Generation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTIONS = ("sessions", "users", "streams", "consumer_groups", "catalog")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory with two generations."""
    directory = tmp_path_factory.mktemp("data")
    write_history(directory, StateLife(generations=2), seed=8)
    return directory


@pytest.fixture
def exported(data: Path, tmp_path: Path) -> Path:
    """Return an export of the newest generation."""
    generation = Generation(Copies(copy_directories(data)), 0)
    export(generation, tmp_path / "export", overwrite=False, progress=lambda _: None)
    return tmp_path / "export"


def test_version_is_the_writers() -> None:
    """The reader here accepts the version that the exporter writes."""
    assert exports.SCHEMA_VERSION == SCHEMA_VERSION


def test_unfinished_exports_are_refused(exported: Path) -> None:
    """Without `_SUCCESS` a directory is left alone, whatever else is in it."""
    exports.open_export(exported)
    (exported / "_SUCCESS").unlink()
    with pytest.raises(SnapshotError, match="has no _SUCCESS"):
        exports.open_export(exported)


def test_lost_parts_are_named(exported: Path) -> None:
    """A missing part that the manifest names is an error before Spark begins."""
    (exported / "section=streams" / "kind=topics" / "part-00000.parquet").unlink()
    with pytest.raises(SnapshotError, match=r"kind=topics/part-00000\.parquet"):
        exports.open_export(exported)


@pytest.mark.parametrize(
    ("changed", "error", "complaint"),
    [
        ({"schema_version": 2}, NewerSnapshotError, "schema version 2, this program reads 1"),
        ({"schema_version": None}, NewerSnapshotError, "schema version None"),
        ({"tables": 5}, SnapshotError, "does not say what an export holds"),
        ({"generation": "x"}, SnapshotError, "does not say what an export holds"),
    ],
)
def test_unknown_manifests_are_refused(
    exported: Path, changed: dict[str, Any], error: type[SnapshotError], complaint: str
) -> None:
    """Another schema version, or a manifest that lacks something, is an error that says so."""
    path = exported / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(error, match=complaint):
        exports.open_export(exported)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_manifests_are_refused(exported: Path, text: str) -> None:
    """A manifest that is no JSON object is an error that names it."""
    (exported / "manifest.json").write_text(text)
    with pytest.raises(SnapshotError, match=r"manifest\.json"):
        exports.open_export(exported)


@pytest.mark.long
def test_spark_reads_in_place_what_an_export_has(
    spark: SparkSession, data: Path, exported: Path
) -> None:
    """Through the data source a kind has the very rows and columns of its table in an export."""
    opened = exports.open_export(exported)
    in_place = reading.read(spark, data, kind="users")
    table = opened.table(spark, "users")
    assert in_place.dtypes == table.dtypes
    rows = collected(in_place)
    assert rows
    assert rows == collected(table)
    with pytest.raises(SnapshotError, match="has no table 'topic': choose from sessions"):
        opened.table(spark, "topic")


def test_exports_have_sections(spark: SparkSession, data: Path, exported: Path) -> None:
    """An export gives the entities per kind and the bytes per section of its snapshot."""
    opened = exports.open_export(exported)
    found = tables.conform(exports.sections(spark, opened), schema.SNAPSHOT_SECTIONS)
    want = snapshot_cases.rows(data, "sections")
    have = [row.asDict() for row in found.collect()]
    assert sorted(
        (row["section"], row["kind"], row["entities"]) for row in have if row["kind"]
    ) == sorted((row["section"], row["kind"], row["entities"]) for row in want if row["entities"])
    for name in ("bytes", "raw_bytes", "base_bytes", "delta_bytes"):
        sums = [
            {of: sum(row[name] for row in some if row["section"] == of) for of in SECTIONS}
            for some in (have, want)
        ]
        assert sums[0] == sums[1]


def test_driver_is_told_before_spark(spark: SparkSession, data: Path) -> None:
    """Warnings and errors about copies are raised where the caller is, not in a worker."""
    good = snapshot_cases.all_copies(data, f"manifests/{1:020d}.manifest")
    contents = good[0].read_bytes()
    try:
        good[0].unlink()
        with pytest.warns(SnapshotCopyWarning, match=str(good[0])):
            reading.read(spark, data, view="sections", generation=1)
        for path in good[1:]:
            path.write_bytes(b"rot")
        with pytest.raises(SnapshotError, match="no good copy"):
            reading.read(spark, data, view="sections", generation=1)
    finally:
        for path in good:
            path.write_bytes(contents)
