"""`viewstamp import ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from viewstamp.cli.output import print_json
from viewstamp.cli.session import run
from viewstamp.cli.settings import EXIT_REFUSED, fail, settings_of, told
from viewstamp.client import Client
from viewstamp.importer import (
    CatalogueError,
    PasswordFile,
    PasswordFileError,
    Report,
    import_plan,
    read_plan,
)

app = typer.Typer(
    help="Import catalogues of other platforms.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.callback()
def imports() -> None:
    """Keep `wikimedia` as a subcommand, although it is the only one."""


@app.command()
def wikimedia(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The catalogue, JSON.", metavar="FILE")],
    passwords: Annotated[
        Path,
        typer.Option(help="File for the generated passwords of new users (mode 0600)."),
    ] = Path("imported_passwords.json"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compare with the cluster and change nothing.")
    ] = False,
) -> None:
    """Import the event stream catalogue of the Wikimedia Foundation.

    Event services become streams, Kafka topics become topics with one partition, enabled ingestion
    jobs become consumer groups, producers become users who may send messages to their topics.
    Existing entities do not change, so it is safe to run it again. Exit codes: 0 everything exists
    now, 1 something was refused.
    """
    settings = settings_of(context)
    try:
        plan = read_plan(file)
    except (OSError, CatalogueError) as error:
        text = told(error) if isinstance(error, OSError) else str(error)
        fail(settings, "CANNOT_READ", text, "give a catalogue such as the one in examples/")

    from rich.console import Console

    from viewstamp.importer.display import print_report, progress_bars

    async def action(client: Client) -> Report:
        bars = Console(stderr=True, quiet=settings.as_json)
        with progress_bars(bars, plan) as progress:
            return await import_plan(
                client, plan, PasswordFile(passwords), dry_run=dry_run, progress=progress
            )

    try:
        report = run(context, action)
    except PasswordFileError as error:
        fail(settings, "CANNOT_WRITE", str(error), "choose another file with --passwords")
    if settings.as_json:
        print_json(report.to_json())
    else:
        print_report(Console(highlight=False), report)
        if not dry_run and passwords.exists():
            typer.echo(f"passwords of imported users are in {passwords}: keep it safe")
    if not report.succeeded:
        raise typer.Exit(EXIT_REFUSED)
