"""Rows added in two steps give the same table as rows added in one step."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from analytics import tables
from analytics.otlp import merge
from analytics.schema import SPANS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def spans(spark: SparkSession, output: Path, *rows: tuple[str, str, str]) -> DataFrame:
    """Return spans of id, service and name; the more their name says, the more attributes."""
    from pyspark.sql import functions as f

    given = spark.createDataFrame(list(rows), "span_id STRING, service STRING, name STRING")
    filled = {"trace_id": f.lit("t"), "date": f.lit(date(2026, 11, 20)), "kind": f.lit("SERVER")}
    filled["status"] = f.lit("OK")
    filled["duration_us"] = f.length("name").cast("double")
    filled["attributes"] = f.map_from_arrays(f.split("name", ""), f.split("name", ""))
    for field in SPANS.struct():
        if field.name not in given.columns:
            column = filled.get(field.name, f.lit(None))
            given = given.withColumn(field.name, column.cast(field.dataType))
    # Spans come from files, because a second reading must give the same spans.
    path = tables.scratch(output, "given")
    given.write.parquet(str(path))
    return spark.read.parquet(str(path))


def found(spark: SparkSession, output: Path) -> list[tuple[str, str, str]]:
    """Return id, service and name of all spans of the table."""
    rows = tables.read(spark, SPANS, output).collect()
    return sorted((row.span_id, row.service, row.name) for row in rows)


def inodes(output: Path, service: str) -> set[int]:
    """Return which files hold the spans of a service."""
    paths = (output / "spans").rglob(f"service={service}/*.parquet")
    return {path.stat().st_ino for path in paths}


@pytest.mark.long
def test_merge_keeps_the_fullest_and_little_else_moves(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are found across batches and partitions; other partitions keep their files."""
    with tables.claim(tmp_path):
        first = spans(spark, tmp_path, ("1", "a", "x"), ("2", "a", "abcd"), ("3", "b/%", "x"))
        merge.merge_spans(first, tmp_path)
        kept = inodes(tmp_path, "b*")
        second = spans(spark, tmp_path, ("1", "c", "abc"), ("2", "a", "ab"), ("4", "b/%", "y"))
        merge.merge_spans(second, tmp_path)
        expected = [("1", "c", "abc"), ("2", "a", "abcd"), ("3", "b/%", "x"), ("4", "b/%", "y")]
        assert found(spark, tmp_path) == expected
        assert len(kept) == 1
        assert kept < inodes(tmp_path, "b*")

        merge.merge_spans(second, tmp_path)
        assert found(spark, tmp_path) == expected

        monkeypatch.setattr(merge, "PARTITION_FILES_MAX", 1)
        merge.merge_spans(spans(spark, tmp_path, ("5", "c", "z")), tmp_path)
        assert found(spark, tmp_path) == [*expected, ("5", "c", "z")]
        assert [len(inodes(tmp_path, name)) for name in ("a", "b*", "c")] == [1, 1, 1]


def test_files_are_copied_where_links_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without hard links costs a copy; any other error is not swallowed."""

    def refuse(number: int) -> None:
        def link(*_: object) -> None:
            raise OSError(number, "planted")

        monkeypatch.setattr("analytics.otlp.merge.os.link", link)

    (tmp_path / "a").write_text("rows")
    refuse(next(iter(merge.NO_LINKS)))
    merge.link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "rows"
    refuse(28)
    with pytest.raises(OSError, match="planted"):
        merge.link(tmp_path / "a", tmp_path / "c")
