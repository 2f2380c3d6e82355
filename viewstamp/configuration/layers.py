"""Flags, variables and the file of one program, laid over each other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from viewstamp.complaints import DocumentError
from viewstamp.configuration import config_file
from viewstamp.configuration.settings_table import (
    CONFIG_FLAG,
    CONFIG_VARIABLE,
    PREFIX,
    ProgramSetting,
    settings_of_parser,
)
from viewstamp.configuration.values import RawValue, WrongValue, flags_of, words_of_text

FROM_FLAG: Final = "flag"
FROM_DEFAULT: Final = "default"
# What Kubernetes sets in a pod beside a Service whose name begins like a section.
_SERVICE_LINK: Final = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT(_\d+_\w+)?)")
_FLAG: Final = re.compile(r"--[a-z][a-z-]*[a-z]")


class ConfigurationError(ValueError):
    """Variables or the file cannot be as they are; the text has a line for each complaint."""

    def __init__(self, complaints: Sequence[str]) -> None:
        """Keep the complaints, each with its place and with what would be right."""
        super().__init__("\n".join(complaints))
        self.complaints = tuple(complaints)


@dataclass(frozen=True, slots=True)
class Layered:
    """The settings of a program: `raw` has those from elsewhere than flags and defaults, by name.

    `given` are the flags on the command line, and `arguments` say all of it by flags.
    """

    table: tuple[ProgramSetting, ...]
    given: frozenset[str]
    raw: Mapping[str, RawValue]
    arguments: tuple[str, ...]

    def origin(self, setting: ProgramSetting) -> str:
        """Return where the value of a setting comes from."""
        if setting.flag in self.given:
            return FROM_FLAG
        found = self.raw.get(setting.name)
        return FROM_DEFAULT if found is None else found.origin

    def explained(self, message: str) -> str:
        """Return a message about flags that also says where else their values come from."""
        named = dict.fromkeys(flag.removeprefix("--") for flag in _FLAG.findall(message))
        origins = [
            f"--{name} is from {self.raw[name].origin}" for name in named if name in self.raw
        ]
        return f"{message} ({', '.join(origins)})" if origins else message


def layered(
    parser: argparse.ArgumentParser,
    sections: Sequence[str],
    all_sections: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> Layered:
    """Return the settings of a program whose own section is the first of `sections`.

    Raises OSError if the file cannot be read, ConfigurationError for all that is wrong.
    """
    table = settings_of_parser(sections[0], parser)
    path = _file_named(arguments, environment)
    complaints: list[str] = []
    raw: dict[str, RawValue] = {}
    if path is not None:
        raw, complaints = _values_of_file(path, sections, all_sections, table)
    for section in reversed(sections):
        told, wrong = _values_of_environment(environment, of_section(table, section))
        raw |= told
        complaints += wrong
    if complaints:
        raise ConfigurationError(complaints)
    given = frozenset(each.partition("=")[0] for each in arguments if each.startswith("--"))
    added = [
        flag
        for setting in table
        if setting.flag not in given and setting.name in raw
        for flag in flags_of(setting, raw[setting.name].words)
    ]
    kept = {setting.name: raw[setting.name] for setting in table if setting.name in raw}
    own = {name: value for name, value in kept.items() if f"--{name}" not in given}
    return Layered(table, given, own, (*added, *arguments))


def of_section(table: Sequence[ProgramSetting], section: str) -> tuple[ProgramSetting, ...]:
    """Return the settings that a section may have."""
    is_shared = section == config_file.SERVICES_SECTION
    # What each must be told by itself, as its address, is none for all of them.
    own = [each for each in table if not (is_shared and each.is_required)]
    return tuple(replace(each, section=section) for each in own)


def _values_of_file(
    path: Path,
    sections: Sequence[str],
    all_sections: Sequence[str],
    table: Sequence[ProgramSetting],
) -> tuple[dict[str, RawValue], list[str]]:
    try:
        file = config_file.read_config_file(path, all_sections)
    except DocumentError as error:
        return {}, [str(each) for each in error.complaints]
    found: dict[str, RawValue] = {}
    complaints: list[str] = []
    for section in reversed(sections):
        read = config_file.read_section(file, section, of_section(table, section))
        found |= read.values
        complaints += map(str, read.complaints)
    return found, complaints


def _values_of_environment(
    environment: Mapping[str, str], table: Sequence[ProgramSetting]
) -> tuple[dict[str, RawValue], list[str]]:
    found: dict[str, RawValue] = {}
    complaints = []
    for setting in table:
        text = environment.get(setting.variable)
        if not text:
            continue
        try:
            words = words_of_text(setting, text)
        except WrongValue as error:
            complaints.append(f"{setting.variable}: {error}")
        else:
            found[setting.name] = RawValue(words, setting.variable)
    return found, complaints + unknown_variables(environment, table)


def unknown_variables(environment: Mapping[str, str], table: Sequence[ProgramSetting]) -> list[str]:
    """Return a complaint for each variable of the section of a table that names no setting."""
    prefix = f"{PREFIX}{table[0].section.upper()}_"
    known = [setting.variable for setting in table]
    return [
        f"{name}: {config_file.unknown('variable', name, known)}"
        for name in sorted(environment)
        if name.startswith(prefix) and name not in known and not _SERVICE_LINK.fullmatch(name)
    ]


def _file_named(arguments: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(CONFIG_FLAG, type=Path)
    path: Path | None = finder.parse_known_args(list(arguments))[0].config
    named = environment.get(CONFIG_VARIABLE)
    return path or (Path(named) if named else None)
