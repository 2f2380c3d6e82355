"""`viewstamp token ...`: personal access tokens."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from viewstamp.cli.calls import collected, run
from viewstamp.cli.canonical import PlaceCommand, joined, typed_part
from viewstamp.cli.completing import complete_token, complete_user
from viewstamp.cli.grammar import duration_us, entity
from viewstamp.cli.options import DryRun, ExpectedRevision, UserArgument, Yes, confirm, guards
from viewstamp.cli.output import done, show_list, timestamp
from viewstamp.cli.settings import settings_of

app = typer.Typer(
    help="Manage your personal access tokens.", no_args_is_help=True, rich_markup_mode="markdown"
)

COLUMNS = ("name", "expires_at", "created_at", "modified_revision")

NameArgument = Annotated[
    str, typer.Argument(help="3 to 30 bytes.", metavar="NAME", autocompletion=complete_token)
]


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="3 to 30 bytes.", metavar="NAME")],
    expires_in: Annotated[
        str, typer.Option(metavar="DURATION", help="For example 12h, 30d, never.")
    ] = "never",
    dry_run: DryRun = False,
) -> None:
    """Create a token. It is shown only once: keep it in a safe place."""
    settings = settings_of(context)
    lifetime_us = duration_us(expires_in)
    expires_at = time.time_ns() // 1000 + lifetime_us if lifetime_us else 0
    response = run(
        context,
        lambda client: client.tokens.create(name, expires_at=expires_at, validate_only=dry_run),
    )
    done(
        settings,
        response,
        f"created token {name!r}",
        dry_run=dry_run,
        expires_at=timestamp(expires_at),
    )
    if not settings.for_programs and not dry_run:
        typer.echo(response.token)


@app.command("list")
def list_(
    context: typer.Context,
    user: Annotated[
        str | None,
        typer.Option(
            help="List the tokens of this user (id or name); needs read_users.",
            autocompletion=complete_user,
        ),
    ] = None,
) -> None:
    """List your tokens, or those of a user, by name."""
    whose = None if user is None else entity(user)
    tokens = collected(context, lambda client: client.tokens.list(user=whose))
    empty = "no tokens yet: create one with `viewstamp token create NAME`"
    show_list(settings_of(context), tokens, COLUMNS, empty, lambda token: _name(user, token.name))


@app.command()
def delete(
    context: typer.Context,
    name: NameArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a token, and end the access tokens that your tokens got: log in again."""
    settings = settings_of(context)
    confirm(settings, f"Delete token {name!r}?", yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(context, lambda client: client.tokens.delete(name, **bound))
    done(settings, response, f"deleted token {name!r}", dry_run=dry_run)


@app.command(cls=PlaceCommand)
def revoke(
    context: typer.Context,
    user: UserArgument,
    name: NameArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a token of a user; ends the access tokens that it got. Needs manage_users."""
    settings = settings_of(context)
    confirm(settings, f"Delete token {name!r} of user {user}?", yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(context, lambda client: client.tokens.revoke(entity(user), name, **bound))
    done(settings, response, f"deleted token {name!r} of user {user}", dry_run=dry_run)


def _name(user: str | None, token: str) -> str:
    """Return the canonical name: what `token delete` takes, or with a user `token revoke`."""
    return token if user is None else joined(typed_part(user), token)
