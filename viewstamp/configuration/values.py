"""Values of settings as flags would give them, checked where they come from elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from viewstamp.configuration.settings_table import Json, ProgramSetting, SettingKind
from viewstamp.document_tree import ListNode, MapNode, Node, ScalarKind, ScalarNode
from viewstamp.names import CONTROL_CHARACTERS

# Between several values of one variable.
SEPARATOR: Final = ","
SHOWN_CHARACTERS_MAX: Final = 40
_SWITCHES: Final = {"true": True, "false": False}
_PEM: Final = "-----BEGIN "
_CLUSTER_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}\s*")
# In YAML `010` is eight, and to a flag it is ten. More digits are no setting of ours.
_WHOLE_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_PARSERS: Final = {SettingKind.NUMBER: int, SettingKind.FRACTION: float}
_PLAIN_SCALARS: Final = frozenset({ScalarKind.TEXT, ScalarKind.NUMBER, ScalarKind.OTHER})


class RawValue(NamedTuple):
    """The words that a flag would have, and where they stand: a variable, or FILE:LINE."""

    words: tuple[str, ...]
    origin: str


class WrongValue(ValueError):  # noqa: N818 - reads as the sentence it is
    """A value that a setting cannot have; the text says what would be right, and no secret."""


def words_of_text(setting: ProgramSetting, text: str) -> tuple[str, ...]:
    """Return the words in a variable. Raises WrongValue."""
    parts = text.split(SEPARATOR) if setting.is_list else [text]
    return checked(setting, [part.strip() for part in parts])


def words_of_node(setting: ProgramSetting, node: Node) -> tuple[str, ...] | None:
    """Return the words in a file, None for null, which leaves the setting open.

    A list setting takes a list, or a map from what stands before `=` to what stands behind it.
    Raises WrongValue.
    """
    if isinstance(node, ScalarNode):
        if node.kind is ScalarKind.NOTHING:
            return None
        if setting.is_list:
            raise WrongValue("it must be a list")
        return checked(setting, [_word(setting, node)])
    if not setting.is_list:
        raise WrongValue(f"it must be {setting.kind.value}, and a single one")
    if isinstance(node, ListNode):
        return checked(setting, [_scalar_word(setting, item) for item in node.items])
    return checked(setting, _pairs(setting, node))


def checked(setting: ProgramSetting, words: Sequence[str]) -> tuple[str, ...]:
    """Return the words if the setting may have them. Raises WrongValue."""
    for word in words:
        _check_secret(setting, word)
        _check_text(setting, word)
        if setting.kind in _PARSERS:
            _check_number(setting, word)
        elif setting.kind is SettingKind.SWITCH and word not in _SWITCHES:
            raise WrongValue(f"it is {_shown(word)}: give true or false")
        if setting.choices and word not in setting.choices:
            raise WrongValue(f"it is {_shown(word)}: give one of {', '.join(setting.choices)}")
    return tuple(words)


def flags_of(setting: ProgramSetting, words: Sequence[str]) -> list[str]:
    """Return the arguments that say the same."""
    if setting.kind is SettingKind.SWITCH:
        return [setting.flag] if _SWITCHES[words[0]] else []
    return [f"{setting.flag}={word}" for word in words]


def json_of(setting: ProgramSetting, words: Sequence[str]) -> Json:
    """Return checked words as the value that they mean."""
    if setting.is_list:
        return list(words)
    if setting.kind is SettingKind.SWITCH:
        return _SWITCHES[words[0]]
    return _PARSERS.get(setting.kind, str)(words[0])


def _pairs(setting: ProgramSetting, node: MapNode) -> list[str]:
    return [f"{key.text}={_scalar_word(setting, value)}" for key, value in node.entries]


def _scalar_word(setting: ProgramSetting, node: Node) -> str:
    if not isinstance(node, ScalarNode):
        raise WrongValue(f"each of its values must be {setting.kind.value}")
    return _word(setting, node)


def _word(setting: ProgramSetting, node: ScalarNode) -> str:
    if setting.kind is SettingKind.SWITCH:
        return node.text
    if node.kind not in _PLAIN_SCALARS:
        raise WrongValue(f"it is {_shown(node.text)}: give {setting.kind.value}, text in quotes")
    return node.text


def _check_secret(setting: ProgramSetting, word: str) -> None:
    if _PEM in word or (setting.is_secret_file and _CLUSTER_KEY.fullmatch(word)):
        raise WrongValue(
            "it is the secret itself: write that to a file which only its owner can read, and give"
            " the path of the file"
        )
    if setting.name == "otlp-endpoint" and "@" in word:
        raise WrongValue("it holds a user or password: give http://HOST:PORT or https://HOST:PORT")


def _check_text(setting: ProgramSetting, word: str) -> None:
    """Raise WrongValue for what no setting can be."""
    if not word:
        # An empty path would be the current directory.
        raise WrongValue(f"it is empty: give {setting.kind.value}, or leave it out")
    if CONTROL_CHARACTERS.search(word):
        raise WrongValue(f"it is {_shown(word)}: leave out control characters")


def _check_number(setting: ProgramSetting, word: str) -> None:
    if setting.kind is SettingKind.NUMBER:
        is_number = _WHOLE_NUMBER.fullmatch(word) is not None
    else:
        is_number = _is_finite(word)
    if not is_number:
        raise WrongValue(f"it is {_shown(word)}: give {setting.kind.value}, in decimal digits")


def _is_finite(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def _shown(word: str) -> str:
    return repr(word if len(word) <= SHOWN_CHARACTERS_MAX else word[:SHOWN_CHARACTERS_MAX] + "…")
