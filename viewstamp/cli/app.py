"""The root command: options that hold for every command, and the groups of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from viewstamp.cli import (
    access,
    analyze,
    audit,
    client_sessions,
    cluster,
    groups,
    imports,
    snapshots,
    streams,
    tokens,
    topics,
    users,
)
from viewstamp.cli.session import DEFAULT_ADDRESS, Settings

# Understood before and after the command; the second value says whether a value follows.
GLOBAL_OPTIONS: Final = {"--json": False, "--address": True, "--tls-ca": True, "--timeout": True}

HELP: Final = """Who may do what, what exists, who reads what: the metadata of a streaming platform.

Start a cluster with `viewstamp up`, log in with `viewstamp login`, then go on with the groups of
commands below. STREAM, TOPIC, GROUP and USER are ids (digits) or names; `name:123` is the name 123.

Exit codes: 0 done, 1 refused by the cluster, 2 wrong usage, no connection, or no answer in time.

Environment: VIEWSTAMP_ADDRESS, VIEWSTAMP_ACCESS_TOKEN, VIEWSTAMP_PERSONAL_ACCESS_TOKEN (instead of
a login).
"""


class GlobalOptionsGroup(TyperGroup):
    """Takes the global options wherever they stand: `viewstamp stream list --json` works too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the global options to the front, then parse as usual."""
        parsed: list[str] = super().parse_args(ctx, hoist(args))
        return parsed


def hoist(arguments: list[str]) -> list[str]:
    """Return the arguments with global options first; what follows `--` is left alone."""
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
    cls=GlobalOptionsGroup,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    address: Annotated[
        str,
        typer.Option(
            envvar="VIEWSTAMP_ADDRESS",
            help="Where the cluster listens: HOST:PORT, or those of its replicas with commas.",
        ),
    ] = DEFAULT_ADDRESS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables; errors too, on stderr.")
    ] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="Authority of the cluster's certificate (PEM); without it, no TLS."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 30.0,
) -> None:
    """Keep the global options for the command."""
    context.obj = Settings(address=address, as_json=as_json, tls_ca=tls_ca, timeout_s=timeout)


app.command("up")(cluster.up)
app.command("keygen")(cluster.keygen)
app.command("login")(access.login)
app.command("logout")(access.logout)
app.command("status")(cluster.status)
app.command("audit")(audit.audit)
app.command("analyze")(analyze.analyze)
app.add_typer(users.app, name="user")
app.add_typer(tokens.app, name="token")
app.add_typer(client_sessions.app, name="session")
app.add_typer(streams.app, name="stream")
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(snapshots.app, name="snapshot")
app.add_typer(cluster.app, name="cluster")
app.add_typer(imports.app, name="import")
