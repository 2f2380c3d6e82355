"""`viewstamp analyze`: hands over to the Spark application, which is a program of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from viewstamp.cli.session import fail, settings_of

TELEMETRY_DIRECTORY: Final = "telemetry"
SNAPSHOTS_DIRECTORY: Final = "snapshots"
OUTPUT_DIRECTORY: Final = "analysis"
ANALYTICS: Final = (sys.executable, "-m", "analytics")
REMEDY: Final = "install the extra `analytics`: pip install 'viewstamp[analytics]'"


def analyze(
    context: typer.Context,
    data_directory: Annotated[
        Path | None,
        typer.Option(help="A cluster's data directory: its traces and its snapshots."),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="More traces: files or directories of OTLP JSON lines, of any producer."),
    ] = None,
    snapshots: Annotated[
        Path | None, typer.Option(help="Other snapshots: a copy directory, or a download.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where the tables go, and the report.")] = Path(
        OUTPUT_DIRECTORY
    ),
    since: Annotated[
        str | None, typer.Option(help="Leave older spans out: 15m, 2h, 7d, 2026-01-31T12:00.")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="What changed between two periods, each FROM/TO.", metavar="BEFORE AFTER"
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark's address; default: this machine alone.")
    ] = None,
    accept_bad_data: Annotated[
        bool, typer.Option("--accept-bad-data", help="Analyse however bad the data is.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say whether Spark can run here, and end.")
    ] = False,
) -> None:
    """Turn traces and snapshots into tables and one page to read, with Spark.

    Prints what was found in words, the gravest first. Exit codes: 0 done, 1 there is no data, it
    is too bad, or Spark cannot run here: the message says which.
    """
    settings = settings_of(context)
    if importlib.util.find_spec("pyspark") is None:
        fail(settings, "NO_SPARK", "pyspark is not installed", REMEDY)
    if check:
        raise typer.Exit(subprocess.run([*ANALYTICS, "--check"], check=False).returncode)
    sources = _sources(data_directory, traces or [], snapshots)
    if not sources:
        what = "neither traces nor snapshots were found" if data_directory else "nothing was named"
        fail(settings, "NO_DATA", what, "give --data-directory, --traces or --snapshots")
    command = [*ANALYTICS, *sources, "--output", str(output)]
    for name, value in (("--since", since), ("--master", master)):
        command += [name, value] if value else []
    command += ["--compare", *compare] if compare else []
    command += ["--accept-bad-data"] if accept_bad_data else []
    command += ["--json"] if settings.as_json else []
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _sources(data: Path | None, traces: list[Path], snapshots: Path | None) -> list[str]:
    if data is not None:
        traces = [*traces, *_existing(data / TELEMETRY_DIRECTORY)]
        snapshots = snapshots or next(iter(_existing(data / SNAPSHOTS_DIRECTORY)), None)
    named = [("--traces", path) for path in traces]
    named += [("--snapshots", snapshots)] if snapshots else []
    return [text for flag, path in named for text in (flag, str(path))]


def _existing(path: Path) -> list[Path]:
    return [path] if path.is_dir() else []
