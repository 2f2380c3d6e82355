"""What a pass reads, and where it begins: pure.

A pass goes round in a circle of everything that there is when it begins. It begins at the place
that a pass which had begun with the interval would have reached by now. So a replica that is
restarted every day still reads everything within an interval, and nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from coordinator.snapshot.layout import MANIFESTS, layer_file, manifest_file
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import encode_manifest, sections

_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class SuperblockTarget:
    """The superblock, all copies."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentTarget:
    """One segment of the journal, by its number."""

    segment: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileTarget:
    """One file of snapshots: its name below each copy directory, and the digest of its bytes.

    `copy_bytes` is the size of one copy, `size_bytes` that of all. `generations` name it, newest
    first.
    """

    name: str
    copy_bytes: int
    size_bytes: int
    digest: bytes
    generations: tuple[int, ...]

    @property
    def is_manifest(self) -> bool:
        """Whether it is a manifest, not a layer."""
        return self.name.startswith(f"{MANIFESTS}/")


ScrubTarget: TypeAlias = SuperblockTarget | SegmentTarget | FileTarget


def files_of(manifest: SnapshotManifest, copies: int) -> list[FileTarget]:
    """Return the files of a generation, the manifest first."""
    data = encode_manifest(manifest)
    generation = manifest.generation
    name = manifest_file(generation)
    digest = file_digest([data])
    found = {name: FileTarget(name, len(data), copies * len(data), digest, (generation,))}
    for _, section in sections(manifest):
        for layer in section.layers:
            name, size = layer_file(layer.digest), layer.size_bytes
            found[name] = FileTarget(name, size, copies * size, layer.digest, (generation,))
    return list(found.values())


def merged(files: Iterable[FileTarget]) -> list[FileTarget]:
    """Return each file once, with all generations that name it, newest first; ordered by name."""
    by_name: dict[str, list[FileTarget]] = {}
    for file in files:
        by_name.setdefault(file.name, []).append(file)
    return [
        FileTarget(
            name,
            same[0].copy_bytes,
            same[0].size_bytes,
            same[0].digest,
            tuple(sorted({each for file in same for each in file.generations}, reverse=True)),
        )
        for name, same in sorted(by_name.items())
    ]


def circle(targets: Sequence[ScrubTarget], now_us: int, interval_ms: int) -> list[ScrubTarget]:
    """Return all targets, beginning with the one that is due now.

    `now_us` is the time since 1970 in microseconds.
    """
    interval_us = interval_ms * _US_PER_MS
    total_bytes = sum(target.size_bytes for target in targets)
    due_bytes = total_bytes * (now_us % interval_us) // interval_us
    first = 0
    while due_bytes and first < len(targets) and due_bytes >= targets[first].size_bytes:
        due_bytes -= targets[first].size_bytes
        first += 1
    return [*targets[first:], *targets[:first]]
