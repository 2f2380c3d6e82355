"""Writes a merged tree as the text of a Helm template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tools.manifests.merging import Choice, Listed, Mapped, Node, Part, Plain

_STEP: Final = "  "
# Plain words need no quotation marks in YAML; whatever else it might take for a number or a
# truth has them.
_WORD: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_NO_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True, slots=True)
class Expression:
    """A value that Helm computes: what stands in the template for it."""

    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Text that stands in the template as it is, in the place of a key or an item."""

    text: str


def template_of(node: Node) -> str:
    """Return the text of a template for a tree."""
    return "\n".join(_block(node, "")) + "\n"


def _block(node: Node, indent: str) -> list[str]:
    """Return the lines of a mapping or a list that begins on a line of its own."""
    match node:
        case Mapped(parts):
            return _parts(parts, indent, _entry)
        case Listed(parts):
            return _parts(parts, indent, _item)
        case Plain(dict() as value):
            return _parts(_all_of(value.items()), indent, _entry)
        case Plain(list() as value):
            return _parts(_all_of(("", one) for one in value), indent, _item)
        case _:
            raise TypeError(f"{node} is no block")


def _all_of(pairs: Iterable[tuple[str, Any]]) -> tuple[Part, ...]:
    return tuple(Part(key, None, Plain(value)) for key, value in pairs)


def _parts(parts: tuple[Part, ...], indent: str, write: Any) -> list[str]:
    lines: list[str] = []
    open_condition: str | None = None
    for part in parts:
        if part.condition != open_condition:
            lines += ["{{- end }}"] if open_condition else []
            lines += [f"{{{{- if {_bare(part.condition)} }}}}"] if part.condition else []
            open_condition = part.condition
        lines += write(part, indent)
    return [*lines, "{{- end }}"] if open_condition else lines


def _bare(condition: str) -> str:
    return condition[1:-1] if condition.startswith("(") else condition


def _entry(part: Part, indent: str) -> list[str]:
    node = part.node
    if isinstance(node, Plain) and isinstance(node.value, Lines):
        return _verbatim(node.value, indent)
    head = f"{indent}{_scalar(part.key)}:"
    if isinstance(node, Choice):
        return _choice(node, head)
    if _is_inline(node):
        return _inline(node, head, indent)
    return [head, *_block(node, indent + _STEP)]


def _item(part: Part, indent: str) -> list[str]:
    node = part.node
    if isinstance(node, Plain) and isinstance(node.value, Lines):
        return _verbatim(node.value, indent)
    if _is_inline(node):
        return _inline(node, f"{indent}-", indent)
    lines = _block(_led_by_a_value(node), indent + _STEP)
    return [f"{indent}- {lines[0].lstrip()}", *lines[1:]]


def _led_by_a_value(node: Node) -> Node:
    """Have an item begin with a value that is always there, by preference with its name."""
    parts = node.parts if isinstance(node, Mapped) else _all_of(_value_of(node).items())
    leads = [part for part in parts if part.condition is None and not isinstance(part.node, Choice)]
    if not leads:
        raise TypeError(f"no part of this item is always there: {node}")
    lead = min(leads, key=lambda part: (part.key != "name", not _is_inline(part.node)))
    return Mapped((lead, *(part for part in parts if part is not lead)))


def _value_of(node: Node) -> dict[str, Any]:
    assert isinstance(node, Plain) and isinstance(node.value, dict), "lists of lists are not used"
    return node.value


def _choice(node: Choice, head: str) -> list[str]:
    lines = []
    for number, part in enumerate(node.parts):
        assert part.condition is not None
        word = "else if" if number else "if"
        lines.append(f"{{{{- {word} {_bare(part.condition)} }}}}")
        lines += _inline(part.node, head, "")
    return [*lines, "{{- end }}"]


def _verbatim(lines: Lines, indent: str) -> list[str]:
    return [
        line if line.startswith("{{-") else f"{indent}{line}" for line in lines.text.splitlines()
    ]


def _is_inline(node: Node) -> bool:
    return isinstance(node, Plain) and (
        not isinstance(node.value, dict | list) or node.value in ({}, [])
    )


def _inline(node: Node, head: str, indent: str) -> list[str]:
    assert isinstance(node, Plain)
    value = node.value
    if isinstance(value, str) and "\n" in value:
        body = [f"{indent}{_STEP}{_escaped(line)}" for line in value.rstrip("\n").split("\n")]
        return [f"{head} |" if value.endswith("\n") else f"{head} |-", *body]
    return [f"{head} {_scalar(value)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _NO_WORDS:
        return value
    return _escaped(json.dumps(value, ensure_ascii=False))


def _escaped(text: str) -> str:
    """Keep what looks like an action of Helm from being one."""
    return re.sub(r"\{\{|\}\}", lambda found: "{{ `" + found[0] + "` }}", text)
