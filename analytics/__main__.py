"""The analysis from the command line, and the entry point of spark-submit.

    python -m analytics --traces DIR --snapshots DIR --output DIR
    python -m analytics --traces DIR --output DIR --follow
    spark-submit --master spark://host:7077 analytics/__main__.py --traces DIR --output DIR

Exit codes: 0 done; 1 the data is missing or too bad, and the message says what to do; 2 wrong
arguments; 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from analytics.job import AnalysisOutcome, AnalysisRequest

if not __package__:
    # spark-submit starts this as a file and puts the file's folder first on the module path.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

APPLICATION: Final = "viewstamp-analytics"
REPORT_FILE: Final = "report.html"
EVERY_S_DEFAULT: Final = 10
REFRESH_S_DEFAULT: Final = 60
# The exit code that a shell reports for a program that SIGINT ended.
EXIT_INTERRUPTED: Final = 130
_AGO: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def main(arguments: list[str] | None = None) -> int:
    """Analyse, and return the exit code."""
    from analytics.session import AnalyticsError
    from viewstamp.telemetry.program import traced_program

    options = _parser().parse_args(arguments)
    try:
        with traced_program(APPLICATION, "analyze"):
            _do(options)
    except AnalyticsError as error:
        print(f"analyze: {error}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1
    except KeyboardInterrupt:
        print("analyze: interrupted; tables written before are whole", file=sys.stderr)  # noqa: T201
        return EXIT_INTERRUPTED
    return 0


def _do(options: argparse.Namespace) -> None:
    from analytics.session import check_java

    if options.check:
        check_java()
    elif options.follow:
        _follow(_request(options), options)
    else:
        _run(_request(options), options)


def _run(request: AnalysisRequest, options: argparse.Namespace) -> None:
    """Analyse the present data once."""
    from analytics import job, session, sizing

    job.check(request)
    size_bytes = sizing.input_bytes(request.traces, request.snapshots)
    is_brief = size_bytes < sizing.BRIEF_BYTES
    spark = session.build(APPLICATION, options.master, is_brief=is_brief, heap_mb=options.heap_mb)
    try:
        outcome = job.run(spark, request, _tell)
    finally:
        session.end(spark)
    _tell_outcome(request.output, outcome, as_json=options.json)


def _follow(request: AnalysisRequest, options: argparse.Namespace) -> None:
    """Analyse again and again, until a signal says to stop."""
    from analytics import follow, job, session

    job.check(request)
    follow.check(request)
    pace = follow.FollowPace(options.every_seconds, options.refresh_seconds)
    told = functools.partial(_tell_outcome, request.output, as_json=options.json)
    spark = session.build(APPLICATION, options.master, heap_mb=options.heap_mb)
    try:
        # Install the handlers after the session starts, because it installs a handler of its own.
        with follow.stopped_by_signals() as stopping:
            follow.follow(spark, request, pace, _tell, told, stopping)
    finally:
        session.end(spark)


def _tell_outcome(directory: Path, outcome: AnalysisOutcome, *, as_json: bool) -> None:
    for notice in outcome.notices:
        print(f"note: {notice.name}: {notice.text}", file=sys.stderr)  # noqa: T201
    _print(outcome, directory, as_json=as_json)
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="viewstamp analyze",
        description="Turns telemetry and snapshots into tables and a report, with Spark.",
    )
    add = parser.add_argument
    add(
        "--traces",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="a directory or file of OTLP JSON lines from any source; may be repeated",
    )
    add(
        "--snapshots",
        type=Path,
        metavar="DIRECTORY",
        help="a data directory, a copy directory or a download",
    )
    add(
        "--exports",
        action="append",
        type=Path,
        default=[],
        metavar="DIRECTORY",
        help="an export of a snapshot, whose generation may be deleted; may be repeated",
    )
    goal = parser.add_mutually_exclusive_group(required=True).add_argument
    goal("--output", type=Path, help="directory for the tables and the report")
    goal("--check", action="store_true", help="only say whether Spark can run here")
    add("--since", metavar="TIME", help="ignore older spans: 15m, 2h, 7d, or 2026-01-31T12:00")
    add(
        "--compare",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="compare two periods, each FROM/TO",
    )
    add("--report", type=Path, help=f"default: {REPORT_FILE} in the output")
    add("--png", type=Path, help="write the report as a picture, too; needs chromium")
    add("--no-report", action="store_true", help="write only the tables")
    add(
        "--accept-bad-data",
        action="store_true",
        help="analyse the data even if it fails the quality checks; the report shows what failed",
    )
    add(
        "--follow",
        action="store_true",
        help="read new traces and refresh the analysis until a signal ends the process",
    )
    add(
        "--every-seconds",
        type=_positive,
        default=EVERY_S_DEFAULT,
        help="with --follow: how often to look for new lines; default: %(default)s",
    )
    add(
        "--refresh-seconds",
        type=_positive,
        default=REFRESH_S_DEFAULT,
        help="with --follow: time between two analyses; default: %(default)s",
    )
    add("--master", help="Spark's address; default: that of spark-submit, else this machine")
    add("--heap-mb", type=_positive, help="Java's heap in MiB; default here: 1024, and 256 a core")
    add("--json", action="store_true", help="print what was written as JSON")
    return parser  # fmt: skip


def _positive(text: str) -> int:
    """Return a whole number, at least 1. Raises ValueError, as argparse expects."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _request(options: argparse.Namespace) -> AnalysisRequest:
    from analytics.job import AnalysisRequest

    return AnalysisRequest(
        output=options.output,
        traces=tuple(options.traces),
        snapshots=options.snapshots,
        exports=tuple(options.exports),
        since_us=None if options.since is None else time_us(options.since),
        compare=_periods(options.compare),
        report=None if options.no_report else options.report or options.output / REPORT_FILE,
        picture=options.png,
        check_quality=not options.accept_bad_data,
    )


