"""Workers write the same files that Spark would write, and only finished files stay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pytest

from analytics.otlp import columnar, ingest, staging
from analytics.schema import SPANS
from tests.analytics.test_otlp_columnar import USUAL, batch_of
from tests.analytics.test_otlp_rows import SPAN, line_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD_NAMES = [
    *(f"x{chr(one)}" for one in range(1, 0x80)),
    "a/b",
    "k=v%3D",
    "häufig ☃",
    "two words",
    " ",
    "__x",
]
DAY_NS = 86_400 * 10**9


def staged(place: Path, batches: list[pa.RecordBatch]) -> dict[str, object]:
    """Write rows of lines and finish; return the results of the tasks."""
    rows = columnar.rows(ingest.span_schema()[0], None, batches)
    (told,) = (row for batch in staging.write(place, rows) for row in batch.to_pylist())
    staging.finish(place, told["files"])
    return dict(told)


def of_services(services: list[str], days: int = 1) -> list[pa.RecordBatch]:
    """Return lines of a span for each day and service, each a batch of its own."""
    texts = []
    for number, service in enumerate(services):
        for day in range(days):
            begin = str(int(SPAN["startTimeUnixNano"]) + day * DAY_NS)
            times = {"startTimeUnixNano": begin, "endTimeUnixNano": begin}
            span = {**SPAN, **times, "name": f"{number} {day}", "spanId": f"{number + 1:016x}"}
            texts.append(line_of(span, **{"service.name": service}))
    return [one for text in texts for one in batch_of([text])]


def test_folders_are_named_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    """Services of any name are in the folders that Spark would use for them."""
    schema, columns = ingest.span_schema()
    batches = of_services(ODD_NAMES)
    told = staged(tmp_path / "ours", batches)
    made = pa.Table.from_batches(list(columnar.rows(schema, None, batches)), schema)
    frame = spark.createDataFrame(made, columns).drop(columnar.IS_FIRST)
    frame.write.partitionBy(*SPANS.partition_by).parquet(str(tmp_path / "theirs"))
    ours, theirs = (
        {
            str(path.parent.relative_to(tmp_path / name))
            for path in (tmp_path / name).rglob("*.parq*")
        }
        for name in ("ours", "theirs")
    )
    assert ours == theirs
    assert len(ours) == len(ODD_NAMES)
    assert told["spans_read"] == len(ODD_NAMES)
    read = spark.read.schema(SPANS.struct()).parquet(str(tmp_path / "ours")).collect()
    assert {(row.service, row.name) for row in read} == {
        (one, f"{n} 0") for n, one in enumerate(ODD_NAMES)
    }
    assert unquote(staging.escaped("\x00a")) == "\x00a" != staging.escaped("\x00a")


def test_rows_are_read_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads the maps, events, links and nulls of every usual span back from the files."""
    schema, columns = ingest.span_schema()
    names = {"service.name": "shop", "service.instance.id": "i"}
    batches = batch_of([line_of({**SPAN, **written}, **names) for written in USUAL])
    staged(tmp_path / "place", batches)
    made = pa.Table.from_batches(list(columnar.rows(schema, None, batches)), schema)
    expected = spark.createDataFrame(made, columns).drop(columnar.IS_FIRST).collect()
    read = spark.read.schema(SPANS.struct()).parquet(str(tmp_path / "place"))
    found = read.select(*SPANS.column_names()).collect()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert len(found) == len(USUAL)


