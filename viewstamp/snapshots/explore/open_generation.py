"""A generation that is asked many questions: its layers are opened and verified once.

An open section costs memory for the index of each of its layers, and for one block of a layer for
each reading under way. Questions in the order of the keys go on where the last one ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, Self

from viewstamp.format.manifest import section_of
from viewstamp.format.section import Position, SectionEntry
from viewstamp.snapshots.copies import Copies, LayerFile
from viewstamp.snapshots.entities import Entity, decode
from viewstamp.snapshots.generation import Generation

SKIPPED_ENTRIES_MAX: Final = 1024
"""How many entries a reading skips one by one before it begins anew by the index."""


class _Reading:
    """Entries from a position on; `head` is the next one that nobody has taken."""

    def __init__(self, entries: Iterator[SectionEntry], position: Position) -> None:
        self._entries = entries
        self._first = position
        self.head = next(entries, None)

    def take(self) -> None:
        assert self.head is not None, "only what is there can be taken"
        self._first = (self.head.kind, self.head.key + b"\0")
        self.head = next(self._entries, None)

    def reaches(self, position: Position) -> bool:
        """Move on to a position; return False if it lies behind or too far away."""
        if position < self._first:
            return False
        for _ in range(SKIPPED_ENTRIES_MAX):
            if self.head is None or self.head[:2] >= position:
                return True
            self.take()
        return False


class OpenGeneration(Generation):
    """Keeps the layers of each section that was asked for open until `close`."""

    def __init__(self, copies: Copies, number: int) -> None:
        """Read the manifest; 0 stands for the newest generation. Raises SnapshotFilesError."""
        super().__init__(copies, number)
        self._stack = ExitStack()
        self._layers: dict[int, list[LayerFile]] = {}
        self._readings: dict[tuple[int, int], _Reading] = {}

    def __enter__(self) -> Self:
        """Return the generation, to be closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the layers."""
        self.close()

    def close(self) -> None:
        """Close the layers. What was read of them stays."""
        self._readings.clear()
        self._layers.clear()
        self._stack.close()

    def entries(self, stage: int, start: Position | None = None) -> Iterator[SectionEntry]:
        """Yield the entities of a section from `start` on. Raises SnapshotFilesError."""
        if stage not in self._layers:
            self._layers[stage] = self.opened_layers(stage, self._stack)
        yield from self.merged(stage, self._layers[stage], start)

    def count_of(self, stage: int, kind: int) -> int:
        """Return how many entities of a kind there are, as the manifest says."""
        kinds = section_of(self.manifest, stage).kinds
        return sum(count.entities for count in kinds if count.kind == kind)

    def selected(
        self, stage: int, kind: int, prefix: bytes = b"", start: bytes = b""
    ) -> Iterator[Entity]:
        """Yield the entities of a kind whose keys begin with `prefix`, from the key `start` on.

        Raises SnapshotFilesError.
        """
        position = (kind, max(prefix, start))
        # Whoever reads the same kind meanwhile gets a reading of its own.
        reading = self._readings.pop((stage, kind), None)
        if reading is None or not reading.reaches(position):
            reading = _Reading(self.entries(stage, position), position)
        # After an error or Ctrl-C a reading may be cut off, and would tell less than there is.
        is_whole = False
        try:
            while (head := reading.head) is not None and _is_within(head, kind, prefix):
                reading.take()
                yield decode(stage, head)
            is_whole = True
        except GeneratorExit:
            is_whole = True
            raise
        finally:
            if is_whole:
                self._readings[stage, kind] = reading


def _is_within(entry: SectionEntry, kind: int, prefix: bytes) -> bool:
    return entry.kind == kind and entry.key.startswith(prefix)
