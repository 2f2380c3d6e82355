"""Names as parts of paths: a name that would mean something else is written another way."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

PATH_SEPARATOR: Final = "/"
HERE: Final = "."
UP: Final = ".."
# `name:123` is the name 123, where 123 would be an id.
NAME_PREFIX: Final = "name:"
ID_MAX: Final = (1 << 64) - 1
ID_DIGITS_MAX: Final = len(str(ID_MAX))
# These end a part, or mean something to the shell.
_SPECIAL: Final = frozenset("/%\"'\\")
_FIRST: Final = ("@", "-", NAME_PREFIX)


def part_of(name: str) -> str:
    """Return the part of a path that stands for a name: no blank, quote or slash is in it."""
    part = "".join(_escaped(character) for character in name)
    is_other = not part or part.isdecimal() or part in (HERE, UP) or part.startswith(_FIRST)
    return NAME_PREFIX + part if is_other else part


def name_of(part: str) -> str:
    """Return the name that a part stands for."""
    return unquote(part.removeprefix(NAME_PREFIX))


def id_of(part: str) -> int | None:
    """Return the id that a part stands for; None if it stands for a name."""
    is_number = part.isascii() and part.isdecimal() and len(part) <= ID_DIGITS_MAX
    return int(part) if is_number and int(part) <= ID_MAX else None


def _escaped(character: str) -> str:
    is_plain = character.isprintable() and not character.isspace() and character not in _SPECIAL
    return character if is_plain else quote(character, safe="")
