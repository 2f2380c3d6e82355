"""All that is written in any form is counted: as a span, a duplicate, quarantine, or skipped."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analytics import tables
from analytics.otlp import quality
from analytics.otlp.ingest import Ingested, ingest
from analytics.schema import QUARANTINE, SPANS
from tests.analytics import otlp_forms
from tests.analytics.otlp_forms import Document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = {"startTimeUnixNano": "1700000000000001000", "endTimeUnixNano": "1700000000000002000"}
# The longest name of a folder, and of a file.
SERVICE_CHARACTERS_MAX = 240
# A name that no folder can have: the name of a file has 255 bytes at most.
LONG_SERVICE = "s" * 5000


def document_of(*ids: int, service: str = "a", **fields: Any) -> Document:
    """Return a document of spans with these ids."""
    about = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    spans = [
        {"traceId": f"{one:032x}", "spanId": f"{one:016x}", "name": "call", **TIMES, **fields}
        for one in ids
    ]
    return {"resourceSpans": [{"resource": about, "scopeSpans": [{"spans": spans}]}]}


def write_all(folder: Path) -> int:
    """Write files of every form, and everything that goes wrong; return the number of spans."""
    for number, (name, form) in enumerate(otlp_forms.FORMS.items()):
        first = 100 * (number + 1)
        made = [document_of(first, first + 1), document_of(first + 2)]
        (folder / name).write_bytes(form(made))
    bad = [
        document_of(1, service=LONG_SERVICE),
        document_of(2, startTimeUnixNano="1000", endTimeUnixNano="2000"),
        document_of(3, endTimeUnixNano="9000000000000000000"),
        document_of(100),
        {
            "resourceSpans": document_of(4)["resourceSpans"]
            + document_of(5, flags="x")["resourceSpans"]
        },
        document_of(6) | {"resourceLogs": []},
    ]
    (folder / "bad.log").write_bytes(otlp_forms.lines(bad) + b'\n\n{"resourceMetrics":[]}\n{"cut":')
    (folder / "cut").write_bytes(otlp_forms.fixed(otlp_forms.protobuf(document_of(7))) + b"\0\0")
    (folder / "notes.txt").write_text("no telemetry")
    (folder / "empty.json").touch()
    os.mkfifo(folder / "pipe")
    return 3 * len(otlp_forms.FORMS) + len(bad) + 2


@pytest.mark.long
def test_spans_of_every_form_are_in_the_balance(spark: SparkSession, tmp_path: Path) -> None:
    """Spans written are spans, duplicates and quarantine, and each file is read or skipped."""
    (tmp_path / "in").mkdir()
    written = write_all(tmp_path / "in")
    with tables.claim(tmp_path / "out"):
        found: Ingested = ingest(spark, [tmp_path / "in"], tmp_path / "out")
    values = found.quality
    rows = tables.read(spark, QUARANTINE, tmp_path / "out").collect()
    assert Counter(row.reason for row in rows) == {
        "out_of_range": 2, "mistyped_span": 1, "beside_spans": 1, "cut_line": 1, "cut_message": 1,
        "skipped_file": 3,
    }  # fmt: skip
    lost = values["quarantined_out_of_range"] + values["quarantined_mistyped_span"]
    assert written == values["spans"] + values["duplicates"] + lost
    assert (values["duplicates"], values["spans_read"]) == (1, values["spans"] + 1)
    assert (values["lines_blank"], values["lines_metrics"]) == (1, 1)
    assert values["files"] + values["files_skipped"] == len(list((tmp_path / "in").iterdir()))
    assert values["quarantined"] == len(rows) - values["files_skipped"]
    spans = tables.read(spark, SPANS, tmp_path / "out").collect()
    assert len({row.span_id for row in spans}) == len(spans) == values["spans"]
    names = {notice.name for notice in found.notices}
    assert {"skipped_file", "out_of_range", "quarantined"} <= names
    services = {row.service for row in spans}
    assert len(services) == 2 and max(map(len, services)) < SERVICE_CHARACTERS_MAX
    assert set(quality.REASONS) >= {row.reason for row in rows} - {"skipped_file"}
