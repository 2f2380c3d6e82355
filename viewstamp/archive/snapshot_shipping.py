"""A snapshot on its way to an archive: layer by layer, so that the log goes on between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from blake3 import blake3

from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference
from viewstamp.archive.archive_errors import PieceDamaged, PieceMissing
from viewstamp.archive.archive_objects import (
    ArchiveObjects,
    archived_layer_name,
    snapshot_name,
)
from viewstamp.archive.archive_reading import layers_of, read_snapshot_manifest
from viewstamp.format import FormatError
from viewstamp.format.archive_manifest import ArchivedSnapshot, ArchiveManifest
from viewstamp.format.manifest import encode_manifest, sections
from viewstamp.snapshots.copies import Copies, LayerFile
from viewstamp.snapshots.generation import Generation

_STORED_NAME: Final = "layer-to-store"


class SnapshotShipping:
    """Ships one generation. All its files are open from the beginning, so none gets lost."""

    def __init__(
        self,
        objects: ArchiveObjects,
        copies: Copies,
        generation: int,
        work: Path,
        stored: set[bytes],
    ) -> None:
        """Verify all files whole, from the first good copy of each.

        `work` is a directory for one encrypted layer. `stored` has the digests of layers that this
        process has stored before, and gets those that it stores. Raises SnapshotFilesError.
        """
        self._stored = stored
        self._objects = objects
        self._work = work
        self._generation = Generation(copies, generation)
        self._manifest = self._generation.manifest
        self._stack = ExitStack()
        try:
            self._layers = {
                stage: self._generation.opened_layers(stage, self._stack)
                for stage, _ in sections(self._manifest)
            }
        except BaseException:
            self._stack.close()
            raise

    @property
    def number(self) -> int:
        """The generation."""
        return self._manifest.generation

    @property
    def cut_op(self) -> int:
        """The op of its cut."""
        return self._manifest.cut_op

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def ship(
        self, newest: ArchiveManifest | None, between: Callable[[], object]
    ) -> tuple[ArchivedSnapshot, int]:
        """Store layers and manifest; return what the archive's manifest says of it, and the bytes.

        A layer that a snapshot of the newest manifest has is there already. Raises ArchiveError.
        """
        there = self._layers_there(newest) | self._stored
        shipped_bytes = 0
        done: set[bytes] = set()
        for layer, reference in self._files():
            if reference.digest in done:
                continue
            done.add(reference.digest)
            if reference.digest not in there or not self._objects.has_layer(reference):
                shipped_bytes += self._store(layer, archived_layer_name(reference))
                self._stored.add(reference.digest)
                between()
        return self._store_manifest(shipped_bytes)

    def _files(self) -> Iterator[tuple[LayerFile, LayerReference]]:
        for stage, part in sections(self._manifest):
            yield from zip(self._layers[stage], part.layers, strict=True)

    def _layers_there(self, newest: ArchiveManifest | None) -> set[bytes]:
        """Return the digests of layers that nobody will delete meanwhile."""
        if newest is None or not newest.snapshots:
            return set()
        try:
            before = read_snapshot_manifest(self._objects, newest.snapshots[-1])
        except (PieceMissing, PieceDamaged, FormatError):
            return set()  # all are stored once more, and this snapshot bridges that one's loss
        return {layer.digest for layer in layers_of(before)}

    def _store(self, layer: LayerFile, name: str) -> int:
        """Store a layer; return the bytes of it."""
        path = self._work / _STORED_NAME
        try:
            with layer.content() as source, path.open("wb") as target:
                self._objects.sealing.seal_file(source, target)
            self._objects.store.put_file(name, path)
            stored_bytes = path.stat().st_size
        finally:
            path.unlink(missing_ok=True)
        self._objects.check_stored(name, stored_bytes)
        return stored_bytes

    def _store_manifest(self, shipped_bytes: int) -> tuple[ArchivedSnapshot, int]:
        manifest = self._manifest
        stored = self._objects.sealing.sealed(encode_manifest(manifest))
        snapshot = ArchivedSnapshot(
            generation=manifest.generation,
            cut_op=manifest.cut_op,
            cut_revision=manifest.cut_revision,
            timestamp=manifest.timestamp,
            total_bytes=sum(layer.size_bytes for layer in layers_of(manifest)),
            stored_bytes=len(stored),
            cut_checksum=manifest.cut_checksum,
            digest=blake3(stored).digest(),
        )
        self._objects.put_checked(snapshot_name(snapshot), stored)
        return snapshot, shipped_bytes + len(stored)
