"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from viewstamp.cli.settings import EXIT_USAGE, Settings, fail

StreamArgument = Annotated[str, typer.Argument(help="Id or name.", metavar="STREAM")]
TopicArgument = Annotated[str, typer.Argument(help="Id or name.", metavar="TOPIC")]
GroupArgument = Annotated[str, typer.Argument(help="Id or name.", metavar="GROUP")]
UserArgument = Annotated[str, typer.Argument(help="Id or name.", metavar="USER")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="The cluster checks the command but changes nothing.")
]
ExpectedRevision = Annotated[
    int | None,
    typer.Option(help="Refuse unless this is the entity's modified_revision.", metavar="REVISION"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
GlobalPermissions = Annotated[
    list[str] | None,
    typer.Option("--global", metavar="PERMISSIONS", help="Grant everywhere."),
]
StreamPermissions = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="STREAM:PERMISSIONS", help="Grant in one stream."),
]
TopicPermissions = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="STREAM/TOPIC:PERMISSIONS", help="Grant in one topic."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(help="Read the password from this file instead of asking.", metavar="FILE"),
]


def confirm(settings: Settings, question: str, *, yes: bool, dry_run: bool) -> None:
    """Ask before something is destroyed; exit with 2 if the answer is no."""
    if yes or dry_run:
        return
    if settings.as_json:
        fail(settings, "NOT_CONFIRMED", f"{question} JSON output asks no questions", "add --yes")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(EXIT_USAGE)


def secret(settings: Settings, file: Path | None, prompt: str, *, confirmed: bool = False) -> str:
    """Return a password from a file (without its line end), else from the terminal."""
    if file is not None:
        try:
            return file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            fail(settings, "CANNOT_READ", f"{file}: {error}", "give a readable text file")
    if settings.as_json:
        fail(settings, "PASSWORD_NEEDED", "JSON output asks no questions", "add --password-file")
    text: str = typer.prompt(prompt, hide_input=True, confirmation_prompt=confirmed, err=True)
    return text
