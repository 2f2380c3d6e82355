"""Reads the files of a cluster's snapshots, and the compactions in its coordinator's log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coordinator.snapshot.compaction import first_to_merge
from viewstamp.format.manifest import sections
from viewstamp.snapshots.copies import Copies, copy_directories, manifest_file
from viewstamp.snapshots.generation import Generation

ADOPTED = "snapshot adopted"
COMPACTED = "section compacted"


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """One generation: the bytes of each of its files, of one copy, by name."""

    files: Mapping[str, int]

    @property
    def size_bytes(self) -> int:
        """The bytes that a restart reads."""
        return sum(self.files.values())

    def bytes_beside(self, earlier: WrittenFiles | None) -> int:
        """Return the bytes of the files that the earlier generation does not have."""
        known = {} if earlier is None else earlier.files
        return sum(size for name, size in self.files.items() if name not in known)


@dataclass(frozen=True, slots=True)
class Compaction:
    """One section merged into a new base: seconds since its generation was adopted, and bytes.

    Its time includes the sections that were merged before it, one after another.
    """

    stage: int
    seconds: float
    size_bytes: int


def written(data_directory: Path, number: int) -> WrittenFiles:
    """Return the files of a generation. Raises SnapshotFilesError."""
    copies = Copies(copy_directories(data_directory))
    generation = Generation(copies, number)
    path = next(copies.paths(manifest_file(number)))
    files = {path.name: path.stat().st_size}
    for _, section in sections(generation.manifest):
        files |= {layer.digest.hex(): layer.size_bytes for layer in section.layers}
    return WrittenFiles(files)


def is_to_be_merged(data_directory: Path, number: int, stage: int) -> bool:
    """Whether all layers of a section become a new base once the generation is adopted."""
    generation = Generation(Copies(copy_directories(data_directory)), number)
    return first_to_merge(dict(sections(generation.manifest))[stage]) == 0


def compactions(log: Path) -> list[Compaction]:
    """Return every compaction in a coordinator's log."""
    found, adopted = [], None
    for event in _events(log):
        if event["message"] == ADOPTED:
            adopted = _time(event)
        elif event["message"] == COMPACTED and adopted is not None:
            seconds = (_time(event) - adopted).total_seconds()
            told = event["fields"]
            found.append(Compaction(told["stage"], round(seconds, 3), told["bytes"]))
    return found


def adoptions(log: Path) -> dict[int, float]:
    """Return the time when each generation was adopted, in seconds since 1970, from a log."""
    return {
        event["fields"]["generation"]: _time(event).timestamp()
        for event in _events(log)
        if event["message"] == ADOPTED
    }


def _events(log: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a log; ignore other lines."""
    for line in log.read_text().splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if "message" in event:
            yield event


def _time(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])
