"""A program that takes its settings from flags, variables and a file, and can explain them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from viewstamp.configuration.config_file import SERVICES_SECTION
from viewstamp.configuration.layers import FROM_FLAG, ConfigurationError, Layered, layered
from viewstamp.configuration.settings_table import CHECK_FLAG, ProgramSetting
from viewstamp.configuration.values import json_of
from viewstamp.routing import SERVICE_NAMES

COORDINATOR_SECTION: Final = "coordinator"
UP_SECTION: Final = "up"
SECTIONS: Final = (UP_SECTION, COORDINATOR_SECTION, SERVICES_SECTION, *SERVICE_NAMES)
# A check tells so of what whoever starts the program has to give.
NOT_GIVEN: Final = "not given yet"
_HELP_FLAGS: Final = frozenset({"-h", "--help"})
EXIT_RIGHT: Final = 0
EXIT_WRONG: Final = 2


@dataclass(frozen=True, slots=True)
class ConfiguredProgram:
    """A program: its sections of the file, its own first, and its parser.

    `validate` raises ValueError for options that cannot be together. `stand_ins` are arguments by
    flag for what a check misses and a real start has.
    """

    sections: tuple[str, ...]
    parser: argparse.ArgumentParser
    validate: Callable[[argparse.Namespace], object]
    stand_ins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def prepare(
    program: ConfiguredProgram, arguments: Sequence[str], environment: Mapping[str, str]
) -> Layered:
    """Return the settings of a start; a check, if one is asked for, is printed and ends here.

    Raises OSError, ConfigurationError, SystemExit.
    """
    if not _HELP_FLAGS.isdisjoint(arguments):
        program.parser.parse_args(arguments)  # explains itself, and ends, whatever else is wrong
    if CHECK_FLAG in arguments:
        report = checked(program, arguments, environment)
        sys.stdout.write(json.dumps(report) + "\n")
        sys.exit(EXIT_WRONG if report["problems"] else EXIT_RIGHT)
    return layered(program.parser, program.sections, SECTIONS, arguments, environment)


def checked(
    program: ConfiguredProgram, arguments: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the effective settings with their origins, and what is wrong with them, as JSON."""
    section = program.sections[0]
    try:
        found = layered(program.parser, program.sections, SECTIONS, arguments, environment)
    except ConfigurationError as error:
        return {"section": section, "settings": [], "problems": list(error.complaints)}
    except OSError as error:
        return {"section": section, "settings": [], "problems": [str(error)]}
    set_flags = found.given | {f"--{name}" for name in found.raw}
    missing = [flag for flag in program.stand_ins if flag not in set_flags]
    added = [word for flag in missing for word in program.stand_ins[flag]]
    options = program.parser.parse_args([*found.arguments, *added])
    return {
        "section": section,
        "settings": [_described(each, found, options, missing) for each in found.table],
        "problems": _problems(program, found, options),
    }


def _problems(program: ConfiguredProgram, found: Layered, options: argparse.Namespace) -> list[str]:
    try:
        program.validate(options)
    except ValueError as error:
        return [found.explained(str(error))]
    return []


def _described(
    setting: ProgramSetting, found: Layered, options: argparse.Namespace, missing: Sequence[str]
) -> dict[str, Any]:
    value: Any = setting.default
    origin = found.origin(setting)
    if setting.name in found.raw:
        value = json_of(setting, found.raw[setting.name].words)
    elif origin == FROM_FLAG:
        given = getattr(options, setting.name.replace("-", "_"))
        value = given if isinstance(given, bool | int | float | list) else str(given)
    if setting.flag in missing:
        origin = NOT_GIVEN
    shown = {"name": setting.name, "value": value, "from": origin}
    return {**shown, "variable": setting.variable, "kind": setting.kind.value}
