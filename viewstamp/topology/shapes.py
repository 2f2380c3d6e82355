"""What may stand at a place of a document: each shape reads it, writes it, and has its JSON schema.

A shape that cannot read a node complains at its place and returns None, so that one look at a
document finds everything that is wrong with it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from viewstamp import quantities
from viewstamp.complaints import Complaint
from viewstamp.document_tree import ListNode, MapNode, Node, ScalarKind, ScalarNode
from viewstamp.errors import Refusal

Json: TypeAlias = Any
# A value in a complaint is cut behind so many characters.
SHOWN_CHARACTERS_MAX: Final = 40
_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,19}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader is in a document, and what it has to complain about."""

    file: str
    path: str = ""
    complaints: list[Complaint] = field(default_factory=list)

    def key(self, name: str) -> Place:
        """Return the place of a key."""
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> Place:
        """Return the place of an item."""
        return replace(self, path=f"{self.path}[{index}]")

    def complain(self, node: Node, text: str) -> None:
        """Say what is wrong with a node, and what would be right."""
        self.complaints.append(Complaint(self.file, node.line, self.path, text))


class DocumentShape(ABC):
    """What may stand at a place."""

    @abstractmethod
    def read(self, node: Node, place: Place) -> Any:
        """Return the value of a node; complain and return None if it has another shape."""

    @abstractmethod
    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""

    def write(self, value: Any) -> Json:
        """Return a value as a document has it."""
        return value


@dataclass(frozen=True, slots=True)
class TextShape(DocumentShape):
    """A name; `check` raises Refusal for one that the cluster would refuse."""

    characters_max: int
    check: Callable[[str], None]

    def read(self, node: Node, place: Place) -> str | None:
        """Return the text."""
        if not isinstance(node, ScalarNode) or node.kind is not ScalarKind.TEXT:
            hint = f": write {shown(node)!r}, in quotes" if isinstance(node, ScalarNode) else ""
            place.complain(node, f"it must be text, not {shown(node)}{hint}")
            return None
        try:
            self.check(node.text)
        except Refusal as refusal:
            place.complain(node, refusal.message)
        return node.text

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        return {"type": "string", "minLength": 1, "maxLength": self.characters_max}


@dataclass(frozen=True, slots=True)
class NumberShape(DocumentShape):
    """A whole number within limits."""

    lowest: int
    highest: int

    def read(self, node: Node, place: Place) -> int | None:
        """Return the number."""
        number = number_of(node)
        if number is None or not self.lowest <= number <= self.highest:
            place.complain(node, f"it must be {self._right()}, not {shown(node)}")
            return None
        return number

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        return {"type": "integer", "minimum": self.lowest, "maximum": self.highest}

    def _right(self) -> str:
        if self.lowest == self.highest:
            return f"the number {self.lowest}"
        return f"a whole number from {self.lowest} to {self.highest}"


@dataclass(frozen=True, slots=True)
class SwitchShape(DocumentShape):
    """True or false."""

    def read(self, node: Node, place: Place) -> bool | None:
        """Return the truth."""
        known = {"true": True, "false": False}
        if (
            isinstance(node, ScalarNode)
            and node.kind is ScalarKind.SWITCH
            and (truth := known.get(node.text)) is not None
        ):
            return truth
        place.complain(node, f"it must be true or false, not {shown(node)}")
        return None

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class ChoiceShape(DocumentShape):
    """One of some words."""

    words: tuple[str, ...]

    def read(self, node: Node, place: Place) -> str | None:
        """Return the word."""
        if isinstance(node, ScalarNode) and node.text in self.words:
            return node.text
        text = f"it must be one of {', '.join(self.words)}, not {shown(node)}"
        place.complain(node, text + _meant(node, self.words))
        return None

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class DurationShape(DocumentShape):
    """A duration with a unit, in `unit` microseconds; or a word for 0, which means no end."""

    lowest_us: int
    highest_us: int
    unit_us: int = 1
    endless: str = ""

    def read(self, node: Node, place: Place) -> int | None:
        """Return the duration in units."""
        text = node.text if isinstance(node, ScalarNode) else ""
        if self.endless and text == self.endless:
            return 0
        found = quantities.duration_us(text)
        in_range = found is not None and self.lowest_us <= found <= self.highest_us
        if found is None or not in_range or found % self.unit_us:
            place.complain(node, f"{self._right()}, not {shown(node)}")
            return None
        return found // self.unit_us

    def write(self, value: int) -> Json:
        """Return a duration as people write it."""
        if self.endless and not value:
            return self.endless
        return quantities.duration_text(value * self.unit_us)

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        word = f"{self.endless}|" if self.endless else ""
        return {"type": "string", "pattern": f"^({word}{quantities.DURATION_PATTERN})$"}

    def _right(self) -> str:
        least, most = map(quantities.duration_text, (self.lowest_us, self.highest_us))
        word = f" or {self.endless}" if self.endless else ""
        units = ", ".join(unit for unit, us in quantities.UNITS_US.items() if us >= self.unit_us)
        return f"it must be a duration from {least} to {most}{word}, with a unit ({units})"


