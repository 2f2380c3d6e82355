"""Directories of lines become tables even if some lines are bad; too bad data is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from analytics import tables
from analytics.otlp import files, quality
from analytics.otlp.ingest import Ingested, ingest
from analytics.schema import DATA_QUALITY, QUARANTINE, SPANS
from testkit.generators.spans import SpanLoad, generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD = SpanLoad(
    3000, duplicate_line_rate=0.1, cut_line_rate=0.05, foreign_rate=0.1, error_rate=0.05,
    spans_per_line=20, skew_us=-2000,
)  # fmt: skip
TIMES = {"startTimeUnixNano": "1700000000000001000", "endTimeUnixNano": "1700000000000002000"}


def run(spark: SparkSession, inputs: list[Path], output: Path) -> Ingested:
    """Ingest and return what was found."""
    with tables.claim(output):
        return ingest(spark, inputs, output)


def write_spans(path: Path, *spans: dict[str, Any], service: str | None = "a") -> None:
    """Append one line for each span."""
    about = [] if service is None else [{"key": "service.name", "value": {"stringValue": service}}]
    with path.open("a") as file:
        for span in spans:
            scoped = [{"spans": [{"traceId": "ab" * 16, **TIMES, **span}]}]
            resource = {"resource": {"attributes": about}, "scopeSpans": scoped}
            file.write(json.dumps({"resourceSpans": [resource]}) + "\n")


@pytest.mark.long
def test_tables_are_what_plain_python_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Spans, quarantine and counts agree with a reader in plain Python."""
    done = generate(tmp_path / "in", LOAD)
    users = tmp_path / "in" / "telemetry" / "viewstamp-users"
    text = (users / "traces.jsonl").read_bytes()
    (users / "traces.jsonl").rename(users / "traces.jsonl.zst")
    (users / "traces.jsonl.zst").write_bytes(zstandard.compress(text))
    (users / "metrics.jsonl").write_text('{"resourceMetrics":[{}]}\n\n')

    found = run(spark, [tmp_path / "in"], tmp_path / "out")

    expected, bad = {}, []
    for path in sorted((tmp_path / "in").rglob("traces*")):
        data = (
            zstandard.decompress(path.read_bytes()) if path.suffix == ".zst" else path.read_bytes()
        )
        for number, line in enumerate(data.decode().splitlines(), start=1):
            try:
                (resource,) = json.loads(line)["resourceSpans"]
            except ValueError:
                bad.append((str(path), number, "cut_line" if line[0] == "{" else "not_json"))
                continue
            about = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
            service = about["service.name"]["stringValue"]
            for span in resource["scopeSpans"][0]["spans"]:
                expected[span["traceId"], span["spanId"]] = (service, span["name"])
    rows = tables.read(spark, SPANS, tmp_path / "out").collect()
    assert len(rows) == len(expected) == done.spans - done.spans_cut
    assert {(r.trace_id, r.span_id): (r.service, r.name) for r in rows} == expected
    reasons = tables.read(spark, QUARANTINE, tmp_path / "out").collect()
    assert sorted((r.source, r.line_number, r.reason) for r in reasons) == sorted(bad)
    assert found.quality["lines"] == done.lines + 2
    assert (found.quality["lines_metrics"], found.quality["lines_blank"]) == (1, 1)
    assert found.quality["duplicates"] == done.spans_repeated
    assert found.quality["quarantined"] == done.lines_cut > 0
    assert found.quality["starts_before_parent"] > 0
    names = {notice.name for notice in found.notices}
    assert {"quarantined", "duplicates", "orphans", "clock_skew", "other_signals"} <= names
    written = tables.read(spark, DATA_QUALITY, tmp_path / "out").collect()
    assert {row.metric: row.value for row in written} == found.quality


