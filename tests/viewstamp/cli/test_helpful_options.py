"""What `--help` says of every command, and where secrets may come from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from viewstamp.cli.app import app
from viewstamp.cli.options import REVISION_MAX

TYPER: Final[Any] = typer.main.get_command(app)

# A word of a parameter's name that stands for a secret.
SECRET: Final = re.compile(r"passwords?|tokens?|secrets?|keys?")
# Parameters with such a word whose value is no secret, and why.
NO_SECRETS: Final = {
    "viewstamp snapshot inspect --key": "the key of an entity in a snapshot, for example 7/12",
}


def commands_below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and all below it, each with its words."""
    yield path, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for word in command.list_commands(context):
            _, found, _ = command.resolve_command(context, [word])
            yield from commands_below(found, f"{path} {word}")


def test_every_command_and_option_is_explained() -> None:
    """`--help` suffices: no command and no option stands there without a word."""
    found = dict(commands_below(TYPER, "viewstamp"))
    assert len(found) > 60
    silent = [path for path, command in found.items() if not command.help]
    silent += [
        f"{path} {parameter.opts[0]}"
        for path, command in found.items()
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.help
    ]
    assert silent == []


def test_revisions_fit_into_requests() -> None:
    """A revision that no request has room for is refused by name, and not by a traceback."""
    wide = {
        f"{path} {parameter.opts[0]}"
        for path, command in commands_below(TYPER, "viewstamp")
        for parameter in command.params
        if parameter.type.name in ("integer", "integer range")
        and any("revision" in name for name in parameter.opts)
        and getattr(parameter.type, "max", None) != REVISION_MAX
    }
    assert wide == set()


def takes_value(parameter: Any) -> bool:
    """Whether the text that the user gives is the value itself, and not the name of a file."""
    return not getattr(parameter, "is_flag", False) and parameter.type.name not in ("path", "file")


def names_secret(parameter: Any) -> bool:
    """Whether a name of a parameter has a word for a secret in it."""
    words = (word for name in (parameter.name, *parameter.opts) for word in re.split("[-_]", name))
    return any(SECRET.fullmatch(word) for word in words)


def test_no_secret_stands_on_the_command_line() -> None:
    """A password, token or key comes from a file, a variable or a prompt: all users see commands.

    Whatever is named like a secret is a flag or a file.
    """
    named = {
        f"{path} {parameter.opts[0]}": takes_value(parameter)
        for path, command in commands_below(TYPER, "viewstamp")
        for parameter in command.params
        if names_secret(parameter)
    }
    assert {place for place, takes in named.items() if takes} == NO_SECRETS.keys()
    assert {
        "viewstamp login --password-file",
        "viewstamp login --personal-access-token-file",
        "viewstamp user create --password-file",
        "viewstamp user password --password-file",
        "viewstamp user password --current-password-file",
        "viewstamp user password --keep-tokens",
    } <= named.keys()
