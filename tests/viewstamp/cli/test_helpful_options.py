"""What `--help` says of every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer

from viewstamp.cli.app import app

TYPER: Final[Any] = typer.main.get_command(app)


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
