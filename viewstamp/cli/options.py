"""Arguments and options that several commands share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from viewstamp.cli.completing import (
    complete_broker,
    complete_group,
    complete_stream,
    complete_topic,
    complete_user,
)
from viewstamp.cli.settings import EXIT_USAGE, Settings, fail, told

if TYPE_CHECKING:
    from viewstamp.client.identifiers import Guards

T = TypeVar("T")
# Requests have 64 bits for a revision.
REVISION_MAX: Final = 2**64 - 1

StreamArgument = Annotated[
    str, typer.Argument(help="Id or name.", metavar="STREAM", autocompletion=complete_stream)
]
TopicArgument = Annotated[
    str, typer.Argument(help="Id or name.", metavar="TOPIC", autocompletion=complete_topic)
]
GroupArgument = Annotated[
    str, typer.Argument(help="Id or name.", metavar="GROUP", autocompletion=complete_group)
]
UserArgument = Annotated[
    str, typer.Argument(help="Id or name.", metavar="USER", autocompletion=complete_user)
]
BrokerArgument = Annotated[
    str, typer.Argument(help="Id or name.", metavar="BROKER", autocompletion=complete_broker)
]
OwnUserArgument = Annotated[
    str | None,
    typer.Argument(
        help="Id or name; yourself if left out.", metavar="[USER]", autocompletion=complete_user
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="The cluster checks the command but changes nothing.")
]
ExpectedRevision = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=REVISION_MAX,
        metavar="REVISION",
        help="Refuse unless this is the entity's modified_revision.",
    ),
]
AtRevision = Annotated[
    int | None,
    typer.Option(
        "--revision",
        min=1,
        max=REVISION_MAX,
        metavar="REVISION",
        help="As it was at this revision, not as it is.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Following = Annotated[
    bool,
    typer.Option(
        "--watch", help="Then show changes as they are committed, until Ctrl-C; JSON in lines."
    ),
]
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


def guards(expected_revision: int | None, *, dry_run: bool) -> Guards:
    """Return the conditions of a change from the options."""
    return {"expected_revision": expected_revision, "validate_only": dry_run}


def confirm(settings: Settings, question: str, *, yes: bool, dry_run: bool) -> None:
    """Ask before a command destroys something; exit with 2 if the answer is no."""
    if yes or dry_run:
        return
    if settings.for_programs:
        text = f"{question} Output for programs asks no questions"
        fail(settings, "NOT_CONFIRMED", text, "add --yes")
    step = "answer in a terminal, or add --yes"
    if not _answer(settings, "NOT_CONFIRMED", step, lambda: typer.confirm(question, err=True)):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(EXIT_USAGE)


def secret(settings: Settings, file: Path | None, prompt: str, *, confirmed: bool = False) -> str:
    """Return a password from a file (without its line end), else from the terminal."""
    if file is not None:
        try:
            return file.read_text().rstrip("\r\n")
        except OSError as error:
            fail(settings, "CANNOT_READ", told(error), "give a readable text file")
        except UnicodeDecodeError as error:
            fail(settings, "CANNOT_READ", f"{file}: {error}", "give a readable text file")
    if settings.for_programs:
        text = "output for programs asks no questions"
        fail(settings, "PASSWORD_NEEDED", text, "add --password-file")
    return _answer(
        settings,
        "PASSWORD_NEEDED",
        "type it in a terminal, or add --password-file",
        lambda: str(typer.prompt(prompt, hide_input=True, confirmation_prompt=confirmed, err=True)),
    )


def _answer(settings: Settings, reason: str, step: str, ask: Callable[[], T]) -> T:
    """Ask a question; if the input ends before the answer, say what to do instead, and exit."""
    try:
        with warnings.catch_warnings():
            # Without a terminal, getpass warns of an echo that nobody sees.
            warnings.simplefilter("ignore")
            return ask()
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        fail(settings, reason, "the input ended before an answer", step)
