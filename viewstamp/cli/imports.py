"""`viewstamp import ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from viewstamp.cli.output import printed
from viewstamp.cli.session import run
from viewstamp.cli.settings import EXIT_REFUSED, Settings, fail, settings_of, told
from viewstamp.cli.topology import PASSWORD_FILE, PasswordsFile, print_topology
from viewstamp.cli.topology_calls import ApplyOptions, apply_topology
from viewstamp.client import Client
from viewstamp.importer import (
    CatalogueError,
    ImportPlan,
    PasswordFile,
    PasswordFileError,
    Report,
    import_plan,
    read_plan,
    read_strimzi,
    topology_of,
)
from viewstamp.names import CONTROL_CHARACTERS
from viewstamp.topology import PlanRules

app = typer.Typer(
    help="Import catalogues of other platforms.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Compare with the cluster and change nothing.")
]
AsDocument = Annotated[
    bool,
    typer.Option(
        "--document", help="Only print a document for `viewstamp apply`; no cluster is asked."
    ),
]


@app.command()
def wikimedia(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The catalogue, JSON.", metavar="FILE")],
    passwords: Annotated[
        Path,
        typer.Option(help="File for the generated passwords of new users (mode 0600)."),
    ] = Path("imported_passwords.json"),
    dry_run: DryRun = False,
    document: AsDocument = False,
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
        _fail_reading(settings, error, "give a catalogue such as the one in examples/")
    if document:
        print_topology(settings, topology_of(plan))
    else:
        _import_plan(context, plan, passwords, dry_run=dry_run)


@app.command()
def strimzi(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(help="Resources of Kubernetes, YAML.", metavar="FILE...")
    ],
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The stream for all topics; without it, the label strimzi.io/cluster names it.",
        ),
    ] = None,
    password_file: PasswordsFile = PASSWORD_FILE,
    dry_run: DryRun = False,
    document: AsDocument = False,
) -> None:
    """Import `KafkaTopic` and `KafkaUser` resources of Strimzi.

    They are applied as `viewstamp apply` applies a document: what they do not name is left alone.
    What cannot be carried over is told on stderr, with the reason. No user gets a permission that
    the resources do not give.
    """
    settings = settings_of(context)
    try:
        found = read_strimzi(files, stream)
    except (OSError, CatalogueError) as error:
        _fail_reading(settings, error, "give what `kubectl get kafkatopics -o yaml` prints")
    for note in found.notes:
        text = f"not carried over: {note.what}: {note.reason}"
        typer.echo(CONTROL_CHARACTERS.sub("?", text), err=True)
    if document:
        print_topology(settings, found.topology)
    else:
        options = ApplyOptions(PlanRules(), password_file, dry_run=dry_run)
        apply_topology(context, found.topology, options)


def _fail_reading(settings: Settings, error: OSError | CatalogueError, step: str) -> NoReturn:
    text = told(error) if isinstance(error, OSError) else str(error)
    fail(settings, "CANNOT_READ", text, step)


def _import_plan(
    context: typer.Context, plan: ImportPlan, passwords: Path, *, dry_run: bool
) -> None:
    settings = settings_of(context)
    from rich.console import Console

    from viewstamp.importer.display import print_report, progress_bars

    async def action(client: Client) -> Report:
        bars = Console(stderr=True, quiet=settings.for_programs)
        with progress_bars(bars, plan) as progress:
            return await import_plan(
                client, plan, PasswordFile(passwords), dry_run=dry_run, progress=progress
            )

    try:
        report = run(context, action)
    except PasswordFileError as error:
        fail(settings, "CANNOT_WRITE", str(error), "choose another file with --passwords")
    if not printed(settings, report.to_json()):
        print_report(Console(highlight=False), report)
        if not dry_run and passwords.exists():
            typer.echo(f"passwords of imported users are in {passwords}: keep it safe")
    if not report.succeeded:
        raise typer.Exit(EXIT_REFUSED)
