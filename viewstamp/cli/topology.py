"""`viewstamp plan`, `apply`, `diff` and `export`: what a cluster should be, as a document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from viewstamp import topology
from viewstamp.cli.documents import OutputFormat, document
from viewstamp.cli.options import Yes
from viewstamp.cli.output import printed
from viewstamp.cli.settings import EXIT_CHANGES, EXIT_REFUSED, Settings, settings_of
from viewstamp.cli.topology_calls import ApplyOptions, apply_topology, made, read, show_plan
from viewstamp.topology.documents import values_of

PASSWORD_FILE: Final = Path("topology_passwords.json")
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}

Files = Annotated[
    list[str],
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="The document, YAML; - for the standard input. Several are taken together.",
    ),
]
Prune = Annotated[
    bool,
    typer.Option("--prune", help="Also delete what the document may prune and does not list."),
]
AllowPartitionDeletion = Annotated[
    bool,
    typer.Option(
        "--allow-partition-deletion",
        help="Remove partitions and their messages where fewer are declared than there are.",
    ),
]
PasswordsFile = Annotated[
    Path,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="JSON object of usernames and passwords. A new user that it lacks gets a generated"
        " password, which is kept there (mode 0600).",
    ),
]


def plan(
    context: typer.Context,
    file: Files,
    prune: Prune = False,
    allow_partition_deletion: AllowPartitionDeletion = False,
) -> None:
    """Show what `apply` would change, and change nothing.

    Exit codes: 0 nothing is to be done, 5 there are changes, 1 the plan has problems: it cannot be
    applied.
    """
    settings = settings_of(context)
    wanted = read(settings, file, prune=prune)
    rules = topology.PlanRules(prune, allow_partition_deletion)
    found = made(context, lambda client: topology.plan(client, wanted, rules))
    show_plan(settings, found)
    if found.problems:
        raise typer.Exit(EXIT_REFUSED)
    if found.changes:
        raise typer.Exit(EXIT_CHANGES)


def apply(
    context: typer.Context,
    file: Files,
    prune: Prune = False,
    allow_partition_deletion: AllowPartitionDeletion = False,
    password_file: PasswordsFile = PASSWORD_FILE,
    atomic: Annotated[
        bool,
        typer.Option("--atomic", help="Refuse changes that do not fit into one transaction."),
    ] = False,
    yes: Yes = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the plan. The cluster checks it as one transaction; if it does not fit into"
            " one, only what depends on no other change of it.",
        ),
    ] = False,
) -> None:
    """Make the cluster as a document declares. What it does not list is left alone.

    All changes take effect at once if they fit into one transaction. A second time nothing changes.
    """
    wanted = read(settings_of(context), file, prune=prune)
    rules = topology.PlanRules(prune, allow_partition_deletion)
    options = ApplyOptions(rules, password_file, yes=yes, dry_run=dry_run, atomic=atomic)
    apply_topology(context, wanted, options)


def diff(
    context: typer.Context,
    file: Files,
    prune: Prune = False,
) -> None:
    """Show how the cluster and a document differ, as a unified difference of YAML.

    Exit codes: 0 they do not differ in what the document declares, 5 they do.
    """
    settings = settings_of(context)
    wanted = read(settings, file, prune=prune)
    rules = topology.PlanRules(prune=prune)
    lines = made(context, lambda client: topology.diff(client, wanted, rules))
    if not printed(settings, {"differs": bool(lines), "lines": lines}):
        for line in lines:
            typer.secho(line, fg=_COLOURS.get(line[:1]))
    if lines:
        raise typer.Exit(EXIT_CHANGES)


def export(
    context: typer.Context,
    stream: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this stream, and no users; may be repeated."),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of documents instead.")
    ] = False,
) -> None:
    """Print the cluster as a document, YAML, without secrets.

    `apply` finds nothing to do with it.
    """
    settings = settings_of(context)
    if schema:
        typer.echo(document(OutputFormat.json, topology.document_schema()))
        return
    found = made(context, lambda client: topology.export(client, stream or ()))
    print_topology(settings, found)


def print_topology(settings: Settings, shown: topology.Topology) -> None:
    """Print a topology as a document: YAML, or JSON if that is asked for."""
    if not printed(settings, values_of(shown)):
        typer.echo(topology.dumped(shown), nl=False)