def test_fullest_copy_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """The fullest of three copies of a span, in two files, becomes the row."""
    spans: list[dict[str, Any]] = [
        {"spanId": "01" * 8, "name": "poor"},
        {"spanId": "01" * 8, "name": "rich", "kind": 2, "attributes": [{"key": "a"}]},
        {"spanId": "01" * 8, "name": "fair", "kind": 2},
    ]
    write_spans(tmp_path / "a.jsonl", *spans[:2])
    write_spans(tmp_path / "b.jsonl", *spans[2:], {"spanId": "02" * 8, "name": "single"})
    found = run(spark, [tmp_path], tmp_path / "out")
    rows = tables.read(spark, SPANS, tmp_path / "out").collect()
    assert sorted(row.name for row in rows) == ["rich", "single"]
    assert (found.quality["duplicates"], found.quality["spans_read"]) == (2, 4)


def test_quality_is_counted_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    """Orphans, skew, negative durations and nameless services of a small case are counted right."""
    early = {"startTimeUnixNano": "1700000000000000000"}
    parent = {"parentSpanId": "01" * 8}
    write_spans(
        tmp_path / "a.jsonl",
        {"spanId": "01" * 8},
        {"spanId": "02" * 8, **parent},
        {"spanId": "03" * 8, **parent, **early},
        {"spanId": "04" * 8, "parentSpanId": "99" * 8, "endTimeUnixNano": "1600000000000000000"},
    )
    write_spans(
        tmp_path / "a.jsonl",
        {"spanId": "05" * 8, **parent, "endTimeUnixNano": "1700000000000009000"},
        service=None,
    )
    values = run(spark, [tmp_path], tmp_path / "out").quality
    expected = {
        "spans": 5, "spans_with_parent": 4, "orphans": 1, "orphan_rate": 0.25,
        "starts_before_parent": 1, "ends_after_parent": 1, "child_outside_parent": 2,
        "clock_skew_max_us": 1, "negative_durations": 1, "without_service": 1,
        "spans_of_viewstamp": 0, "duplicates": 0, "quarantined": 0, "lines": 5, "files": 1,
    }  # fmt: skip
    assert {name: values[name] for name in expected} == expected
    with pytest.raises(
        quality.QualityError, match=r"negative_duration_rate is 0.200.*mend the clock"
    ):
        quality.enforce(values)


GOOD = dict.fromkeys(quality.THRESHOLDS, 0.0) | {"spans": 1.0, "lines": 1.0}


@pytest.mark.parametrize("name", quality.THRESHOLDS)
def test_each_threshold_can_fail(name: str) -> None:
    """A rate at its threshold passes; above it the run fails, and the message says what to do."""
    threshold = quality.THRESHOLDS[name]
    quality.enforce(GOOD | {name: threshold.most})
    with pytest.raises(quality.QualityError, match=name) as caught:
        quality.enforce(GOOD | {name: threshold.most + 0.001})
    assert threshold.remedy in str(caught.value)


def test_unreadable_file_spoils_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """A file that cannot be opened and one that breaks off do not affect the other files.

    The files come from another system: a notice says what stays empty without our attributes.
    """
    write_spans(tmp_path / "good.jsonl", {"spanId": "01" * 8})
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "broken.jsonl.zst").write_bytes(zstandard.compress(b"x" * 1000)[:-3])
    found = run(spark, [tmp_path], tmp_path / "out")
    rows = tables.read(spark, QUARANTINE, tmp_path / "out").collect()
    assert sorted((Path(row.source).name, row.line_number, row.reason) for row in rows) == [
        ("broken.jsonl.zst", 0, "unreadable_file"),
        ("gone.jsonl", 0, "unreadable_file"),
    ]
    assert (found.quality["spans"], found.quality["lines"]) == (1, 1)
    names = [notice.name for notice in found.notices]
    assert names == ["unreadable_file", "quarantined", "no_viewstamp_attributes"]


def test_only_rubbish_is_an_error_with_tables(spark: SparkSession, tmp_path: Path) -> None:
    """If no line is a trace, the tables are written and the check fails."""
    (tmp_path / "a.jsonl").write_text("rubbish\n")
    found = run(spark, [tmp_path], tmp_path / "out")
    assert tables.read(spark, QUARANTINE, tmp_path / "out").count() == 1
    assert tables.read(spark, SPANS, tmp_path / "out").count() == 0
    with pytest.raises(quality.QualityError, match="no span could be read from 1 lines"):
        quality.enforce(found.quality)
    with pytest.raises(files.NoInputError):
        run(spark, [tmp_path / "out"], tmp_path / "out")
