"""Bad input gives the right partial answer with a named notice, or a clear error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analytics import __main__ as command
from analytics import job, tables
from analytics.schema import (
    GROWTH,
    QUARANTINE,
    SERVICE_GRAPH,
    SNAPSHOT_SECTIONS,
    SPANS,
    TableSchema,
)
from analytics.session import AnalyticsError
from testkit.generators.history import StateLife, write_history
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.export import export
from viewstamp.snapshots.generation import Generation

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

START_NS = 1_795_132_800_000_000_000
MILLISECOND_NS = 1_000_000


def foreign_line(service: str, *spans: tuple[str, str, int, int]) -> str:
    """Return a line of another system's spans: id, parent's id, start and end in milliseconds."""
    made = [
        {
            "traceId": "a" * 32,
            "spanId": span_id * 16,
            "parentSpanId": parent * 16,
            "name": f"work {span_id}",
            "kind": 2 if parent else 3,
            "startTimeUnixNano": str(START_NS + start_ms * MILLISECOND_NS),
            "endTimeUnixNano": str(START_NS + end_ms * MILLISECOND_NS),
        }
        for span_id, parent, start_ms, end_ms in spans
    ]
    about = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    whole = {"resourceSpans": [{"resource": about, "scopeSpans": [{"spans": made}]}]}
    return json.dumps(whole) + "\n"


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """Return traces of another system with every fault that files of lines can have.

    shop calls stock, whose clock is 20 ms behind; one export was written twice, one line is cut.
    """
    directory = tmp_path / "traces"
    directory.mkdir()
    shop = foreign_line("shop", ("1", "", 100, 160))
    stock = foreign_line("stock", ("2", "1", 80, 110), ("3", "f", 85, 90))
    (directory / "shop.jsonl").write_text(shop + shop)
    (directory / "stock.jsonl").write_text(stock + stock[:99] + "\n")
    (directory / "metrics.jsonl").write_text('{"resourceMetrics":[{"schemaUrl":""}]}\n')
    (directory / "gone.jsonl").symlink_to(directory / "nowhere")
    return directory


def rows(spark: SparkSession, table: TableSchema, output: Path) -> list[Row]:
    """Return the rows of a table."""
    return tables.read(spark, table, output).collect()


def names(outcome: job.AnalysisOutcome) -> set[str]:
    """Return the names of the notices."""
    return {notice.name for notice in outcome.notices}


@pytest.mark.long
def test_spoiled_traces_are_analysed_as_far_as_they_go(
    spark: SparkSession, spoiled: Path, tmp_path: Path
) -> None:
    """Cut lines, foreign spans, skewed clocks, copies, lost files are named; the rest is right."""
    request = job.AnalysisRequest(tmp_path / "out", traces=(spoiled,), check_quality=False)
    outcome = job.run(spark, request, lambda *_: None)
    expected = {"quarantined", "unreadable_file", "other_signals", "duplicates", "orphans"}
    assert names(outcome) == expected | {"clock_skew", "no_viewstamp_attributes"}
    assert sorted(row.name for row in rows(spark, SPANS, request.output)) == [
        "work 1",
        "work 2",
        "work 3",
    ]
    found = {row.reason for row in rows(spark, QUARANTINE, request.output)}
    assert found == {"cut_line", "unreadable_file"}
    calls = [
        (row.parent, row.child, row.calls) for row in rows(spark, SERVICE_GRAPH, request.output)
    ]
    assert calls == [("shop", "stock", 1)]


@pytest.mark.long
def test_data_that_is_too_bad_fails_loudly(
    spark: SparkSession, spoiled: Path, tmp_path: Path
) -> None:
    """With the checks on, the same traces end the run, and the message names each failed check."""
    request = job.AnalysisRequest(tmp_path / "out", traces=(spoiled,))
    with pytest.raises(AnalyticsError, match=r"too bad to analyse: .*starts_before_parent_rate"):
        job.run(spark, request, lambda *_: None)
    assert tables.exists(QUARANTINE, request.output)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory with four generations."""
    directory = tmp_path_factory.mktemp("data")
    write_history(directory, StateLife(generations=4), seed=4)
    return directory


