"""The settings of a program as a table, read from its parser of flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias

Json: TypeAlias = Any

PREFIX: Final = "VIEWSTAMP_"
# Flags that say where settings come from, or what to do with them, are no settings.
CONFIG_FLAG: Final = "--config"
CHECK_FLAG: Final = "--check-config"
CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
_NO_SETTINGS: Final = frozenset({"help", "config", "check_config"})
# The value of each is the path of a file with a secret, and never the secret itself.
SECRET_FILES: Final = frozenset(
    {"cluster-key", "tls-key", "peer-tls-key", "service-tls-key", "archive-key-file"}
)
# One variable for all programs, clients included.
SHARED_VARIABLES: Final = {"transport": f"{PREFIX}TRANSPORT"}


class SettingKind(Enum):
    """What a value is; the text says so in messages."""

    TEXT = "text"
    PATH = "a path"
    NUMBER = "a whole number"
    FRACTION = "a number"
    SWITCH = "true or false"


_KINDS: Final = {int: SettingKind.NUMBER, float: SettingKind.FRACTION, Path: SettingKind.PATH}


@dataclass(frozen=True, slots=True)
class ProgramSetting:
    """One setting. `section` is its key in the file, `name` the flag without its dashes.

    `default` is a JSON value, null for none.
    """

    section: str
    name: str
    kind: SettingKind
    help: str
    default: Json
    is_list: bool = False
    is_required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """The variable of the environment."""
        own = f"{self.section}_{self.name}".replace("-", "_").upper()
        return SHARED_VARIABLES.get(self.name, PREFIX + own)

    @property
    def is_secret_file(self) -> bool:
        """Whether the value names a file with a secret."""
        return self.name in SECRET_FILES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the file and ask for its check."""
    group = parser.add_argument_group("configuration file")
    group.add_argument(
        CONFIG_FLAG,
        type=Path,
        metavar="FILE",
        help="take what no flag and no variable says from this YAML file (default:"
        f" {CONFIG_VARIABLE}); `viewstamp config check FILE` explains it",
    )
    group.add_argument(
        CHECK_FLAG,
        action="store_true",
        help="print settings, their origins and what is wrong with them as JSON, and end",
    )


def settings_of_parser(section: str, parser: argparse.ArgumentParser) -> tuple[ProgramSetting, ...]:
    """Return the settings that a parser knows, in the order of its help."""
    # A parser has no public way to list what was added to it.
    actions = (one for one in parser._actions if one.dest not in _NO_SETTINGS)
    return tuple(_setting(section, parser, action) for action in actions)


def _setting(
    section: str, parser: argparse.ArgumentParser, action: argparse.Action
) -> ProgramSetting:
    name = action.option_strings[-1].removeprefix("--")
    is_list = isinstance(action.default, list)
    return ProgramSetting(
        section=section,
        name=name,
        kind=_kind(action),
        help=(action.help or "") % {**vars(action), "prog": parser.prog},
        default=_json(action.default),
        is_list=is_list,
        is_required=action.required,
        choices=tuple(map(str, action.choices or ())),
    )


def _kind(action: argparse.Action) -> SettingKind:
    if action.nargs == 0:
        return SettingKind.SWITCH
    return _KINDS.get(action.type, SettingKind.TEXT)  # type: ignore[call-overload, no-any-return]


def _json(value: object) -> Json:
    return str(value) if isinstance(value, Path) else value
