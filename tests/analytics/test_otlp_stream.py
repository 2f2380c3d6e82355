"""Tables kept up to date while files grow equal the tables from one reading of all files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

from analytics import tables
from analytics.otlp import stream
from analytics.otlp.ingest import ingest
from analytics.otlp.source import LinesReader
from analytics.schema import QUARANTINE, SPANS
from testkit.generators.spans import SpanLoad, generate
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD = SpanLoad(
    2000, duplicate_line_rate=0.2, cut_line_rate=0.05, spans_per_line=20, rotate_bytes=200_000
)
BATCH_BYTES = 400_000
# Metrics that differ for a stream, because it does not count files.
COUNTED_ELSEWHERE = {"files"}


def contents(spark: SparkSession, output: Path) -> list[list[str]]:
    """Return all rows of `spans` and `quarantine` as sorted JSON."""
    read = (tables.read(spark, table, output) for table in (SPANS, QUARANTINE))
    text = functions.to_json(functions.struct("*")).alias("text")
    return [sorted(row.text for row in rows.select(text).collect()) for rows in read]


def follow(spark: SparkSession, inputs: Path, output: Path) -> None:
    """Run the stream over the present files."""
    with tables.claim(output):
        query = stream.start(spark, [inputs], output, settled_ms=0, batch_bytes=BATCH_BYTES)
        query.awaitTermination()


# `test_killed_stream_goes_on` compares as much.
@pytest.mark.exhaustive
def test_stream_equals_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Many batches over files that grow, rotate or are copied give the same tables as one."""
    generate(tmp_path / "in", LOAD)
    growing = tmp_path / "in" / "telemetry" / "viewstamp-coordinator" / "traces.jsonl"
    whole = growing.read_bytes()
    # The cut is inside a line, and the rest of the line comes later.
    growing.write_bytes(whole[: len(whole) // 2])
    with tables.claim(tmp_path / "out"):
        query = stream.start(spark, [tmp_path / "in"], tmp_path / "out", batch_bytes=BATCH_BYTES)
        query.awaitTermination()
    assert len(list((tmp_path / "out" / ".stream" / "ledger").iterdir())) > 1
    with growing.open("ab") as file:
        file.write(whole[len(whole) // 2 :])
    growing.rename(growing.with_name("traces-20261121T000000Z.jsonl"))
    # All spans of the client come a second time, in a later batch.
    client = tmp_path / "in" / "telemetry" / "viewstamp-client" / "traces.jsonl"
    client.with_name("traces-1.jsonl").write_bytes(client.read_bytes())
    follow(spark, tmp_path / "in", tmp_path / "out")

    with tables.claim(tmp_path / "batch"):
        at_once = ingest(spark, [tmp_path / "in"], tmp_path / "batch")
    assert contents(spark, tmp_path / "out") == contents(spark, tmp_path / "batch")
    with tables.claim(tmp_path / "out"):
        streamed = stream.conclude(spark, tmp_path / "out")
    for name in COUNTED_ELSEWHERE:
        at_once.quality.pop(name)
    assert streamed.quality == at_once.quality
    assert streamed.quality["duplicates"] > 0


def test_offsets_follow_a_file(tmp_path: Path) -> None:
    """Offsets cover whole lines, up to the limit; a renamed file continues at its offset."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    path = tmp_path / "traces.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    reader = LinesReader([tmp_path], 60_000, 4)
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [file["end"] for file in first["files"].values()] == [4]
    second = reader.latestOffset(first, ReadAllAvailable())
    assert [file["end"] for file in second["files"].values()] == [8]
    path.rename(tmp_path / "traces-1.jsonl")
    path.write_bytes(b"new\n")
    (piece,) = reader.partitions(first, second)
    (batch,) = reader.read(piece)
    assert batch.column("text").to_pylist() == ["two\n"]
    assert batch.column("source").to_pylist() == [str(tmp_path / "traces-1.jsonl")]
    third = reader.latestOffset(second, ReadAllAvailable())
    assert sorted(file["end"] for file in third["files"].values()) == [4, 8]


# A run that kills itself at the second call of a function: its module, its name, and whether to die
# before or after the call.
KILLED = """
import os, pathlib, signal, sys
from analytics import session, tables
from analytics.otlp import ingest, merge, stream
module, name, when = sys.argv[3:]
target = {"tables": tables, "merge": merge, "stream": stream}[module]
real, calls = getattr(target, name), []
def planted(*arguments):
    calls.append(name)
    if len(calls) == 2 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = real(*arguments)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
setattr(target, name, planted)
spark = session.build("killed", "local[2]", {"spark.sql.shuffle.partitions": "1"})
inputs, output = map(pathlib.Path, sys.argv[1:3])
with tables.claim(output):
    stream.start(spark, [inputs], output, settled_ms=0, batch_bytes=400_000).awaitTermination()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(("merge", "merge_spans", "before"), marks=pytest.mark.exhaustive),
        pytest.param(("merge", "_link_others", "after"), marks=pytest.mark.exhaustive),
        pytest.param(("merge", "merge_spans", "after"), marks=pytest.mark.exhaustive),
        pytest.param(("merge", "merge_quarantine", "after"), marks=pytest.mark.exhaustive),
        ("stream", "_enter", "after"),
    ],
    ids="-".join,
)
def test_killed_stream_goes_on(
    spark: SparkSession, tmp_path: Path, place: tuple[str, str, str]
) -> None:
    """A stream killed anywhere in a batch and started again gives the tables of one reading."""
    generate(tmp_path / "in", LOAD)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "in"), str(tmp_path / "out"), *place]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    follow(spark, tmp_path / "in", tmp_path / "out")
    with tables.claim(tmp_path / "out"):
        streamed = stream.conclude(spark, tmp_path / "out")
    with tables.claim(tmp_path / "batch"):
        at_once = ingest(spark, [tmp_path / "in"], tmp_path / "batch")
    assert contents(spark, tmp_path / "out") == contents(spark, tmp_path / "batch")
    for name in COUNTED_ELSEWHERE:
        at_once.quality.pop(name)
    assert streamed.quality == at_once.quality
