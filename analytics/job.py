"""The whole analysis: telemetry and snapshots in, tables and a page out.

    spans -> trace tables        snapshots -> snapshot tables        all tables -> report

The analysis reports and leaves out what is missing: it works on traces without snapshots, and on
snapshots without traces. The steps are a table, so that progress, order and failure are the same
for each.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import sizing, tables
from analytics.otlp import ingest, quality
from analytics.schema import DATA_QUALITY, QUARANTINE, SPANS, TABLES
from analytics.session import AnalyticsError
from viewstamp.telemetry import program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from analytics.traces import Period


# The name of the notice that the reader passed over a copy of a snapshot file.
SNAPSHOT_COPY: Final = "snapshot_copy"
# How many tables are written at the same time.
WRITERS: Final = 4


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """What to analyse, and where to write the result.

    `traces` are files and directories of OTLP JSON lines. `snapshots` is a data directory, its
    snapshots, or a download; `exports` are directories of `viewstamp snapshot export`. `since_us`
    leaves older spans out; `compare` is (before, after); `picture` is the PNG file of the report.
    """

    output: Path
    traces: tuple[Path, ...] = ()
    snapshots: Path | None = None
    exports: tuple[Path, ...] = ()
    since_us: int | None = None
    compare: tuple[Period, Period] | None = None
    report: Path | None = None
    picture: Path | None = None
    check_quality: bool = True


@dataclass(slots=True)
class AnalysisOutcome:
    """The tables written, the seconds of each step, and warnings for the reader."""

    written: dict[str, Path] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notices: list[ingest.Notice] = field(default_factory=list)
    quality: dict[str, float] = field(default_factory=dict)
    report: Path | None = None


# Called with each step's name when it begins, and with its duration when it ends.
Progress = Callable[[str, float | None], None]


# Makes `spans`, and measures their quality.
Reader = Callable[["SparkSession", AnalysisRequest], ingest.Ingested]


def run(spark: SparkSession, request: AnalysisRequest, progress: Progress) -> AnalysisOutcome:
    """Do all that the request asks for. Raises AnalyticsError, which says what to do."""
    check(request)
    sizing.fit(spark, sizing.input_bytes(request.traces, request.snapshots))
    with tables.claim(request.output):
        return analyse(spark, request, progress, read_all)


def analyse(
    spark: SparkSession, request: AnalysisRequest, progress: Progress, reader: Reader
) -> AnalysisOutcome:
    """Do all steps; `reader` does the first. The caller holds `tables.claim` on the output."""
    outcome = AnalysisOutcome()
    for name, step, is_wanted in STEPS:
        if not is_wanted(request):
            continue
        progress(name, None)
        begun = time.monotonic()
        with program.part(name):
            step(spark, request, outcome, reader)
        outcome.seconds[name] = time.monotonic() - begun
        progress(name, outcome.seconds[name])
    return outcome


def read_all(spark: SparkSession, request: AnalysisRequest) -> ingest.Ingested:
    """Read all traces anew."""
    from analytics.otlp import stream

    stream.forget(request.output)
    return ingest.ingest(spark, request.traces, request.output, request.since_us)


def check(request: AnalysisRequest) -> None:
    """Raise AnalyticsError for a request that cannot be done, before anything is started."""
    if not (request.traces or _has_snapshots(request)):
        raise AnalyticsError(
            "there is nothing to analyse: name directories of traces, of snapshots, or both"
        )
    if request.picture is not None and request.report is None:
        raise AnalyticsError("a picture is taken of the report: let it be written too")
    if request.compare is not None and not request.traces:
        raise AnalyticsError("two periods can be compared of traces alone: name their directories")


def _read_traces(
    spark: SparkSession, request: AnalysisRequest, outcome: AnalysisOutcome, reader: Reader
) -> None:
    found = reader(spark, request)
    for table in (SPANS, QUARANTINE, DATA_QUALITY):
        outcome.written[table.name] = request.output / table.name
    outcome.notices += found.notices
    outcome.quality |= found.quality
    if request.check_quality:
        quality.enforce(found.quality)


def _analyse_traces(
    spark: SparkSession, request: AnalysisRequest, outcome: AnalysisOutcome, _: Reader
) -> None:
    from analytics import traces

    spans = tables.read(spark, SPANS, request.output)
    with traces.tables(spans, compare=request.compare) as frames:
        measured = frames.pop(DATA_QUALITY.name)
        _write(frames, request, outcome)
        # The quality rows from the traces join those from reading: a few dozen rows.
        outcome.quality |= {row.metric: row.value for row in measured.collect()}
    tables.write_rows(spark, sorted(outcome.quality.items()), DATA_QUALITY, request.output)


def _analyse_snapshots(
    spark: SparkSession, request: AnalysisRequest, outcome: AnalysisOutcome, _: Reader
) -> None:
    from analytics import snapshots
    from analytics.snapshots.errors import SnapshotCopyWarning

    spans = tables.read(spark, SPANS, request.output) if request.traces else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SnapshotCopyWarning)
        with snapshots.tables(spark, request.snapshots, spans, request.exports) as frames:
            _write(frames, request, outcome)
    # Each view of the snapshots opened the same copies and warned of them again.
    told = dict.fromkeys(
        str(one.message) for one in caught if issubclass(one.category, SnapshotCopyWarning)
    )
    outcome.notices += [ingest.Notice(SNAPSHOT_COPY, text) for text in told]


def _has_snapshots(request: AnalysisRequest) -> bool:
    return request.snapshots is not None or bool(request.exports)


def _write_report(
    _: SparkSession, request: AnalysisRequest, outcome: AnalysisOutcome, __: Reader
) -> None:
    from analytics import report

    assert request.report is not None
    outcome.report = report.write(request.output, request.report)


def _take_picture(
    _: SparkSession, request: AnalysisRequest, outcome: AnalysisOutcome, __: Reader
) -> None:
    from analytics.report import image

    assert request.picture is not None
    assert outcome.report is not None
    image.write(outcome.report, request.picture)


def _write(
    frames: dict[str, DataFrame], request: AnalysisRequest, outcome: AnalysisOutcome
) -> None:
    """Write several tables at once, because Spark's plan of most takes longer than the rows."""
    with ThreadPoolExecutor(WRITERS, "write") as pool:
        writing = {
            name: pool.submit(tables.write, frame, TABLES[name], request.output)
            for name, frame in frames.items()
        }
        try:
            outcome.written |= {name: future.result() for name, future in writing.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


STEPS: Final[
    Sequence[
        tuple[
            str,
            Callable[[SparkSession, AnalysisRequest, AnalysisOutcome, Reader], None],
            Callable[[AnalysisRequest], bool],
        ]
    ]
] = (
    ("reading traces", _read_traces, lambda request: bool(request.traces)),
    ("analysing traces", _analyse_traces, lambda request: bool(request.traces)),
    ("analysing snapshots", _analyse_snapshots, _has_snapshots),
    ("writing the report", _write_report, lambda request: request.report is not None),
    ("taking its picture", _take_picture, lambda request: request.picture is not None),
)
