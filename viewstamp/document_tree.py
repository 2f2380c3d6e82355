"""The text of documents as trees of nodes that know their lines. YAML, without what can surprise.

Aliases are refused: few of them make a document of billions of nodes. So are tags, a key that
stands twice, and what is nested too deeply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import yaml

from viewstamp.complaints import Complaint, DocumentError

# The text of all documents of one file: some 15,000 topics with all of their options. The nodes of
# a hostile text take a hundred times as much memory.
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
# Lists and maps within each other; a topology needs 9.
DEPTH_MAX: Final = 20
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ScalarKind(Enum):
    """What a scalar is to YAML."""

    TEXT = "text"
    NUMBER = "a whole number"
    SWITCH = "true or false"
    NOTHING = "null"
    OTHER = "a number with a fraction, or a date"


_KINDS: Final = {
    "tag:yaml.org,2002:str": ScalarKind.TEXT,
    "tag:yaml.org,2002:int": ScalarKind.NUMBER,
    "tag:yaml.org,2002:bool": ScalarKind.SWITCH,
    "tag:yaml.org,2002:null": ScalarKind.NOTHING,
}


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A single value as it is written."""

    line: int
    text: str
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MapNode:
    """A map; no key stands twice in it."""

    line: int
    entries: tuple[tuple[ScalarNode, Node], ...]


Node: TypeAlias = ScalarNode | ListNode | MapNode


def trees(text: str, file: str) -> list[Node]:
    """Return the documents of a file, without empty ones. Raises DocumentError."""
    if len(text) > FILE_BYTES_MAX:
        raise _error(file, 0, f"it is too large: at most {FILE_BYTES_MAX} bytes; divide it")
    resolver = yaml.resolver.Resolver()
    builder = _Builder(file, resolver)
    try:
        found = [*builder.documents(iter(yaml.parse(text, Loader=_LOADER)))]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line + 1
        raise _error(file, line, f"it is no YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise _error(file, 0, f"it is no YAML: {error}") from error
    return [tree for tree in found if not _is_empty(tree)]


class _Builder:
    """Turns the events of the parser into trees."""

    def __init__(self, file: str, resolver: Any) -> None:
        self._file = file
        self._resolver = resolver

    def documents(self, events: Iterator[Any]) -> Iterator[Node]:
        """Yield the tree of each document."""
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                yield self._node(next(events), events, 0)

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise _error(self._file, line, f"*{event.anchor} is an alias: write the value out")
        if event.tag is not None and event.tag != "!":
            raise _error(self._file, line, f"{event.tag} is a tag: leave it out")
        if depth > DEPTH_MAX:
            raise _error(self._file, line, f"it is nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, line)
        if isinstance(event, yaml.SequenceStartEvent):
            return ListNode(line, tuple(self._items(events, depth)))
        return MapNode(line, tuple(self._entries(events, depth)))

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> ScalarNode:
        tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        return ScalarNode(line, event.value, _KINDS.get(tag, ScalarKind.OTHER))

    def _items(self, events: Iterator[Any], depth: int) -> Iterator[Node]:
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            yield self._node(event, events, depth + 1)

    def _entries(self, events: Iterator[Any], depth: int) -> Iterator[tuple[ScalarNode, Node]]:
        lines: dict[str, int] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, depth + 1)
            if not isinstance(key, ScalarNode):
                raise _error(self._file, key.line, "a key must be text")
            if key.text in lines:
                text = f"the key {key.text!r} stands twice, first in line {lines[key.text]}"
                raise _error(self._file, key.line, text)
            lines[key.text] = key.line
            yield key, self._node(next(events), events, depth + 1)


def _is_empty(tree: Node) -> bool:
    return isinstance(tree, ScalarNode) and tree.kind is ScalarKind.NOTHING


def _error(file: str, line: int, text: str) -> DocumentError:
    return DocumentError([Complaint(file, line, "", text)])
