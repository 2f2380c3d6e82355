"""Tables on disk are all or nothing, keep their types, and are refused where they are unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from analytics import tables
from analytics.schema import QUARANTINE, TABLES, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAYS = TableSchema(
    "days", "value BIGINT, date DATE, service STRING", partition_by=("date", "service")
)
ROWS = [(1, date(2026, 11, 20), "007"), (2, date(2026, 11, 21), "a/b=c%"), (3, None, "\u00fc")]


def quarantined(spark: SparkSession, reason: str) -> DataFrame:
    """Return one row of the table `quarantine`."""
    return spark.createDataFrame([("a.jsonl", 1, reason, "{")], QUARANTINE.columns)


def reasons(spark: SparkSession, output: Path) -> list[str]:
    """Return the reasons that the table `quarantine` holds."""
    return [row.reason for row in tables.read(spark, QUARANTINE, output).collect()]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_schemas_are_sound(spark: SparkSession, table: TableSchema) -> None:
    """Each table's columns can be parsed, are distinct, and contain its partition columns."""
    names = table.column_names()
    assert len(names) == len(set(names))
    assert names[len(names) - len(table.partition_by) :] == table.partition_by


def test_values_of_partitions_keep_their_type(spark: SparkSession, tmp_path: Path) -> None:
    """A service named 007 is read as that text, and odd characters survive being a folder."""
    with tables.claim(tmp_path):
        tables.write(spark.createDataFrame(ROWS, DAYS.columns), DAYS, tmp_path)
    assert sorted(map(tuple, tables.read(spark, DAYS, tmp_path).collect())) == ROWS
    assert json.loads((tmp_path / "days" / "_schema.json").read_text())["schema_version"] == 1


def test_second_write_replaces_the_first(spark: SparkSession, tmp_path: Path) -> None:
    """A table written again has the new rows alone, also if it was computed from the old ones."""
    with tables.claim(tmp_path):
        tables.write(quarantined(spark, "first"), QUARANTINE, tmp_path)
        old = tables.read(spark, QUARANTINE, tmp_path)
        tables.write(old.replace("first", "second"), QUARANTINE, tmp_path)
    assert reasons(spark, tmp_path) == ["second"]
    assert sorted(path.name for path in (tmp_path / ".work").iterdir()) == ["lock", "replaced"]


def test_failed_write_keeps_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """A write that fails in a task leaves the table as it was."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    with tables.claim(tmp_path):
        tables.write(quarantined(spark, "first"), QUARANTINE, tmp_path)
        broken = quarantined(spark, "x").withColumn(
            "reason", functions.raise_error("planted").cast("string")
        )
        with pytest.raises(PySparkException, match="planted"):
            tables.write(broken, QUARANTINE, tmp_path)
    assert reasons(spark, tmp_path) == ["first"]


def test_killed_replacement_is_undone(spark: SparkSession, tmp_path: Path) -> None:
    """A run killed between the two renames has lost nothing: the next one puts the table back."""
    with tables.claim(tmp_path):
        tables.write(quarantined(spark, "first"), QUARANTINE, tmp_path)
    (tmp_path / "quarantine").rename(tmp_path / ".work" / "replaced" / "quarantine")
    (tmp_path / ".work" / "half").mkdir()
    with tables.claim(tmp_path):
        assert reasons(spark, tmp_path) == ["first"]
        assert not (tmp_path / ".work" / "half").exists()


def test_runs_share_no_unfinished_work(tmp_path: Path) -> None:
    """Files that Java of a killed run still writes do not mix with the work of the next run."""
    script = "import pathlib, sys; from analytics.tables import scratch; "
    script += "print(scratch(pathlib.Path(sys.argv[1]), 'spans'))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    mine = tables.scratch(tmp_path, "spans")
    assert Path(killed).name == mine.name == "spans"
    assert Path(killed) != mine


def test_output_is_held_by_one_run(tmp_path: Path) -> None:
    """A second process is refused while the first writes."""
    script = "import pathlib, sys; from analytics.tables import claim; "
    script += "claim(pathlib.Path(sys.argv[1])).__enter__()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with tables.claim(tmp_path):
        done = subprocess.run(command, capture_output=True, check=False)
    assert b"another run writes to" in done.stderr


def test_output_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """An output below a plain file is refused in one line."""
    (tmp_path / "file").touch()
    with pytest.raises(tables.TableError, match="choose another output"):
        tables.claim(tmp_path / "file" / "output").__enter__()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: (path / "_SUCCESS").unlink(), "its writer did not finish"),
        (lambda path: (path / "_schema.json").unlink(), "does not name a schema version"),
        (lambda path: (path / "_schema.json").write_text("{}"), "does not name a schema version"),
        (
            lambda path: (path / "_schema.json").write_text('{"schema_version": 2}'),
            "has schema version 2, this program knows 1",
        ),
        (lambda path: path.rename(path.with_name("elsewhere")), "is missing"),
    ],
)
def test_unfit_table_is_refused(
    spark: SparkSession, tmp_path: Path, spoil: Callable[[Path], object], complaint: str
) -> None:
    """A table that is absent, unfinished or of another version is refused with what to do."""
    directory = tmp_path / "quarantine"
    directory.mkdir()
    (directory / "_SUCCESS").touch()
    (directory / "_schema.json").write_text('{"schema_version": 1}')
    tables.check(QUARANTINE, tmp_path)
    spoil(directory)
    with pytest.raises(tables.TableError, match=complaint):
        tables.read(spark, QUARANTINE, tmp_path)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("source STRING, line_number BIGINT, reason STRING", "excerpt is missing"),
        (f"{QUARANTINE.columns}, more INT", "more is unknown"),
        (QUARANTINE.columns.replace("BIGINT", "INT"), "line_number is int and must be bigint"),
    ],
)
def test_unfit_rows_are_refused(spark: SparkSession, columns: str, complaint: str) -> None:
    """Rows with other columns than the table are refused before anything is written."""
    with pytest.raises(tables.TableError, match=complaint):
        tables.conform(spark.createDataFrame([], columns), QUARANTINE)
