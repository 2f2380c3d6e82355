"""Commands that the prose of a page names exist: targets of make, modules, subcommands, options."""

from __future__ import annotations

import importlib.util
import re
import shlex
from typing import Any, Final

import pytest
import typer

from tests.documentation.console import FENCE
from tests.documentation.test_documented_commands import pages
from tests.tidy.tree import ROOT
from viewstamp.cli.app import app

NAMED: Final = re.compile(r"`((?:make|python -m|viewstamp) [^`\n]+)`")
TARGETS: Final = frozenset(
    re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
)
TYPER: Final[Any] = typer.main.get_command(app)


def make_error(words: list[str]) -> str | None:
    """Return what is wrong with a call of make."""
    unknown = [word for word in words if "=" not in word and word not in TARGETS]
    return f"the Makefile has no {unknown}" if unknown else None


def module_error(words: list[str]) -> str | None:
    """Return what is wrong with a call of `python -m`."""
    try:
        found = importlib.util.find_spec(words[1])
    except ModuleNotFoundError:
        found = None
    return None if found else f"there is no module {words[1]}"


def options(command: Any) -> dict[str, bool]:
    """Return the options of a command, and whether each is a flag."""
    return {
        name: bool(parameter.is_flag)
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    } | {"--help": True}


def tool_error(words: list[str]) -> str | None:
    """Return what is wrong with a call of the command line, by its options and subcommands."""
    command, rest = TYPER, list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word.startswith("-"):
            if word not in options(command):
                return f"{command.name} has no option {word}"
            if not options(command)[word] and rest:
                rest.pop(0)
        elif hasattr(command, "list_commands"):
            context = typer.Context(command)
            if word not in command.list_commands(context):
                return f"there is no command {word!r}"
            _, command, _ = command.resolve_command(context, [word])
    return None


ERRORS: Final = {"make": make_error, "python": module_error, "viewstamp": tool_error}


def wrong(page: str, text: str) -> list[str]:
    """Return a line per command in the prose of a page that does not exist."""
    found = []
    for named in NAMED.findall(FENCE.sub("", text)):
        program, *words = shlex.split(named)
        if error := ERRORS[program](words):
            found.append(f"{page}: `{named}`: {error}")
    return found


def test_named_commands_exist() -> None:
    """Each command that a page names in its prose exists in this tree."""
    assert [line for page, text in pages() for line in wrong(page, text)] == []


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ("make tset", "the Makefile has no"),
        ("python -m benchmarks.nothing", "there is no module"),
        ("python -m nothing.at.all", "there is no module"),
        ("viewstamp stauts", "there is no command 'stauts'"),
        ("viewstamp snapshot diffs 1 2", "there is no command 'diffs'"),
        ("viewstamp --jason status", "has no option --jason"),
        ("viewstamp snapshot verify 1 --dir data", "verify has no option --dir"),
    ],
)
def test_wrong_names_are_seen(named: str, error: str) -> None:
    """A target, module, subcommand or option that does not exist is found."""
    (found,) = wrong("page", f"Run `{named}` now.")
    assert error in found
