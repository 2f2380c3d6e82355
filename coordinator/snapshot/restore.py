"""Reading a generation back: every copy of every file is verified before any is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from coordinator.snapshot.copies import CopiesFile, CopyDirectories
from coordinator.snapshot.errors import GenerationDamaged
from coordinator.snapshot.layout import (
    ManifestCheck,
    layer_check,
    layer_file,
    manifest_file,
)
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.layer import LayerReader
from viewstamp.format.manifest import check_layer_belongs, sections


class StoredLayer(LayerReader):
    """A layer that is read block by block from an intact copy."""

    def __init__(self, file: CopiesFile) -> None:
        """Read and verify header and index. Raises FormatError, NoIntactCopy."""
        self._file = file
        super().__init__(file.read, file.size_bytes)

    def read_block(self, index: int) -> bytes:
        """Return a block as stored, verified but not decompressed. Raises NoIntactCopy.

        The file was verified as a whole when it was opened. A block damaged since is read from the
        next copy.
        """
        while True:
            try:
                return super().read_block(index)
            except FormatVersionError:
                raise
            except FormatError as error:
                self._file.give_up_copy(str(error))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_layer(copies: CopyDirectories, reference: LayerReference) -> StoredLayer:
    """Verify and repair a layer, and open it. Raises NoIntactCopy, FormatError."""
    file = copies.open(layer_file(reference.digest), layer_check(reference))
    try:
        return StoredLayer(file)
    except BaseException:
        file.close()
        raise


def read_manifest(copies: CopyDirectories, cluster_id: bytes, generation: int) -> SnapshotManifest:
    """Return a manifest, all its copies repaired and equal. Raises NoIntactCopy."""
    check = ManifestCheck(cluster_id, generation)
    copies.scrub(manifest_file(generation), check)
    assert check.manifest is not None
    return check.manifest


class Loaded:
    """A generation, open for reading. Its layers stay in place until `close`."""

    def __init__(
        self,
        manifest: SnapshotManifest,
        layers: Mapping[int, Sequence[StoredLayer]],
        release: Callable[[], None],
    ) -> None:
        """Use `SnapshotFiles.load`."""
        self.manifest = manifest
        self.layers = layers
        """By stage number, base first."""
        self._release = release

    def blocks(self, stage: int) -> Iterator[tuple[int, bytes]]:
        """Yield the index of the layer and the block as stored, for InstallBlock, base first."""
        for number, layer in enumerate(self.layers[stage]):
            for index in range(len(layer.blocks)):
                yield number, layer.read_block(index)

    def close(self) -> None:
        """Close the files. Closing twice is harmless."""
        close_layers(self.layers)
        self._release()

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_sections(
    copies: CopyDirectories, manifest: SnapshotManifest
) -> dict[int, list[StoredLayer]]:
    """Verify, repair and open every layer of every chain.

    Raises NoIntactCopy, and GenerationDamaged for a layer that does not match the manifest.
    """
    opened: dict[int, list[StoredLayer]] = {}
    try:
        for stage, section in sections(manifest):
            chain = opened[stage] = []
            for reference in section.layers:
                chain.append(open_layer(copies, reference))
                check_layer_belongs(manifest, stage, reference, chain[-1])
    except BaseException as error:
        close_layers(opened)
        if isinstance(error, FormatError) and not isinstance(error, FormatVersionError):
            raise GenerationDamaged(manifest.generation, [str(error)]) from error
        raise
    return opened


def close_layers(layers: Mapping[int, Sequence[StoredLayer]]) -> None:
    """Close all layers."""
    for chain in layers.values():
        for layer in chain:
            layer.close()
