"""A place in the tree of a generation, and how to go to another place or generation."""

from __future__ import annotations

from typing import Final

from viewstamp.snapshots.copies import Copies
from viewstamp.snapshots.errors import NoSuchPath
from viewstamp.snapshots.explore.open_generation import OpenGeneration
from viewstamp.snapshots.explore.path_parts import HERE, PATH_SEPARATOR, UP
from viewstamp.snapshots.explore.state_tree import RootNode, StateNode

# Places that are known without a look, so that the way to where one stands is not read again.
KNOWN_PLACES_MAX: Final = 256


class StateExplorer:
    """Stands at a path. The path stays in another generation, even where nothing is at it."""

    def __init__(self, copies: Copies, number: int) -> None:
        """Stand at the root of a generation; 0 is the newest. Raises SnapshotFilesError."""
        self.copies = copies
        self.generation = OpenGeneration(copies, number)
        self.path: tuple[str, ...] = ()
        self._known: dict[tuple[str, ...], StateNode] = {}

    @property
    def text(self) -> str:
        """The path as people write it."""
        return PATH_SEPARATOR + PATH_SEPARATOR.join(self.path)

    def close(self) -> None:
        """Close the files of the generation."""
        self.generation.close()

    def look_at(self, number: int) -> None:
        """Stand at the same path in another generation; 0 is the newest.

        Raises SnapshotFilesError, and stays where it is.
        """
        generation = OpenGeneration(self.copies, number)
        self.generation.close()
        self.generation = generation
        self._known.clear()

    def go_to(self, text: str) -> None:
        """Stand at another path. Raises NoSuchPath, SnapshotFilesError."""
        self.path = self.node(text).path

    def node(self, text: str = HERE) -> StateNode:
        """Return what is at a path, from here or from the root. Raises NoSuchPath."""
        path = self._parts(text)
        known = self._known.get(path)
        if known is None:
            known = self._found(path)
            if len(self._known) >= KNOWN_PLACES_MAX:
                self._known.clear()
            self._known[path] = known
        return known

    def _parts(self, text: str) -> tuple[str, ...]:
        parts = [] if text.startswith(PATH_SEPARATOR) else list(self.path)
        for part in text.split(PATH_SEPARATOR):
            if part == UP:
                parts = parts[:-1]
            elif part not in ("", HERE):
                parts.append(part)
        return tuple(parts)

    def _found(self, path: tuple[str, ...]) -> StateNode:
        node: StateNode = RootNode(self.generation)
        for length, part in enumerate(path):
            node = self._known.get(path[: length + 1]) or self._child(node, part)
        return node

    def _child(self, node: StateNode, part: str) -> StateNode:
        found = node.child(part) if node.has_children else None
        if found is None:
            here = f"generation {self.generation.number}"
            text = f"{node.text} of {here} has no {part!r}"
            raise NoSuchPath(text, f"`ls {node.text}` shows what is there")
        return found
