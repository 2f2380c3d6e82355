"""What `viewstamp up` takes from the configuration file, and what it leaves to its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from viewstamp.cluster import PreflightError
from viewstamp.cluster.passthrough_flags import GIVEN_TO_SERVICES, OWN_OPTIONS, check_flag
from viewstamp.complaints import DocumentError
from viewstamp.configuration.config_file import (
    SERVICES_SECTION,
    ConfigFile,
    read_config_file,
    read_section,
)
from viewstamp.configuration.layers import unknown_variables
from viewstamp.configuration.program import COORDINATOR_SECTION, SECTIONS, UP_SECTION
from viewstamp.configuration.settings_table import PREFIX, ProgramSetting, SettingKind
from viewstamp.configuration.values import RawValue, WrongValue, json_of, words_of_text
from viewstamp.document_tree import ScalarNode
from viewstamp.routing import SERVICE_NAMES

# The names that Click gives to types of values.
_KINDS: Final = {
    "int range": SettingKind.NUMBER,
    "float range": SettingKind.FRACTION,
    "path": SettingKind.PATH,
    "str": SettingKind.TEXT,
}
_NO_SETTINGS: Final = frozenset({"flags", "config", "help"})


def variable(name: str) -> str:
    """Return the variable of an option of `viewstamp up`."""
    return ProgramSetting(UP_SECTION, name, SettingKind.TEXT, "", None).variable


def settings_of_options(command: Any) -> tuple[ProgramSetting, ...]:
    """Return the options of `viewstamp up` as settings."""
    return tuple(
        ProgramSetting(
            section=UP_SECTION,
            name=option.opts[0].removeprefix("--"),
            kind=_KINDS[option.type.name],
            help=option.help,
            default=str(option.default) if isinstance(option.default, Path) else option.default,
        )
        for option in command.params
        if option.name not in _NO_SETTINGS
    )


def checked_up_section(
    command: Any, file: ConfigFile, environment: Mapping[str, str]
) -> tuple[dict[str, RawValue], list[str]]:
    """Return what variables and the file say about options by name, and what is wrong."""
    table = settings_of_options(command)
    read = read_section(file, UP_SECTION, table)
    found, problems = dict(read.values), [str(each) for each in read.complaints]
    options = {option.opts[0].removeprefix("--"): option for option in command.params}
    problems += unknown_variables(environment, table)
    for setting in table:
        try:
            if text := environment.get(setting.variable):
                found[setting.name] = RawValue(words_of_text(setting, text), setting.variable)
            if raw := found.get(setting.name):
                options[setting.name].type.convert(raw.words[0], options[setting.name], None)
        except WrongValue as error:
            problems.append(f"{setting.variable}: {error}")
        except typer.BadParameter as error:
            problems.append(f"{found.pop(setting.name).origin}: {setting.flag}: {error.message}")
    return found, problems


def read_up_section(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options that are not given from variables and a file: a callback.

    Raises BadParameter.
    """
    if context.resilient_parsing:
        return path
    try:
        file = _file(path)
    except PreflightError as error:
        raise typer.BadParameter(str(error)) from error
    found, problems = checked_up_section(context.command, file, os.environ)
    if problems:
        raise typer.BadParameter("\n".join(problems))
    context.default_map = {
        setting.name.replace("-", "_"): json_of(setting, found[setting.name].words)
        for setting in settings_of_options(context.command)
        if setting.name in found
    }
    return path


def check_elsewhere(path: Path | None, environment: Mapping[str, str], replica_count: int) -> None:
    """Check that no file and no variable sets what `viewstamp up` does. Raises PreflightError."""
    problems = found_elsewhere(_file(path), environment, replica_count)
    if problems:
        raise PreflightError("\n".join(problems))


def certificate_elsewhere(path: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the certificate of coordinators by a variable or the file. Raises PreflightError."""
    setting = ProgramSetting(COORDINATOR_SECTION, "tls-certificate", SettingKind.PATH, "", None)
    node = _file(path).sections.get(COORDINATOR_SECTION)
    entries = () if node is None else node.entries
    named = [
        value.text
        for key, value in entries
        if key.text == setting.name and isinstance(value, ScalarNode)
    ]
    text = environment.get(setting.variable) or (named[0] if named else "")
    return Path(text) if text else None


def _file(path: Path | None) -> ConfigFile:
    """Return a file, or an empty one without a path. Raises PreflightError."""
    if path is None:
        return ConfigFile(Path(), {})
    try:
        return read_config_file(path, SECTIONS)
    except (DocumentError, OSError) as error:
        raise PreflightError(str(error)) from error


def found_elsewhere(
    file: ConfigFile, environment: Mapping[str, str], replica_count: int
) -> list[str]:
    """Return a complaint for each setting of other sections that `viewstamp up` sets itself."""
    problems = []
    for section in (COORDINATOR_SECTION, SERVICES_SECTION, *SERVICE_NAMES):
        for place, name in _settings_in(file, environment, section):
            try:
                _check(section, f"--{name}", replica_count)
            except PreflightError as error:
                problems.append(f"{place}: {error}")
    return problems


def _settings_in(
    file: ConfigFile, environment: Mapping[str, str], section: str
) -> Sequence[tuple[str, str]]:
    """Return place and name of each setting of a section."""
    node = file.sections.get(section)
    entries = () if node is None else node.entries
    prefix = f"{PREFIX}{section.upper()}_"
    return [
        *((f"{file.path}:{key.line}: {section}.{key.text}", key.text) for key, _ in entries),
        *(
            (name, name.removeprefix(prefix).replace("_", "-").lower())
            for name in sorted(environment)
            # An empty variable sets nothing.
            if name.startswith(prefix) and environment[name]
        ),
    ]


def _check(section: str, flag: str, replica_count: int) -> None:
    is_coordinator = section == COORDINATOR_SECTION
    if flag in OWN_OPTIONS and (is_coordinator or flag in GIVEN_TO_SERVICES):
        raise PreflightError(
            f"`viewstamp up` sets it for all processes: write it in the section `{UP_SECTION}`"
        )
    if is_coordinator:
        check_flag(flag, replica_count)
    elif flag in GIVEN_TO_SERVICES:
        raise PreflightError("`viewstamp up` chooses its value: take it out")