@pytest.mark.long
def test_bad_copy_and_exports(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """A damaged copy is named and not needed; an export adds its generation."""
    kept = tmp_path / "data"
    shutil.copytree(data, kept)
    exported = exported_to(tmp_path / "export", kept, generation=1)
    for copy in sorted((kept / "snapshots").iterdir()):
        next(iter(sorted((copy / "manifests").iterdir()))).unlink()
    for layer in sorted((kept / "snapshots" / "copy-0" / "layers").iterdir()):
        layer.write_bytes(b"rot")
    again = exported_to(tmp_path / "again", data, generation=4)
    request = job.AnalysisRequest(tmp_path / "out", snapshots=kept, exports=(exported, again))

    outcome = job.run(spark, request, lambda *_: None)

    assert names(outcome) == {"snapshot_copy"}
    assert all("another copy was read" in notice.text for notice in outcome.notices)
    sections = rows(spark, SNAPSHOT_SECTIONS, request.output)
    assert {row.generation for row in sections} == {1, 2, 3, 4}
    whole = job.AnalysisRequest(tmp_path / "whole", snapshots=data)
    job.run(spark, whole, lambda *_: None)
    assert entities(sections) == entities(rows(spark, SNAPSHOT_SECTIONS, whole.output))
    assert rows(spark, GROWTH, request.output) == rows(spark, GROWTH, whole.output)


def exported_to(target: Path, data: Path, generation: int) -> Path:
    """Export a generation; return the directory."""
    source = Generation(Copies(copy_directories(data)), generation)
    export(source, target, overwrite=False, progress=lambda _: None)
    return target


def entities(sections: list[Row]) -> dict[tuple[Any, ...], int]:
    """Return how many entities there are of each kind in each generation."""
    return {(row.generation, row.kind): row.entities for row in sections if row.entities}


def unfinished(path: Path) -> None:
    """Delete the mark that an export is whole."""
    (path / "_SUCCESS").unlink()


def unknown_version(path: Path) -> None:
    """Give an export the number of a future version."""
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 99}))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (unfinished, "has no _SUCCESS"),
        (unknown_version, "has schema version 99, this program reads 1"),
        (shutil.rmtree, "has no _SUCCESS, so it is no export"),
    ],
)
def test_unfit_exports_are_refused(
    spark: SparkSession,
    data: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    says: str,
) -> None:
    """An unfinished, unknown or absent export ends the run, and the message says what to do."""
    exported = exported_to(tmp_path / "export", data, generation=4)
    spoil(exported)
    request = job.AnalysisRequest(tmp_path / "out", exports=(exported,))
    with pytest.raises(AnalyticsError, match=says):
        job.run(spark, request, lambda *_: None)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"traces": ("empty",)}, r"no OTLP JSON lines, .*switch sampling on"),
        ({"traces": ("nowhere",)}, "nowhere.*No such file or directory"),
        ({"snapshots": "empty"}, "holds no snapshots: give a replica's data directory"),
        ({"snapshots": "nowhere"}, "holds no snapshots: give a replica's data directory"),
    ],
)
def test_nothing_there_is_an_error(
    spark: SparkSession, tmp_path: Path, what: dict[str, Any], says: str
) -> None:
    """An empty directory, or one that does not exist, ends the run and says what was expected."""
    (tmp_path / "empty").mkdir()
    traces = tuple(tmp_path / name for name in what.get("traces", ()))
    snapshots = tmp_path / what["snapshots"] if "snapshots" in what else None
    request = job.AnalysisRequest(tmp_path / "out", traces=traces, snapshots=snapshots)
    with pytest.raises(AnalyticsError, match=says):
        job.run(spark, request, lambda *_: None)


@pytest.mark.parametrize(
    ("present", "says"),
    [
        (("thesis.txt",), r"holds something else \(thesis\.txt\): choose a new directory"),
        ((".work/lock", "errors/notes.txt"), "errors is no table of this program: move it away"),
    ],
)
def test_output_of_somebody_else_is_left_alone(
    spark: SparkSession, tmp_path: Path, present: tuple[str, ...], says: str
) -> None:
    """The job does not write to a directory with other files, even if these have a table's name."""
    output = tmp_path / "out"
    for name in present:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("mine")
    request = job.AnalysisRequest(output, traces=(tmp_path,))
    with pytest.raises(AnalyticsError, match=says):
        job.run(spark, request, lambda *_: None)
    assert all((output / name).read_text() == "mine" for name in present)


def test_no_java_says_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Java, the exit code is 1 and one line names the package to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    arguments = ["--traces", str(tmp_path), "--output", str(tmp_path / "out")]
    assert command.main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("analyze: Java is missing")
    assert "openjdk-17-jre-headless" in said
    assert "JAVA_HOME" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