@dataclass(frozen=True, slots=True)
class SizeShape(DocumentShape):
    """A size with a unit, or a number of bytes; or a word for 0, which means no limit."""

    lowest_bytes: int
    highest_bytes: int
    multiple_bytes: int = 1
    endless: str = ""

    def read(self, node: Node, place: Place) -> int | None:
        """Return the size in bytes."""
        text = node.text if isinstance(node, ScalarNode) else ""
        if self.endless and text == self.endless:
            return 0
        found = number_of(node)
        if found is None:
            found = quantities.size_bytes(text)
        in_range = found is not None and self.lowest_bytes <= found <= self.highest_bytes
        if found is None or not in_range or found % self.multiple_bytes:
            place.complain(node, f"{self._right()}, not {shown(node)}")
            return None
        return found

    def write(self, value: int) -> Json:
        """Return a size as people write it."""
        return self.endless if self.endless and not value else quantities.size_text(value)

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        word = f"{self.endless}|" if self.endless else ""
        number = {
            "type": "integer",
            "minimum": self.lowest_bytes,
            "maximum": self.highest_bytes,
            "multipleOf": self.multiple_bytes,
        }
        return {
            "anyOf": [
                number,
                {"type": "string", "pattern": f"^({word}{quantities.SIZE_PATTERN})$"},
            ]
        }

    def _right(self) -> str:
        least, most = map(quantities.size_text, (self.lowest_bytes, self.highest_bytes))
        of = f", a multiple of {self.multiple_bytes}" if self.multiple_bytes > 1 else ""
        word = f" or {self.endless}" if self.endless else ""
        units = ", ".join(quantities.UNITS_BYTES)
        return f"it must be a size from {least} to {most}{of}{word}: bytes, or a unit ({units})"


@dataclass(frozen=True, slots=True)
class ListShape(DocumentShape):
    """A list whose items differ: in what `key` returns of each."""

    item: DocumentShape
    key: Callable[[Any], Any] = lambda value: value

    def read(self, node: Node, place: Place) -> tuple[Any, ...] | None:
        """Return the items that could be read."""
        if not isinstance(node, ListNode):
            place.complain(node, f"it must be a list, not {shown(node)}")
            return None
        found: dict[Any, tuple[Any, int]] = {}
        for index, each in enumerate(node.items):
            here = place.item(index)
            value = self.item.read(each, here)
            if value is None or (key := self.key(value)) is None:
                continue
            if key in found:
                here.complain(each, f"{key!r} stands here twice, first in line {found[key][1]}")
            found[key] = (value, each.line)
        return tuple(value for value, _ in found.values())

    def write(self, value: Sequence[Any]) -> Json:
        """Return a list."""
        return [self.item.write(each) for each in value]

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        return {"type": "array", "items": self.item.schema()}


@dataclass(frozen=True, slots=True)
class RecordField:
    """One key of a record; `attribute` is its name in the value that is made."""

    shape: DocumentShape
    help: str
    attribute: str = ""
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class RecordShape(DocumentShape):
    """A map with known keys, read into the keyword arguments of `make`.

    Absent keys are left to the defaults of `make`. None and empty tuples are not written, unless
    the key is required. `check` returns what is wrong with the whole, or nothing.
    """

    make: Callable[..., Any]
    fields: Mapping[str, RecordField]
    help: str
    check: Callable[[Any], str] = lambda value: ""

    def read(self, node: Node, place: Place) -> Any:
        """Return what was made, from the keys that could be read."""
        if not isinstance(node, MapNode):
            place.complain(
                node, f"it must be a map with {', '.join(self.fields)}, not {shown(node)}"
            )
            return None
        values = {}
        for key, value in node.entries:
            here = place.key(key.text)
            known = self.fields.get(key.text)
            if known is None:
                text = f"this key is unknown here; known are {', '.join(self.fields)}"
                here.complain(key, text + _meant(key, tuple(self.fields)))
                continue
            values[known.attribute or key.text] = known.shape.read(value, here)
        made = self.make(**{**self._missing(node, place), **_without_none(values)})
        if wrong := self.check(made):
            place.complain(node, wrong)
        return made

    def write(self, value: Any) -> Json:
        """Return a map, in the order of the fields."""
        found = {}
        for name, each in self.fields.items():
            held = getattr(value, each.attribute or name)
            if each.is_required or (held is not None and held != ()):
                found[name] = each.shape.write(held)
        return found

    def schema(self) -> dict[str, Json]:
        """Return the JSON schema."""
        schema: dict[str, Json] = {
            "type": "object",
            "description": self.help,
            "additionalProperties": False,
            "properties": {
                name: {**each.shape.schema(), "description": each.help}
                for name, each in self.fields.items()
            },
        }
        if required := [name for name, each in self.fields.items() if each.is_required]:
            schema["required"] = required
        return schema

    def _missing(self, node: MapNode, place: Place) -> dict[str, None]:
        """Complain of required keys that are absent; return something in their place."""
        present = {key.text for key, _ in node.entries}
        required = {name: each for name, each in self.fields.items() if each.is_required}
        for name, each in required.items():
            if name not in present:
                place.complain(node, f"it lacks {name!r}: {each.help}")
        return dict.fromkeys(each.attribute or name for name, each in required.items())


def number_of(node: Node) -> int | None:
    """Return the whole number that stands at a node, in decimal digits; else None."""
    if not isinstance(node, ScalarNode) or node.kind is not ScalarKind.NUMBER:
        return None
    return int(node.text) if _NUMBER.fullmatch(node.text) else None


def shown(node: Node) -> str:
    """Return what stands at a node, in words that fit into a complaint."""
    if isinstance(node, ListNode):
        return "a list"
    if isinstance(node, MapNode):
        return "a map"
    if node.kind is ScalarKind.NOTHING:
        return "nothing"
    text = node.text
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = f"{text[:SHOWN_CHARACTERS_MAX]}..."
    return repr(text) if node.kind is ScalarKind.TEXT else text


def _meant(node: Node, words: Sequence[str]) -> str:
    close = get_close_matches(node.text, words, 1) if isinstance(node, ScalarNode) else []
    return f"; do you mean {close[0]}?" if close else ""


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
