"""`viewstamp session ...`: lists client sessions and their users, and ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from viewstamp.cli.calls import run
from viewstamp.cli.completing import complete_user
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import DryRun, Yes, confirm
from viewstamp.cli.output import done, show_list
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
    from viewstamp.client import Client

app = typer.Typer(
    help="List and end client sessions.", no_args_is_help=True, rich_markup_mode="markdown"
)

COLUMNS = ("session_id", "user_id", "last_request_number")

UserOption = Annotated[
    str | None,
    typer.Option(
        help="User whose sessions are meant (id or name); default: you.",
        metavar="USER",
        autocompletion=complete_user,
    ),
]


@app.command("list")
def list_(
    context: typer.Context,
    user: UserOption = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="List the sessions of all users; needs read_users.")
    ] = False,
) -> None:
    """List your sessions, those of a user, or all."""

    async def collect(client: Client) -> list[sessions_pb2.SessionInfo]:
        if user is None and not everybody:
            return await client.sessions.own()
        user_id = None if user is None else (await client.users.get(entity(user))).id
        return [session async for session in client.sessions.list(user_id=user_id)]

    found = run(context, collect)
    show_list(
        settings_of(context), found, COLUMNS, "no sessions", lambda each: str(each.session_id)
    )


@app.command()
def end(
    context: typer.Context,
    session_id: Annotated[
        int | None, typer.Argument(help="Session to end; all if left out.")
    ] = None,
    user: UserOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """End a session, or all, of yours or of a user; their clients register new ones.

    Sessions of another user need manage_users. Group memberships of the sessions end with them.
    """
    settings = settings_of(context)
    which = "all sessions" if session_id is None else f"session {session_id}"
    whose = "" if user is None else f" of user {user}"
    confirm(settings, f"End {which}{whose}?", yes=yes, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.sessions.end(
            user=None if user is None else entity(user),
            session_id=session_id,
            validate_only=dry_run,
        ),
    )
    done(settings, response, f"ended {which}{whose}", dry_run=dry_run)
