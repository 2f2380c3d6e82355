"""`viewstamp analyze`: starts the Spark application, which is a separate program."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.settings import fail, settings_of

TELEMETRY_DIRECTORY: Final = "telemetry"
SNAPSHOTS_DIRECTORY: Final = "snapshots"
OUTPUT_DIRECTORY: Final = "analysis"
ANALYTICS: Final = (sys.executable, "-P", "-m", "analytics")
REMEDY: Final = "install the extra `analytics`: pip install 'viewstamp[analytics]'"

HeapMb = Annotated[
    int | None,
    typer.Option(min=1, help="Java's heap in MiB; default: 1024, and 256 for each core."),
]


def analyze(
    context: typer.Context,
    data_directory: Annotated[
        Path | None,
        typer.Option(help="Data directory of a cluster, with its traces and snapshots."),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="More traces: files or directories of OTLP JSON lines from any source."),
    ] = None,
    snapshots: Annotated[
        Path | None, typer.Option(help="More snapshots: a copy directory, or a download.")
    ] = None,
    exports: Annotated[
        list[Path] | None,
        typer.Option(help="Exports of snapshots; their generations may be deleted already."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Directory for the tables and the report.")] = Path(
        OUTPUT_DIRECTORY
    ),
    since: Annotated[
        str | None, typer.Option(help="Ignore older spans: 15m, 2h, 7d, 2026-01-31T12:00.")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Compare two periods, each FROM/TO.", metavar="BEFORE AFTER"),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write the report as a picture, too; needs chromium.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark's address; default: this machine alone.")
    ] = None,
    heap_mb: HeapMb = None,
    accept_bad_data: Annotated[
        bool, typer.Option("--accept-bad-data", help="Analyse data that fails the checks, too.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Read new traces and refresh until interrupted."),
    ] = False,
    refresh_seconds: Annotated[
        int | None, typer.Option(min=1, help="With --follow: seconds between runs; default: 60.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether Spark can run here.")
    ] = False,
) -> None:
    """Turn traces and snapshots into tables and one page to read, with Spark.

    Prints the findings in words, the gravest first. Exit codes: 0 done, 1 there is no data, the
    data are too bad, or Spark cannot run here: the message says which.
    """
    settings = settings_of(context)
    if settings.output is OutputFormat.yaml:
        fail(settings, "NO_YAML", "`viewstamp analyze` prints no YAML", "give --json, or no format")
    if importlib.util.find_spec("pyspark") is None:
        fail(settings, "NO_SPARK", "pyspark is not installed", REMEDY)
    if check:
        _become([*ANALYTICS, "--check"])
    sources = _sources(data_directory, traces or [], snapshots, exports or [])
    if not sources:
        what = "neither traces nor snapshots were found" if data_directory else "nothing was named"
        fail(settings, "NO_DATA", what, "give --data-directory, --traces, --snapshots or --exports")
    given: dict[str, Any] = {"--output": output, "--since": since, "--master": master, "--png": png}
    given |= {"--refresh-seconds": refresh_seconds, "--heap-mb": heap_mb}
    is_json = settings.output is OutputFormat.json
    chosen = {"--accept-bad-data": accept_bad_data, "--follow": follow, "--json": is_json}
    periods = ["--compare", *compare] if compare else []
    _become([*ANALYTICS, *sources, *_arguments(given, chosen), *periods])


def _arguments(given: dict[str, Any], chosen: dict[str, bool]) -> list[str]:
    """Return the options that have a value, each with its value, and the chosen flags."""
    valued = [(name, str(value)) for name, value in given.items() if value is not None]
    return [part for pair in valued for part in pair] + [name for name in chosen if chosen[name]]


def _become(command: list[str]) -> NoReturn:
    """Replace this process by the application, so that signals reach only the application."""
    sys.stdout.flush()
    os.execv(command[0], command)


def _sources(
    data: Path | None, traces: list[Path], snapshots: Path | None, exports: list[Path]
) -> list[str]:
    if data is not None:
        traces = [*traces, *_existing(data / TELEMETRY_DIRECTORY)]
        snapshots = snapshots or next(iter(_existing(data / SNAPSHOTS_DIRECTORY)), None)
    named = [("--traces", path) for path in traces]
    named += [("--snapshots", snapshots)] if snapshots else []
    named += [("--exports", path) for path in exports]
    return [text for flag, path in named for text in (flag, str(path))]


def _existing(path: Path) -> list[Path]:
    return [path] if path.is_dir() else []
