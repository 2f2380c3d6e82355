"""The root command: options that hold for every command, and the groups of commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from viewstamp.cli.commands import placeholders, with_loaded
from viewstamp.cli.completing import complete_context
from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.global_options import (
    TIMEOUT_MIN_S,
    TIMEOUT_S,
    checked_addresses,
    checked_authority,
    read_settings,
)
from viewstamp.cli.hoisting import OUTPUT_VARIABLE, asked_output, hoist, is_open
from viewstamp.cli.settings import DEFAULT_ADDRESS, EXIT_REFUSED, Settings, tell

HELP: Final = """Manage the metadata of a streaming platform: users, streams, topics and groups.

Start a cluster with `viewstamp up`, log in with `viewstamp login`, then use the commands
below. STREAM, TOPIC, GROUP and USER are ids (digits) or names; `name:123` is the name 123.

Exit codes: 0 done, 1 refused by the cluster, 2 wrong usage, an unreadable file or no login, 3 no
connection, 4 no answer in time: the command may or may not have taken effect, 5 `plan`, `diff`,
`doctor` or `log` found something to do, 130 interrupted.

Environment: VIEWSTAMP_CONTEXT, VIEWSTAMP_ADDRESS, VIEWSTAMP_OUTPUT, VIEWSTAMP_TLS_CA and
VIEWSTAMP_TIMEOUT are values for the options below; an option stands before its variable, and a
variable before a context. VIEWSTAMP_ACCESS_TOKEN or VIEWSTAMP_PERSONAL_ACCESS_TOKEN is used instead
of a login.
"""


class RootGroup(TyperGroup):
    """Loads the command that is called, and accepts the global options at any place.

    `viewstamp stream list -o json` works, too.
    """

    def __init__(self, **attributes: Any) -> None:
        """Begin with the name and the help of every command; none is loaded yet."""
        super().__init__(**attributes)
        self.commands.update(placeholders())

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run a command and exit; where the output is a document, a usage error is one, too."""
        settings = Settings(output=asked_output(sys.argv[1:] if args is None else args))
        if not settings.for_programs:
            return super().main(args, *more, **options)
        try:
            sys.exit(super().main(args, *more, **{**options, "standalone_mode": False}))
        except typer.Abort:
            sys.exit(EXIT_REFUSED)
        except typer.TyperException as error:
            tell(settings, "USAGE", error.format_message(), "see --help")
            sys.exit(error.exit_code)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is called, or completed, and find it."""
        self.commands.update(with_loaded(args[0]))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the global options to the front, then parse as usual."""
        is_about_value = ctx.resilient_parsing and is_open(args)
        # TAB behind a global option completes the value of it, whatever the command is.
        parsed: list[str] = super().parse_args(ctx, [] if is_about_value else hoist(args))
        return parsed


app = typer.Typer(
    cls=RootGroup,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def tell_version(wanted: bool) -> None:
    """Print the version and exit, if the option is given."""
    if wanted:
        # Imported late: the import takes a tenth of the time that a whole command may take.
        from importlib import metadata

        typer.echo(f"viewstamp {metadata.version('viewstamp')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    context_name: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar="VIEWSTAMP_CONTEXT",
            metavar="NAME",
            autocompletion=complete_context,
            help="Take options that are not given from this context: see `viewstamp context`.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            envvar="VIEWSTAMP_ADDRESS",
            callback=checked_addresses,
            help="Address of the cluster: HOST:PORT, or those of several replicas, separated by"
            f" commas; default: {DEFAULT_ADDRESS}.",
        ),
    ] = None,
    output: Annotated[
        OutputFormat | None,
        typer.Option(
            "--output",
            "-o",
            envvar=OUTPUT_VARIABLE,
            help="Print tables, or JSON or YAML with errors as documents on stderr, or only names"
            " that other commands take; default: table.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="VIEWSTAMP_TLS_CA",
            callback=checked_authority,
            help="CA certificate (PEM) that signed the cluster's; without it, no TLS.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            envvar="VIEWSTAMP_TIMEOUT",
            min=TIMEOUT_MIN_S,
            help=f"Seconds to wait for an answer; default: {TIMEOUT_S:g}.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=tell_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Keep the global options for the command."""
    context.obj = read_settings(context)
