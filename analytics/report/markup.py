"""Builds HTML and SVG from values, and escapes all that is not markup already.

Names in traces come from anywhere. They reach the page as text and attribute values only, never
as tags, styles, scripts or addresses.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

VOID: Final = frozenset({"meta", "input", "br", "hr", "wbr"})
# Control characters are not allowed in HTML; those that turn the direction of writing could make
# a name look like another one. Both are replaced by a visible sign.
UNFIT: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child] | None"


def text(value: str) -> Markup:
    """Return the value as it may stand between tags and in quoted attributes."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(UNFIT.sub(REPLACEMENT, value), quote=True))


def join(children: Child) -> Markup:
    """Return all children, in order, as one piece."""
    if children is None:
        return Markup()
    if isinstance(children, str):
        return text(children)
    return Markup("".join(join(child) for child in children))


def element(tag: str, *children: Child, **attributes: object) -> Markup:
    """Return an element.

    In the names of attributes `_` stands for `-`, and a `_` at the end is left out (`class_`). A
    value of None or False leaves the attribute out, True gives it no value; floats are cut to two
    decimals.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def _attribute(name: str, value: object) -> str:
    """Return ` name="value"`, or nothing for an attribute that is left out."""
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {written}"
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".")
    return f' {written}="{text(str(value))}"'