def _periods(texts: list[str] | None) -> Any:
    from analytics.session import AnalyticsError

    if texts is None:
        return None
    from analytics.traces import Period

    try:
        before, after = (Period(*map(time_us, text.split("/", 1))) for text in texts)
    except (TypeError, ValueError) as error:
        raise AnalyticsError(
            f"--compare {' '.join(texts)}: write two periods as FROM/TO ({error})"
        ) from error
    return before, after


def time_us(text: str) -> int:
    """Return a time in microseconds since 1970, from ISO 8601 (default UTC) or an age like `2h`."""
    from analytics.session import AnalyticsError

    if ago := _AGO.fullmatch(text):
        when = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    else:
        try:
            when = datetime.fromisoformat(text)
        except ValueError as error:
            raise AnalyticsError(
                f"{text!r} is no time: write 15m, 2h, 7d, or 2026-01-31T12:00"
            ) from error
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1_000_000)


def _tell(step: str, seconds: float | None) -> None:
    text = f"{step} …" if seconds is None else f"{step}: {seconds:.1f} s"
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress


def _print(outcome: AnalysisOutcome, directory: Path, *, as_json: bool) -> None:
    from analytics import report

    found = [] if outcome.report is None else report.sentences(directory)
    path = None if outcome.report is None else str(outcome.report)
    if as_json:
        told = {
            "tables": {name: str(path) for name, path in outcome.written.items()},
            "report": path,
            "notices": [dataclasses.asdict(notice) for notice in outcome.notices],
            "findings": [sentence._asdict() for sentence in found],
            "seconds": outcome.seconds,
        }
        print(json.dumps(told))  # noqa: T201
        return
    for severity, text in found:
        print(f"{severity}: {text}")  # noqa: T201
    print(f"{len(outcome.written)} tables in {directory}")  # noqa: T201
    if path is not None:
        print(f"report: {path}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
