"""The settings of the programs: flags, variables of the environment, and one file in YAML.

The flags of a program are the only list of its settings. Names of variables and keys of the file,
the JSON schema and the page of the documentation are made from them. The first of these that has
a value decides: flag, variable, file, default. `docs/configuration.md` has all of them.
"""

from __future__ import annotations

from viewstamp.configuration.layers import ConfigurationError, Layered, layered
from viewstamp.configuration.program import ConfiguredProgram, prepare
from viewstamp.configuration.settings_table import ProgramSetting, SettingKind, settings_of_parser

__all__ = [
    "ConfigurationError",
    "ConfiguredProgram",
    "Layered",
    "ProgramSetting",
    "SettingKind",
    "layered",
    "prepare",
    "settings_of_parser",
]
