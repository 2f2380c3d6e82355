"""The log of an archive, through its indexes, without more of it in memory than a manifest has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.archive.archive_objects import ArchiveObjects
from viewstamp.format.archive_manifest import ArchivedSnapshot
from viewstamp.format.archive_parts import LogPart
from viewstamp.format.manifest import decode_manifest, sections


def walk_parts(
    objects: ArchiveObjects, parts: Sequence[LogPart], from_op: int = 1
) -> Iterator[LogPart]:
    """Yield pieces that hold ops from one on, and the indexes above them, each before its own.

    Raises ArchiveError for an index that is missing or damaged.
    """
    for part in parts:
        if part.last_op < from_op:
            continue
        yield part
        if not part.is_piece:
            yield from walk_parts(objects, objects.index(part), from_op)


def pieces_from(
    objects: ArchiveObjects, parts: Sequence[LogPart], from_op: int = 1
) -> Iterator[LogPart]:
    """Yield the pieces that hold ops from one on, ascending. Raises ArchiveError."""
    return (part for part in walk_parts(objects, parts, from_op) if part.is_piece)


def read_snapshot_manifest(objects: ArchiveObjects, snapshot: ArchivedSnapshot) -> SnapshotManifest:
    """Return the manifest of a snapshot. Raises ArchiveError, FormatError."""
    return decode_manifest(objects.snapshot_manifest(snapshot))


def layers_of(manifest: SnapshotManifest) -> list[LayerReference]:
    """Return the layers of a snapshot, each once."""
    found = {layer.digest: layer for _, part in sections(manifest) for layer in part.layers}
    return list(found.values())
