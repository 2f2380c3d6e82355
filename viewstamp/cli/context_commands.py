"""`viewstamp context ...`: named values of the global options."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from viewstamp.cli.canonical import is_plain
from viewstamp.cli.completing import complete_context
from viewstamp.cli.contexts import (
    ContextError,
    ContextStore,
    KeptContexts,
    NamedContext,
    found_context,
)
from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.global_options import given_options
from viewstamp.cli.output import print_table, printed, show_values
from viewstamp.cli.settings import EXIT_USAGE, Settings, fail, settings_of, told

app = typer.Typer(
    help="Manage contexts: named addresses of clusters, and how to reach them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

COLUMNS = ("name", "in_use", "address", "tls_ca", "timeout_s", "output")

ContextArgument = Annotated[
    str,
    typer.Argument(help="Name of the context.", metavar="NAME", autocompletion=complete_context),
]


class ContextField(Enum):
    """What a context holds."""

    address = "address"
    tls_ca = "tls-ca"
    timeout_s = "timeout"
    output = "output"


@app.command("list")
def list_(context: typer.Context) -> None:
    """List the contexts by name."""
    settings = settings_of(context)
    kept = _loaded(settings)
    rows = [_row(kept, name) for name in kept.named]
    if printed(settings, rows, kept.named):
        return
    if rows:
        print_table(COLUMNS, rows)
    else:
        typer.echo("no contexts yet: set one with `viewstamp context set NAME --address HOST:PORT`")


@app.command()
def show(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the context; by default the one in use.",
            metavar="[NAME]",
            autocompletion=complete_context,
        ),
    ] = None,
) -> None:
    """Show a context."""
    settings = settings_of(context)
    kept = _loaded(settings)
    wanted = name or kept.in_use
    if wanted is None:
        fail(settings, "NO_CONTEXT", "no context is in use", "name one: `viewstamp context list`")
    _check_known(settings, kept, wanted)
    row = _row(kept, wanted)
    if not printed(settings, row, [wanted]):
        show_values(row, f"context {wanted}")


@app.command()
def use(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the context.", metavar="NAME", autocompletion=complete_context
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context from now on.")] = False,
) -> None:
    """Use a context from now on, where neither --context nor VIEWSTAMP_CONTEXT names another."""
    settings = settings_of(context)
    if (name is None) != none:
        fail(settings, "USAGE", "which context?", "give a name, or --none", exit_code=EXIT_USAGE)
    kept = _loaded(settings)
    if name is not None:
        _check_known(settings, kept, name)
    _save(settings, KeptContexts(kept.named, name))
    if not printed(settings, {"in_use": name}):
        typer.echo("no context is in use" if name is None else f"context {name} is in use")


@app.command("set")
def set_(
    context: typer.Context,
    name: ContextArgument,
    unset: Annotated[
        list[ContextField] | None,
        typer.Option(help="Leave this open from now on; may be repeated."),
    ] = None,
    use_it: Annotated[bool, typer.Option("--use", help="Use the context from now on.")] = False,
) -> None:
    """Create or change a context: it holds the global options that are given here.

    Example: viewstamp context set production --address a:7400,b:7400 --tls-ca ca.crt --use
    """
    settings = settings_of(context)
    if not is_plain(name):
        text = f"{name!r} is no name for a context"
        fail(settings, "USAGE", text, "use letters, digits, dots and dashes", exit_code=EXIT_USAGE)
    kept = _loaded(settings)
    cleared: dict[str, Any] = dict.fromkeys(each.name for each in unset or ())
    changed = replace(kept.named.get(name, NamedContext()), **{**cleared, **_given(context)})
    _save(settings, KeptContexts({**kept.named, name: changed}, name if use_it else kept.in_use))
    if not printed(settings, {"name": name, **asdict(changed)}):
        hint = "" if use_it or kept.in_use == name else f"; use it: `viewstamp context use {name}`"
        typer.echo(f"set context {name}{hint}")


@app.command()
def delete(context: typer.Context, name: ContextArgument) -> None:
    """Delete a context. The login at its cluster stays: `viewstamp logout` ends it."""
    settings = settings_of(context)
    kept = _loaded(settings)
    _check_known(settings, kept, name)
    named = {each: values for each, values in kept.named.items() if each != name}
    _save(settings, KeptContexts(named, None if kept.in_use == name else kept.in_use))
    if not printed(settings, {"name": name, "was_in_use": kept.in_use == name}):
        typer.echo(f"deleted context {name}")


def _given(context: typer.Context) -> dict[str, Any]:
    """Return the fields of the context that were given as global options of this command."""
    given = given_options(context.find_root())
    tls_ca: Path | None = given.get("tls_ca")
    output: OutputFormat | None = OutputFormat.json if "as_json" in given else given.get("output")
    fields = {
        "address": given.get("address"),
        "tls_ca": None if tls_ca is None else str(tls_ca.resolve()),
        "timeout_s": given.get("timeout"),
        "output": None if output is None else output.value,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _row(kept: KeptContexts, name: str) -> dict[str, Any]:
    return {"name": name, "in_use": kept.in_use == name, **asdict(kept.named[name])}


def _loaded(settings: Settings) -> KeptContexts:
    try:
        return ContextStore().load()
    except ContextError as error:
        fail(settings, "CANNOT_READ", str(error))


def _check_known(settings: Settings, kept: KeptContexts, name: str) -> None:
    try:
        found_context(kept, name)
    except ContextError as error:
        fail(settings, "NO_CONTEXT", str(error), "see `viewstamp context list`")


def _save(settings: Settings, kept: KeptContexts) -> None:
    try:
        ContextStore().save(kept)
    except OSError as error:
        fail(settings, "CANNOT_WRITE", told(error), "check the directory and its permissions")
