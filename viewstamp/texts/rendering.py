"""Texts from templates: never fails, and never returns more than a message may hold.

A template names details in braces. `{limit}` inserts the detail as it is. `{stream!n}` inserts a
name: quoted and escaped, but a number (an id) has no quotes. `{any_of!o}` inserts alternatives: a
list with commas becomes text with "or".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from string import Formatter
from types import MappingProxyType
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.limits import REFUSAL_TEXT_BYTES_MAX
from viewstamp.texts import general, table

ELLIPSIS: Final = "\u2026"
_ELLIPSIS_BYTES: Final = len(ELLIPSIS.encode())
_UTF8_CHARACTER_BYTES_MAX: Final = 4
# Parsed templates to keep: more than exist.
_PARSED_MAX: Final = 1_024

# A literal, and the detail that follows it, if any, with its conversion.
_Part = tuple[str, str | None, str | None]


def render(reason: int, case: str, details: Mapping[str, str]) -> str:
    """Return the text of a refusal, for people.

    If this build does not know the reason or the case, or a detail is missing, the text is general
    and lists the details as they are.
    """
    template = table.TEXTS.get((reason, case))
    text = None if template is None else _filled(template, details)
    if text is None:
        text = general.GENERAL.get(reason) or f"refused: {_name(reason)}"
        if told := _told(case, details):
            text = f"{text} ({told})"
    return clipped(text, REFUSAL_TEXT_BYTES_MAX)


def clipped(text: str, bytes_max: int) -> str:
    """Return a text of at most `bytes_max` bytes of UTF-8; an ellipsis marks a cut."""
    if len(text) * _UTF8_CHARACTER_BYTES_MAX <= bytes_max:
        return text
    encoded = text.encode(errors="replace")
    if len(encoded) <= bytes_max:
        return text
    return encoded[: bytes_max - _ELLIPSIS_BYTES].decode(errors="ignore") + ELLIPSIS


def _filled(template: str, details: Mapping[str, str]) -> str | None:
    """Return the template with its details; None if one is not there."""
    pieces = []
    for literal, key, conversion in _parsed(template):
        pieces.append(literal)
        if key is None:
            continue
        value = details.get(key)
        if value is None:
            return None
        pieces.append(CONVERSIONS[conversion](value))
    return "".join(pieces)


@lru_cache(maxsize=_PARSED_MAX)
def _parsed(template: str) -> tuple[_Part, ...]:
    return tuple(
        (literal, key, conversion) for literal, key, _, conversion in Formatter().parse(template)
    )


def _quoted(value: str) -> str:
    return value if value.isdecimal() else repr(value)


def _printable(value: str) -> str:
    return value if value.isprintable() else repr(value)


def _alternatives(value: str) -> str:
    return _printable(value.replace(",", " or "))


# By the letter after the exclamation mark of a template.
CONVERSIONS: Final[Mapping[str | None, Callable[[str], str]]] = MappingProxyType(
    {None: _printable, "n": _quoted, "o": _alternatives}
)


def _told(case: str, details: Mapping[str, str]) -> str:
    return ", ".join(_said(case, details))


def _said(case: str, details: Mapping[str, str]) -> Iterator[str]:
    if case:
        yield _printable(case).replace("_", " ")
    for key, value in details.items():
        yield f"{_printable(key)}: {_quoted(value)}"


def _name(reason: int) -> str:
    """Return the reason's name without its prefix; its number if this build has none for it."""
    known = Reason.DESCRIPTOR.values_by_number.get(reason)
    return f"reason {reason}" if known is None else known.name.removeprefix("REASON_")
