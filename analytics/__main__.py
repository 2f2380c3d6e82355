"""The analysis from the command line, and the entry point of spark-submit.

    python -m analytics --traces DIR --snapshots DIR --output DIR
    spark-submit --master spark://host:7077 analytics/__main__.py --traces DIR --output DIR

Exit codes: 0 done; 1 the data is too bad, or there is none: the message says which and what to do;
2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

if not __package__:
    # Started by spark-submit as a file, whose folder now stands first where modules are looked for.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

REPORT_FILE: Final = "report.html"
_AGO: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def main(arguments: list[str] | None = None) -> int:
    """Analyse, and return the exit code."""
    from analytics import job, session, sizing

    options = _parser().parse_args(arguments)
    try:
        if options.check:
            session.check_java()
            return 0
        request = _request(options)
        size_bytes = sizing.input_bytes(request.traces, request.snapshots)
        is_brief = size_bytes < sizing.BRIEF_BYTES
        spark = session.build("viewstamp-analytics", options.master, is_brief=is_brief)
        try:
            outcome = job.run(spark, request, _tell)
        finally:
            spark.stop()
    except session.AnalyticsError as error:
        print(f"analyze: {error}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1
    for notice in outcome.notices:
        print(f"note: {notice}", file=sys.stderr)  # noqa: T201
    _print(outcome, request.output, as_json=options.json)
    return 0


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
        help="a directory or file of OTLP JSON lines of any producer; may be given again",
    )
    add(
        "--snapshots",
        type=Path,
        metavar="DIRECTORY",
        help="a data directory, a copy directory or a download",
    )
    goal = parser.add_mutually_exclusive_group(required=True).add_argument
    goal("--output", type=Path, help="where tables go, and the report")
    goal("--check", action="store_true", help="say whether Spark can run here, and end")
    add("--since", metavar="TIME", help="leave older spans out: 15m, 2h, 7d, or 2026-01-31T12:00")
    add(
        "--compare",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="two periods, each FROM/TO: what has changed from the one to the other",
    )
    add("--report", type=Path, help=f"default: {REPORT_FILE} in the output")
    add("--no-report", action="store_true", help="write tables alone")
    add(
        "--accept-bad-data",
        action="store_true",
        help="analyse however much was cut, orphaned or skewed; the report says how much",
    )
    add("--master", help="Spark's address; default: that of spark-submit, else this machine")
    add("--json", action="store_true", help="print what was written as JSON")
    return parser  # fmt: skip


def _request(options: argparse.Namespace) -> Any:
    from analytics.job import Request

    return Request(
        output=options.output,
        traces=tuple(options.traces),
        snapshots=options.snapshots,
        since_us=None if options.since is None else _time_us(options.since),
        compare=_periods(options.compare),
        report=None if options.no_report else options.report or options.output / REPORT_FILE,
        check_quality=not options.accept_bad_data,
    )


def _periods(texts: list[str] | None) -> Any:
    from analytics.session import AnalyticsError

    if texts is None:
        return None
    from analytics.traces import Period

    try:
        before, after = (Period(*map(_time_us, text.split("/", 1))) for text in texts)
    except (TypeError, ValueError) as error:
        raise AnalyticsError(
            f"--compare {' '.join(texts)}: write two periods as FROM/TO ({error})"
        ) from error
    return before, after


def _time_us(text: str) -> int:
    """Return a time in microseconds since 1970: ISO 8601 (UTC if it says nothing), or ago."""
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


def _print(outcome: Any, directory: Path, *, as_json: bool) -> None:
    from analytics import report

    found = [] if outcome.report is None else report.sentences(directory)
    path = None if outcome.report is None else str(outcome.report)
    if as_json:
        told = {
            "tables": {name: str(path) for name, path in outcome.written.items()},
            "report": path,
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
