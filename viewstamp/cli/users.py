"""`viewstamp user ...`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from viewstamp.cli.calls import collected, run
from viewstamp.cli.canonical import part
from viewstamp.cli.describing import LINES, Limit
from viewstamp.cli.describing import describe as show_description
from viewstamp.cli.following import WatchedName, follow_list
from viewstamp.cli.grammar import PERMISSIONS_HELP, entity, permissions
from viewstamp.cli.options import (
    AtRevision,
    DryRun,
    ExpectedRevision,
    Following,
    GlobalPermissions,
    OwnUserArgument,
    PasswordFile,
    StreamPermissions,
    TopicPermissions,
    UserArgument,
    Yes,
    confirm,
    guards,
    secret,
)
from viewstamp.cli.output import done, show, show_list
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.api.users.v1 import users_pb2

app = typer.Typer(
    help="Manage users and their permissions.", no_args_is_help=True, rich_markup_mode="markdown"
)

COLUMNS = ("id", "username", "status", "created_at", "modified_revision")


class UserStatusOption(Enum):
    """Whether a user may act."""

    active = "active"
    inactive = "inactive"


def _status(status: UserStatusOption | None) -> users_pb2.UserStatus.ValueType:
    from viewstamp.api.users.v1 import users_pb2

    if status is None:
        return users_pb2.USER_STATUS_UNSPECIFIED
    return users_pb2.UserStatus.Value(f"USER_STATUS_{status.value.upper()}")


@app.command(help=f"Create a user.\n{PERMISSIONS_HELP}")
def create(
    context: typer.Context,
    username: Annotated[str, typer.Argument(help="3 to 50 bytes, unique.")],
    password_file: PasswordFile = None,
    status: Annotated[
        UserStatusOption, typer.Option(help="Whether the user is active.")
    ] = UserStatusOption.active,
    everywhere: GlobalPermissions = None,
    stream: StreamPermissions = None,
    topic: TopicPermissions = None,
    dry_run: DryRun = False,
) -> None:
    """Create a user."""
    settings = settings_of(context)
    granted = permissions(everywhere or (), stream or (), topic or ())
    password = secret(settings, password_file, f"Password for {username}", confirmed=True)
    response = run(
        context,
        lambda client: client.users.create(
            username,
            password,
            status=_status(status),
            permissions=granted,
            validate_only=dry_run,
        ),
    )
    sentence = f"created user {username!r} with id {response.user_id}"
    name = part(username, response.user_id)
    done(settings, response, sentence, dry_run=dry_run, name=name)


@app.command()
def update(
    context: typer.Context,
    user: UserArgument,
    username: Annotated[str | None, typer.Option(help="The new name.")] = None,
    status: Annotated[
        UserStatusOption | None,
        typer.Option(help="Inactive users lose their sessions and tokens at once."),
    ] = None,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Rename a user or change the status; absent options change nothing."""
    response = run(
        context,
        lambda client: client.users.update(
            entity(user),
            username=username,
            status=_status(status),
            **guards(expected_revision, dry_run=dry_run),
        ),
    )
    done(settings_of(context), response, f"updated user {user}", dry_run=dry_run)


@app.command()
def delete(
    context: typer.Context,
    user: UserArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a user with tokens, sessions, group memberships and grants."""
    settings = settings_of(context)
    question = f"Delete user {user} with tokens, sessions, memberships and grants?"
    confirm(settings, question, yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(context, lambda client: client.users.delete(entity(user), **bound))
    done(settings, response, f"deleted user {user}", dry_run=dry_run)


@app.command()
def password(
    context: typer.Context,
    user: OwnUserArgument = None,
    password_file: PasswordFile = None,
    current_password_file: Annotated[
        Path | None,
        typer.Option(
            help="File with your current password; without it, the command asks.", metavar="FILE"
        ),
    ] = None,
    keep_tokens: Annotated[
        bool, typer.Option("--keep-tokens", help="Keep the user's personal access tokens.")
    ] = False,
    keep_sessions: Annotated[
        bool, typer.Option("--keep-sessions", help="Keep the user's sessions.")
    ] = False,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Change a password. Sessions, access tokens and personal access tokens of that user end.

    Your own password needs the current one; the password of another user needs manage_users.
    """
    settings = settings_of(context)
    current = ""
    if user is None or current_password_file is not None:
        current = secret(settings, current_password_file, "Current password")
    new = secret(settings, password_file, "New password", confirmed=True)
    response = run(
        context,
        lambda client: client.users.change_password(
            new,
            user=None if user is None else entity(user),
            current_password=current,
            keep_tokens=keep_tokens,
            keep_sessions=keep_sessions,
            **guards(expected_revision, dry_run=dry_run),
        ),
    )
    whose = "your password: log in again" if user is None else f"the password of user {user}"
    done(settings, response, f"changed {whose}", dry_run=dry_run)


@app.command("permissions", help=f"Replace all permissions of a user.\n{PERMISSIONS_HELP}")
def permissions_(
    context: typer.Context,
    user: UserArgument,
    everywhere: GlobalPermissions = None,
    stream: StreamPermissions = None,
    topic: TopicPermissions = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove every permission.")] = False,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Replace all permissions of a user."""
    granted = permissions(everywhere or (), stream or (), topic or ())
    if (granted is None) != clear:
        raise typer.BadParameter("give the permissions the user shall have, or --clear for none")
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context, lambda client: client.users.update_permissions(entity(user), granted, **bound)
    )
    sentence = f"replaced the permissions of user {user}"
    done(settings_of(context), response, sentence, dry_run=dry_run)


@app.command("list")
def list_(context: typer.Context, watch: Following = False, revision: AtRevision = None) -> None:
    """List all users by id."""
    if watch:
        listed = WatchedName.user
        follow_list(context, lambda client: client.users.list(), COLUMNS, listed, revision)
        return
    users = collected(context, lambda client: client.users.list(), revision)
    show_list(settings_of(context), users, COLUMNS, "no users", _name)


@app.command()
def get(context: typer.Context, user: UserArgument, revision: AtRevision = None) -> None:
    """Show one user with permissions."""
    found = run(context, lambda client: client.users.get(entity(user)), revision)
    show(settings_of(context), found, f"user {found.username}", name=_name(found))


@app.command()
def describe(
    context: typer.Context,
    user: OwnUserArgument = None,
    limit: Limit = LINES,
) -> None:
    """Show a user with permissions, personal access tokens and sessions."""
    from viewstamp.cli.descriptions import user_description

    whom = None if user is None else entity(user)
    show_description(context, lambda reads: user_description(reads, whom, limit))


@app.command()
def whoami(context: typer.Context) -> None:
    """Show who you are and what you may do."""
    found = run(context, lambda client: client.users.who_am_i())
    show(settings_of(context), found, f"user {found.username}", name=_name(found))


def _name(user: users_pb2.User) -> str:
    """Return the canonical name of a user."""
    return part(user.username, user.id)
