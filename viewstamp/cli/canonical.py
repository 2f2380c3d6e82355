"""Canonical names: what `-o name` prints, a word for a shell that other commands take.

A name is `orders` for a stream, `orders/payments` for a topic, `orders/payments/billing` for a
group. Where the name of an entity cannot stand in such a word, its id does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand

SEPARATOR: Final = "/"
# Commands that print names: those that list or show entities, and those that create them.
NAMING_COMMANDS: Final = frozenset(
    {
        "broker get",
        "broker list",
        "broker register",
        "context list",
        "context show",
        "group create",
        "group get",
        "group list",
        "group list-all",
        "replica add",
        "replica list",
        "session list",
        "snapshot create",
        "snapshot list",
        "snapshot show",
        "stream create",
        "stream get",
        "stream list",
        "token list",
        "topic create",
        "topic get",
        "topic list",
        "user create",
        "user get",
        "user list",
        "user whoami",
    }
)
# No blank, slash or character that means something to a shell, and no beginning of an option.
_WORD: Final = re.compile(r"[\w.,:+=@%][\w.,:+=@%-]*")
# First arguments in which the others may stand, too.
_WHOLES: Final = frozenset({"stream", "user"})


def part(name: str, entity_id: int) -> str:
    """Return the part of a canonical name that stands for an entity: its name, else its id."""
    return name if is_plain(name) and not _is_id(name) else str(entity_id)


def typed_part(text: str, entity_id: int = 0) -> str:
    """Return the part for an entity that the user has named; its id, if known, where it must be."""
    return text if is_plain(text) or not entity_id else str(entity_id)


def joined(*parts: str) -> str:
    """Return the canonical name of an entity within others."""
    return SEPARATOR.join(parts)


def is_plain(name: str) -> bool:
    """Whether a name can stand in a shell's word as it is, and is not taken for something else."""
    return bool(_WORD.fullmatch(name)) and not name.startswith("name:")


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal()


class PlaceCommand(TyperCommand):
    """A command that takes canonical names: `topic get orders/payments`.

    Only a call that lacks arguments is read so. With all arguments, a slash is part of a name.
    """

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser; it splits a canonical name in place of several arguments."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parsed(*given: Any, **named: Any) -> Any:
            options, rest, order = parse(*given, **named)
            options.update(self._split(options))
            return options, rest, order

        parser.parse_args = parsed
        return parser

    def _split(self, options: dict[str, Any]) -> dict[str, str]:
        names = [one.name for one in self.params if _is_needed(one) and one.name]
        return split_places(names, [options.get(name) for name in names])


def split_places(names: Sequence[str], values: Sequence[Any]) -> dict[str, str]:
    """Return the arguments by name once a canonical name is split; none if nothing is to split."""
    given = [value for value in values if isinstance(value, str)]
    missing = len(names) - len(given)
    if not given or not missing or names[0] not in _WHOLES:
        return {}
    parts = given[0].split(SEPARATOR, missing)
    return dict(zip(names, [*parts, *given[1:]], strict=True)) if len(parts) > missing else {}


def _is_needed(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument" and parameter.required)
