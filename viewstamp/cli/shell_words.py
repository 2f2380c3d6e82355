"""A line of the shell of snapshots: the command, its words, its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from viewstamp.snapshots.errors import BadShellCommand

OPTION_PREFIX: Final = "--"
# `KIND where PREDICATE` goes on to the end of the line, as it stands there.
_CHOICE: Final = re.compile(r"(?:^|(?<=\s))[A-Za-z_]+\s+where\s")
_HELP: Final = "see `help`"


@dataclass(frozen=True, slots=True)
class ShellLine:
    """What stands in a line; `choice` is `KIND where PREDICATE`, if that is in it."""

    command: str
    words: list[str]
    options: Mapping[str, str] = field(default_factory=dict)
    choice: str = ""

    def number(self, option: str, otherwise: int, maximum: int) -> int:
        """Return the number behind an option, from 1 to a maximum. Raises BadShellCommand."""
        text = self.options.get(option)
        if text is None:
            return otherwise
        is_short = text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))
        if not is_short or not 1 <= int(text) <= maximum:
            said = f"{option} is a number from 1 to {maximum}, and not {text!r}"
            raise BadShellCommand(said, f"write {option} {otherwise}, or another")
        return int(text)

    def word(self, otherwise: str) -> str:
        """Return the only word. Raises BadShellCommand if there are more."""
        if len(self.words) > 1:
            raise BadShellCommand(f"{self.command} takes one path, not {self.words}", _HELP)
        return self.words[0] if self.words else otherwise


def line_of(text: str, allowed: Mapping[str, tuple[str, ...]]) -> ShellLine:
    """Return the parts of a line; `allowed` has the options of each command.

    Raises BadShellCommand.
    """
    command, _, rest = text.strip().partition(" ")
    if command not in allowed:
        raise BadShellCommand(f"there is no command {command!r}", f"one of {', '.join(allowed)}")
    choice = _CHOICE.search(rest) if command == "find" else None
    try:
        words = shlex.split(rest[: choice.start()] if choice else rest)
    except ValueError as error:
        raise BadShellCommand(f"{rest!r} cannot be read: {error}", "close the quote") from error
    options: dict[str, str] = {}
    others = []
    while words:
        word = words.pop(0)
        if not word.startswith(OPTION_PREFIX):
            others.append(word)
            continue
        name, separator, value = word.partition("=")
        if name not in allowed[command] or not (separator or words):
            known = ", ".join(allowed[command]) or "none"
            said = f"{command} does not take {word} here"
            raise BadShellCommand(said, f"its options, each with a value: {known}")
        options[name] = value if separator else words.pop(0)
    return ShellLine(command, others, options, rest[choice.start() :] if choice else "")
