"""`viewstamp config`: what a configuration file means, and what is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from viewstamp.cli.commands import with_loaded
from viewstamp.cli.output import print_table, printed
from viewstamp.cli.settings import EXIT_USAGE, Settings, fail, settings_of
from viewstamp.cli.up_configuration import (
    checked_up_section,
    found_elsewhere,
    settings_of_options,
)
from viewstamp.cluster.local import child_environment
from viewstamp.complaints import DocumentError
from viewstamp.configuration.config_file import (
    SCHEMA_FILE,
    SERVICES_SECTION,
    ConfigFile,
    read_config_file,
)
from viewstamp.configuration.layers import FROM_DEFAULT
from viewstamp.configuration.program import COORDINATOR_SECTION, SECTIONS, UP_SECTION
from viewstamp.configuration.settings_table import CHECK_FLAG, CONFIG_FLAG
from viewstamp.configuration.values import json_of
from viewstamp.routing import SERVICE_NAMES

app = typer.Typer(no_args_is_help=True, help="Check a configuration file, and print its schema.")

CHECK_TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("section", "name", "value", "from")


@app.command("check")
def check(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The configuration file.", metavar="FILE")],
    every: Annotated[
        bool, typer.Option("--all", help="Show settings that have their default, too.")
    ] = False,
) -> None:
    """Say what is wrong with a configuration file, and what each setting is and comes from.

    Each program whose section the file has checks it, together with the variables of this
    environment, as it would at its start. Exit codes: 0 nothing is wrong, 2 something is.
    """
    settings = settings_of(context)
    try:
        read = read_config_file(file, SECTIONS)
    except DocumentError as error:
        _report(settings, [], [str(each) for each in error.complaints], every)
    except OSError as error:
        fail(settings, "CANNOT_READ", f"{file}: {error.strerror}", "give the path of a file")
    else:
        found = checked_file(read)
        _report(settings, found["settings"], found["problems"], every)


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of configuration files, which editors understand."""
    typer.echo(SCHEMA_FILE.read_text(), nl=False)


def checked_file(file: ConfigFile) -> dict[str, Any]:
    """Return the settings of all programs of a file with their origins, and the problems."""
    reports = _reports(file)
    problems = dict.fromkeys(each for report in reports for each in report["problems"])
    settings = [
        {"section": report["section"], **each} for report in reports for each in report["settings"]
    ]
    return {"settings": settings, "problems": list(problems)}


def _reports(file: ConfigFile) -> list[dict[str, Any]]:
    """Return what each program says whose section the file has."""
    programs = {COORDINATOR_SECTION: COORDINATOR_SECTION}
    programs |= {name: f"services.{name}" for name in SERVICE_NAMES}
    of_all = SERVICE_NAMES if SERVICES_SECTION in file.sections else ()
    wanted = [name for name in programs if name in file.sections or name in of_all]
    with ThreadPoolExecutor() as threads:
        asked = threads.map(partial(_asked, file.path), [programs[name] for name in wanted])
        reports = [] if UP_SECTION not in file.sections else [_report_of_up(file)]
        return [*reports, *asked]


def _asked(path: Path, module: str) -> dict[str, Any]:
    """Return what a program says about a file."""
    command = [sys.executable, "-m", module, f"{CONFIG_FLAG}={path}", CHECK_FLAG]
    try:
        ended = subprocess.run(
            command,
            env=child_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _no_report(module, f"it gave no answer within {CHECK_TIMEOUT_S:g} s")
    try:
        report: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        lines = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
        return _no_report(module, lines[-1])
    return report


def _no_report(module: str, why: str) -> dict[str, Any]:
    problem = f"{module} could not check the file: {why}"
    return {"section": module, "settings": [], "problems": [problem]}


def _report_of_up(file: ConfigFile) -> dict[str, Any]:
    command = with_loaded(UP_SECTION)[UP_SECTION]
    found, problems = checked_up_section(command, file, os.environ)
    rows: list[dict[str, Any]] = []
    for setting in settings_of_options(command):
        raw = found.get(setting.name)
        value = setting.default if raw is None else json_of(setting, raw.words)
        origin = FROM_DEFAULT if raw is None else raw.origin
        rows.append({"name": setting.name, "value": value, "from": origin})
    values = {row["name"]: row["value"] for row in rows}
    problems += found_elsewhere(file, os.environ, values["replicas"] + values["standbys"])
    return {"section": UP_SECTION, "settings": rows, "problems": problems}


def _report(
    settings: Settings, rows: list[dict[str, Any]], problems: list[str], every: bool
) -> None:
    """Print settings and problems; exit if there are problems."""
    shown = [row for row in rows if every or row["from"] != FROM_DEFAULT]
    kept = [{column: row[column] for column in COLUMNS} for row in shown]
    if not printed(settings, {"settings": kept, "problems": problems}):
        if kept:
            print_table(COLUMNS, kept)
        for problem in problems:
            typer.echo(f"wrong: {problem}", err=True)
        if not problems:
            typer.echo("nothing is wrong")
    if problems:
        raise typer.Exit(EXIT_USAGE)