@pytest.mark.parametrize("pending_bytes", [1, 10_000, staging.PENDING_BYTES_MAX])
def test_many_folders_keep_few_files_open(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pending_bytes: int
) -> None:
    """However few files and rows may wait, each row is written once and each file is reported."""
    monkeypatch.setattr(staging, "PENDING_BYTES_MAX", pending_bytes)
    monkeypatch.setattr(staging, "FILES_MAX", 3)
    services = [f"s{number}" for number in range(4)]
    told = staged(tmp_path / "place", of_services(services, 3) * 2)
    files = {str(path.relative_to(tmp_path / "place")) for path in tmp_path.rglob("*.parquet")}
    assert isinstance(told["files"], list)
    assert sorted(told["files"]) == sorted(files)
    read = spark.read.schema(SPANS.struct()).parquet(str(tmp_path / "place")).collect()
    expected = [f"{number} {day}" for number in range(4) for day in range(3)] * 2
    assert sorted(row.name for row in read) == sorted(expected)
    assert all(row.service == f"s{row.name.split()[0]}" for row in read)


def test_failed_attempts_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The files of a failed attempt do not stay beside the files of the next attempt."""
    place = tmp_path / "place"
    batches = of_services([f"s{number}" for number in range(2 * staging.FILES_MAX)])
    schema = ingest.span_schema()[0]

    def failing() -> Iterator[pa.RecordBatch]:
        yield from columnar.rows(schema, None, batches)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(staging.write(place, failing()))
    assert any(staging.unfinished(place).rglob("*.parquet"))
    assert not any(place.rglob("*.parquet"))
    staged(place, batches[:5])
    assert len(list(place.rglob("*.parquet"))) == 5
    assert not staging.unfinished(place).exists()
    assert spark.read.schema(SPANS.struct()).parquet(str(place)).count() == 5


def test_lines_spans_and_odd_lines_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """A line counts once however many spans it has; an odd one is kept apart, with its text."""
    many = json.loads(line_of(SPAN))
    many["resourceSpans"][0]["scopeSpans"][0]["spans"] = [SPAN] * 3
    odd = line_of({**SPAN, "name": 5})
    told = staged(tmp_path / "place", batch_of([json.dumps(many), odd, line_of(SPAN), "rubbish"]))
    assert [told[name] for name in staging.COUNTS] == [2, 4, 2]
    rows = spark.read.schema(SPANS.struct()).parquet(str(tmp_path / "place")).where("date IS NULL")
    found = {getattr(row, columnar.PACKED_ODD["text"]) for row in rows.collect()}
    assert found == {f"{odd}\n", "rubbish\n"}


@pytest.mark.parametrize(
    ("left_out", "kept"),
    [([], range(8)), ([0, 3, 4, 7], [1, 2, 5, 6]), ([3, 4, 5], [0, 1, 2, 6, 7]), (range(8), [])],
)
@pytest.mark.parametrize("writer", ["ours", "spark"])
def test_files_are_written_again_without_some_rows(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
    left_out: Iterable[int],
    kept: Iterable[int],
) -> None:
    """Rewriting a file of any writer keeps the remaining rows unchanged, in their folder."""
    monkeypatch.setattr(staging, "ROWS_PER_BATCH", 3)
    place, target = tmp_path / "place", tmp_path / "target"
    schema, columns = ingest.span_schema()
    batches = batch_of([line_of({**SPAN, **USUAL[n], "name": str(n)}) for n in range(10, 18)])
    if writer == "ours":
        staged(place, batches)
    else:
        made = pa.Table.from_batches(list(columnar.rows(schema, None, batches)), schema)
        frame = spark.createDataFrame(made, columns).drop(columnar.IS_FIRST).coalesce(1)
        frame.write.partitionBy(*SPANS.partition_by).parquet(str(place))
    (path,) = place.rglob("*.parquet")
    asked = pa.RecordBatch.from_pydict({"path": [path.as_uri()], "rows": [list(left_out)]})
    (told,) = (row for one in staging.rewrite(place, target, [asked]) for row in one.to_pylist())
    staging.finish(target, told["files"])
    assert staging.local(told["path"]) == path
    assert len(told["files"]) == (1 if kept else 0)
    rows, again = (
        {row.name: row for row in spark.read.schema(SPANS.struct()).parquet(str(one)).collect()}
        for one in (place, target)
    )
    assert again == {str(10 + number): rows[str(10 + number)] for number in kept}
