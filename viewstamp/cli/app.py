"""The root command: options that hold for every command, and the groups of commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from viewstamp.authorities import authority_problem
from viewstamp.cli.commands import placeholders, with_loaded
from viewstamp.cli.settings import (
    DEFAULT_ADDRESS,
    EXIT_REFUSED,
    PORT_MAX,
    Settings,
    tell,
)

# Options allowed before and after the command; True if a value follows the option.
GLOBAL_OPTIONS: Final = {"--json": False, "--address": True, "--tls-ca": True, "--timeout": True}

HELP: Final = """Manage the metadata of a streaming platform: users, streams, topics and groups.

Start a cluster with `viewstamp up`, log in with `viewstamp login`, then use the commands
below. STREAM, TOPIC, GROUP and USER are ids (digits) or names; `name:123` is the name 123.

Exit codes: 0 done, 1 refused by the cluster, 2 wrong usage, an unreadable file or no login, 3 no
connection, 4 no answer in time: the command may or may not have taken effect, 130 interrupted.

Environment: VIEWSTAMP_ADDRESS, VIEWSTAMP_ACCESS_TOKEN, VIEWSTAMP_PERSONAL_ACCESS_TOKEN (instead of
a login).
"""


class RootGroup(TyperGroup):
    """Loads the command that is called, and accepts the global options at any place.

    `viewstamp stream list --json` works, too.
    """

    def __init__(self, **attributes: Any) -> None:
        """Begin with the name and the help of every command; none is loaded yet."""
        super().__init__(**attributes)
        self.commands.update(placeholders())

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run a command and exit; with --json a usage error is JSON, too."""
        if "--json" not in (sys.argv[1:] if args is None else args):
            return super().main(args, *more, **options)
        try:
            sys.exit(super().main(args, *more, **{**options, "standalone_mode": False}))
        except typer.Abort:
            sys.exit(EXIT_REFUSED)
        except typer.TyperException as error:
            tell(Settings(as_json=True), "USAGE", error.format_message(), "see --help")
            sys.exit(error.exit_code)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is called, or completed, and find it."""
        self.commands.update(with_loaded(args[0]))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the global options to the front, then parse as usual."""
        parsed: list[str] = super().parse_args(ctx, hoist(args))
        return parsed


def hoist(arguments: list[str]) -> list[str]:
    """Return the arguments with global options first; arguments after `--` stay in place."""
    front: list[str] = []
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if argument == "--":
            return [*front, *rest, argument, *queue]
        name, separator, _ = argument.partition("=")
        if name not in GLOBAL_OPTIONS:
            rest.append(argument)
            continue
        front.append(argument)
        if GLOBAL_OPTIONS[name] and not separator and queue:
            front.append(queue.pop(0))
    return [*front, *rest]


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


def checked_addresses(text: str) -> str:
    """Return the addresses as given. Each of them must have a host and a port."""
    addresses = Settings(address=text).addresses
    for address in addresses or [text]:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise typer.BadParameter(
                f"`{address}` is no address: give HOST:PORT, for example {DEFAULT_ADDRESS}"
            )
    return text


def checked_authority(path: Path | None) -> Path | None:
    """Return the path of a certificate authority, once its file can be used."""
    if path is not None and (problem := authority_problem(path)):
        raise typer.BadParameter(
            f"{problem}: give the PEM file of the CA that signed the cluster's"
        )
    return path


@app.callback()
def root(
    context: typer.Context,
    address: Annotated[
        str,
        typer.Option(
            envvar="VIEWSTAMP_ADDRESS",
            callback=checked_addresses,
            help="Address of the cluster: HOST:PORT, or those of several replicas,"
            " separated by commas.",
        ),
    ] = DEFAULT_ADDRESS,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON instead of tables, and errors as JSON on stderr."),
    ] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            callback=checked_authority,
            help="CA certificate (PEM) that signed the cluster's; without it, no TLS.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 30.0,
    version: Annotated[
        bool,
        typer.Option("--version", callback=tell_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Keep the global options for the command."""
    context.obj = Settings(address=address, as_json=as_json, tls_ca=tls_ca, timeout_s=timeout)
