"""The paths below a copy directory, and how each file is checked.

====================================== ==================================================
`IDENTITY`                             whose directory it is (`coordinator.snapshot.identity`)
`reserve`                              space to be given up when the disk is full
`layers/<64 hexadecimal digits>.layer` a layer, named by the BLAKE3 of its bytes
`manifests/<20 digits>.manifest`       the manifest of that generation
`*.tmp`                                files in the making, removed at the next open
`LOCK`                                 held by the process that uses the directory
====================================== ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from coordinator.storage import StorageFile
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import (
    FRAME_BYTES,
    MANIFEST_BYTES_MAX,
    decode_manifest,
    layer_name,
    manifest_name,
)
from viewstamp.limits import MIB

READ_CHUNK_BYTES: Final = 1 * MIB
LAYERS: Final = "layers"
MANIFESTS: Final = "manifests"
RESERVE_FILE: Final = "reserve"
FOLDERS: Final = (LAYERS, MANIFESTS)

# Returns what is wrong with an open file, or None. May raise OSError: then it is unreadable.
Check: TypeAlias = Callable[[StorageFile], str | None]


def layer_file(digest: bytes) -> str:
    """Return the name of a layer below a copy directory."""
    return f"{LAYERS}/{layer_name(digest)}"


def manifest_file(generation: int) -> str:
    """Return the name of a manifest below a copy directory."""
    return f"{MANIFESTS}/{manifest_name(generation)}"


def chunks_of(file: StorageFile) -> Iterator[bytes]:
    """Yield the bytes of a file, up to READ_CHUNK_BYTES at a time."""
    for offset in range(0, file.size(), READ_CHUNK_BYTES):
        yield file.read(offset, READ_CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class DigestCheck:
    """A file is intact if it has this size and this BLAKE3."""

    digest: bytes
    size_bytes: int

    def __call__(self, file: StorageFile) -> str | None:
        """Return what is wrong, or None."""
        if file.size() != self.size_bytes:
            return f"has {file.size()} bytes, must have {self.size_bytes}"
        found = file_digest(chunks_of(file))
        if found != self.digest:
            return f"has digest {found.hex()}, must be {self.digest.hex()}"
        return None


def layer_check(reference: LayerReference) -> DigestCheck:
    """Return the check of a layer: size and digest are those of the reference."""
    return DigestCheck(reference.digest, reference.size_bytes)


def equality_check(data: bytes) -> Check:
    """Return the check of a file with exactly these bytes."""

    def check(file: StorageFile) -> str | None:
        if file.size() != len(data):
            return f"has {file.size()} bytes, must have {len(data)}"
        return None if file.read(0, len(data)) == data else "differs from what was written"

    return check


class ManifestCheck:
    """A manifest is intact if it decodes, and is of this cluster and generation.

    The first intact copy sets `manifest` and `data`; copies that differ are made equal to it, since
    only a defect can have written two.
    """

    def __init__(self, cluster_id: bytes, generation: int) -> None:
        self._cluster_id = cluster_id
        self._generation = generation
        self.data: bytes | None = None
        self.manifest: SnapshotManifest | None = None

    def __call__(self, file: StorageFile) -> str | None:
        """Return what is wrong, or None. Raises FormatVersionError for a later format, not
        damage."""
        data = file.read(0, FRAME_BYTES + MANIFEST_BYTES_MAX + 1)
        if self.data is not None:
            return None if data == self.data else "differs from an intact copy"
        try:
            manifest = decode_manifest(data)
        except FormatVersionError as error:
            raise FormatVersionError(f"{file.path}: {error}") from error
        except FormatError as error:
            return str(error)
        wrong = self._belongs_elsewhere(manifest)
        if wrong is None:
            self.data, self.manifest = data, manifest
        return wrong

    def _belongs_elsewhere(self, manifest: SnapshotManifest) -> str | None:
        if manifest.cluster_id != self._cluster_id:
            return (
                f"belongs to cluster {manifest.cluster_id.hex()}, must be {self._cluster_id.hex()}"
            )
        if manifest.generation != self._generation:
            return f"is of generation {manifest.generation}, must be of {self._generation}"
        return None
