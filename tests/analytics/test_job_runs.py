"""The whole analysis: arguments, refusals, and one run from files to tables and page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import StatusCode

from analytics import __main__ as command
from analytics import job, tables
from analytics.schema import DATA_QUALITY, RPC_RED, SPANS
from analytics.session import AnalyticsError
from testkit.generators import spans
from tests.viewstamp.telemetry.spans_for_tests import SdkSpans
from viewstamp.telemetry import work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-01-31T12:00", 1769860800), ("2026-01-31T13:00+01:00", 1769860800)],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, seconds: int) -> None:
    """A time without a zone is UTC, like everything in the tables."""
    assert command.time_us(text) == seconds * 1_000_000


def test_steps_are_parts_of_a_traced_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of an analysis is a span, and the one that fails is an error."""
    kept = SdkSpans()
    monkeypatch.setattr(work, "tracer", kept.tracer)

    def fail(*_: object) -> None:
        raise AnalyticsError("secret")

    steps: list[Any] = [
        ("reading", lambda *_: None, lambda _: True),
        ("left out", fail, lambda _: False),
        ("writing", fail, lambda _: True),
    ]
    monkeypatch.setattr(job, "STEPS", steps)
    with pytest.raises(AnalyticsError):
        job.analyse(Any, job.AnalysisRequest(tmp_path), lambda *_: None, job.read_all)  # type: ignore[arg-type]
    told = [(span.name, span.status.status_code) for span in kept.spans]
    assert told == [("reading", StatusCode.UNSET), ("writing", StatusCode.ERROR)]


def test_ago_counts_from_now() -> None:
    """`2h` is two hours before now."""
    before = datetime.now(UTC).timestamp() - 7200
    assert before <= command.time_us("2h") / 1_000_000 <= datetime.now(UTC).timestamp() - 7199


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--since", "yesterday"], "is no time: write 15m"),
        (["--compare", "2026-01-01", "2026-01-02"], "write two periods as FROM/TO"),
        (["--png", "page.png", "--no-report", "--traces", "x"], "a picture is taken of the report"),
        (["--compare", "2026-01-02/2026-01-01", "2026-01-02/2026-01-03"], "is empty: end it later"),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One line names the argument and what would be right; Spark is not started for it."""
    assert command.main([*arguments, "--output", str(tmp_path)]) == 1
    assert says in capsys.readouterr().err


def test_nothing_to_analyse_is_an_error(tmp_path: Path) -> None:
    """A run without traces and snapshots is an error that says what to name."""
    nothing: SparkSession = None  # type: ignore[assignment]  # it is not asked for
    with pytest.raises(AnalyticsError, match="name directories of traces, of snapshots, or both"):
        job.run(nothing, job.AnalysisRequest(output=tmp_path), lambda *_: None)


@pytest.mark.long
def test_traces_become_tables_and_a_page(spark: SparkSession, tmp_path: Path) -> None:
    """A run writes every table of traces, page and picture, and reports the time of each step."""
    made = spans.generate(tmp_path / "traces", spans.SpanLoad(spans=2_000, seed=3))
    steps: list[str] = []
    request = job.AnalysisRequest(
        output=tmp_path / "out",
        traces=(tmp_path / "traces",),
        report=tmp_path / "page.html",
        picture=tmp_path / "page.png",
    )

    outcome = job.run(spark, request, lambda step, seconds: steps.append(step))

    assert tables.read(spark, SPANS, request.output).count() == made.spans
    assert tables.read(spark, RPC_RED, request.output).count() > 0
    quality = {
        row.metric: row.value for row in tables.read(spark, DATA_QUALITY, request.output).collect()
    }
    assert quality["spans"] == made.spans
    assert 0 < quality["trace_count"] < quality["trace_spans"] == made.spans
    assert outcome.report == tmp_path / "page.html"
    assert "CreateTopic" in outcome.report.read_text()
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert steps == [step for name in outcome.seconds for step in (name, name)]
