"""Taking in a generation of another replica: its layers, then its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from coordinator.snapshot.copies import CopyDirectories
from coordinator.snapshot.errors import ConflictingManifest, NoIntactCopy
from coordinator.snapshot.garbage import Pins
from coordinator.snapshot.layout import LAYERS, layer_check, layer_file
from coordinator.snapshot.writer_process import FileWriter
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format.manifest import sections


class IncomingGeneration:
    """Keeps its files until `close`; after `finish` the generation is like one made here.

    All methods block. Layers may be added in any order.
    """

    def __init__(
        self,
        copies: CopyDirectories,
        writer: FileWriter,
        manifest: SnapshotManifest,
        pins: Pins,
        write: Callable[[SnapshotManifest], None],
        ended: Callable[[int], None],
        use_reserve: bool,
    ) -> None:
        """Use `SnapshotFiles.incoming`."""
        self.manifest = manifest
        self._copies = copies
        self._writer = writer
        self._pins = pins
        self._write = write
        self._ended = ended
        self._use_reserve = use_reserve
        pins.add_generation(self, manifest)

    def lacking(self) -> list[LayerReference]:
        """Return the layers without an intact copy here; repair bad copies of the others."""
        references = {
            reference.digest: reference
            for _, section in sections(self.manifest)
            for reference in section.layers
        }
        return [reference for reference in references.values() if not self._holds(reference)]

    def _holds(self, reference: LayerReference) -> bool:
        name = layer_file(reference.digest)
        if not self._copies.has(name):
            return False
        try:
            self._copies.scrub(name, layer_check(reference))
        except NoIntactCopy:
            return False
        return True

    def add_layer(self, reference: LayerReference, chunks: Iterable[bytes]) -> None:
        """Return once a layer is durable and verified, by its digest, in every directory.

        Raises SnapshotNoSpace, after the reserve is given up if it may be, CopyNotWritten and
        CopiesFailed.
        """
        label = f"{LAYERS}/incoming-{reference.digest.hex()}"
        key = self._writer.stage(label, use_reserve=self._use_reserve)
        try:
            for chunk in chunks:
                self._writer.append(key, chunk)
            self._writer.place(key, layer_file(reference.digest), layer_check(reference))
        finally:
            self._writer.discard(key)

    def finish(self) -> None:
        """Return once the generation is durable here, read back as a whole and verified.

        Raises GenerationDamaged, NoIntactCopy, and what `SnapshotFiles.write_manifest` does.
        """
        self._write(self.manifest)

    def close(self) -> None:
        """Stop keeping it, so that it can be deleted like any other. Closing twice is harmless."""
        with self._pins.mutex:
            self._ended(self.manifest.generation)
            self._pins.release(self)


def check_same_history(
    stored: SnapshotManifest, other: SnapshotManifest, *, is_adopted: bool
) -> None:
    """Raise ConflictingManifest if no cluster can have made both manifests of a generation.

    One cut has one root. A manifest of another cut may be of an entry that was never committed,
    unless this replica restarts from it.
    """
    if stored.cut_checksum != other.cut_checksum:
        if is_adopted:
            raise ConflictingManifest(
                f"generation {stored.generation}, which this replica restarts from, was cut at op"
                f" {stored.cut_op} by entry {stored.cut_checksum.hex()}, but another replica has it"
                f" of op {other.cut_op} by entry {other.cut_checksum.hex()}: {_ONE_HAS_DIVERGED}"
            )
    elif stored.root != other.root:
        raise ConflictingManifest(
            f"generation {stored.generation} is stored with root {stored.root.hex()}, but another"
            f" replica has {other.root.hex()} of the same cut: {_ONE_HAS_DIVERGED}"
        )


_ONE_HAS_DIVERGED: Final = (
    "one of them has diverged. Keep this replica's directory for whoever looks for the reason"
)
