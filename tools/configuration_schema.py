"""The JSON schema of the configuration file, from the settings of all programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from viewstamp.configuration.settings_table import Json, ProgramSetting, SettingKind

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final = {
    SettingKind.TEXT: "string",
    SettingKind.PATH: "string",
    SettingKind.NUMBER: "integer",
    SettingKind.FRACTION: "number",
    SettingKind.SWITCH: "boolean",
}


def schema_document(tables: Mapping[str, Sequence[ProgramSetting]]) -> dict[str, Json]:
    """Return the JSON schema of a file whose sections have these settings."""
    return {
        "$schema": _DIALECT,
        "title": "Viewstamp configuration",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {section: _section(table) for section, table in tables.items()},
    }


def _section(table: Sequence[ProgramSetting]) -> dict[str, Json]:
    return {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {setting.name: _setting(setting) for setting in table},
    }


def _setting(setting: ProgramSetting) -> dict[str, Json]:
    text = f"{setting.help} (flag {setting.flag}, variable {setting.variable})"
    return {"description": text, "default": setting.default, "anyOf": [*_values(setting), _NULL]}


_NULL: Final = {"type": "null"}


def _values(setting: ProgramSetting) -> list[dict[str, Json]]:
    one: dict[str, Json] = {"type": _TYPES[setting.kind]}
    if one["type"] == "string":
        one["minLength"] = 1
    if setting.choices:
        one["enum"] = list(setting.choices)
    if not setting.is_list:
        return [one]
    return [{"type": "array", "items": one}, {"type": "object", "additionalProperties": one}]
