"""The local work's way to the snapshot files: blocks and summaries in, layers and a manifest out.

What makes a generation fail, and no more than that, is turned into GenerationFailed here: a full
disk, a damaged block, a chain that is gone. A failed sync is none of these: it ends the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from coordinator.mux.catalog_types import TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot import writing
from coordinator.snapshot.errors import (
    AllCopiesBad,
    ConflictingManifest,
    CopyNotWritten,
    GenerationDamaged,
)
from coordinator.snapshot.files import GenerationWriter as FilesWriter
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.sections import GenerationFailed, SectionHead
from coordinator.snapshot.work import Durable, LocalCut
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import (
    LayerReference,
    SectionManifest,
    SnapshotManifest,
)
from viewstamp.format import FormatError
from viewstamp.format.block import Block
from viewstamp.format.manifest import MANIFEST_VERSION, root_of, section_of, sections

_log: Final = logging.getLogger(__name__)


class StoredGenerations:
    """Generations in the three copy directories (`work.GenerationFiles`)."""

    def __init__(self, files: SnapshotFiles, cluster_id: bytes) -> None:
        self._files = files
        self._cluster_id = cluster_id

    def find(self, generation: int) -> Durable | None:
        """Return a generation whose manifest is here. Raises GenerationFailed."""
        with _failing():
            manifest = self._files.stored_manifest(generation)
        return None if manifest is None else durable_of(manifest)

    def begin(self, cut: LocalCut) -> _GenerationWriter:
        """Begin to write a generation."""
        manifest = SnapshotManifest(
            format_version=MANIFEST_VERSION,
            cluster_id=self._cluster_id,
            generation=cut.taken.generation,
            cut_op=cut.taken.op,
            cut_revision=cut.taken.revision,
            view=cut.taken.view,
            timestamp=cut.taken.timestamp,
            cut_checksum=cut.checksum,
            feature_level=cut.taken.feature_level,
            parent_generation=cut.parent.generation,
            parent_root=cut.parent.root,
        )
        return _GenerationWriter(self._files, manifest)

    def delete(self, generation: int) -> None:
        """Delete the manifest, if there is one; layers that nobody names become garbage.

        What a disk does not let go of, which may be what the generation failed of, stays until a
        newer one is adopted: nobody asks for it any more.
        """
        try:
            self._files.delete(generation)
        except CopyNotWritten as error:
            self._files.begin(generation).discard()
            _log.warning("files of generation %d stay: %s", generation, error)


class _GenerationWriter:
    def __init__(self, files: SnapshotFiles, manifest: SnapshotManifest) -> None:
        self._files = files
        self._manifest = manifest
        self._writer: FilesWriter = files.begin(manifest.generation)
        # Sections come from several threads; the writer belongs to one at a time.
        self._mutex = threading.Lock()

    def section(self, stage: Stage, head: SectionHead) -> _SectionWriter:
        """Begin a section on the chain that it is a delta against. Raises GenerationFailed."""
        with _failing(), self._mutex:
            chain = self._chain(stage, head.base_generation)
            writer = self._writer.section(
                int(stage),
                section_version=head.section_version,
                feature_level=self._manifest.feature_level,
                base=chain,
            )
        return _SectionWriter(writer, chain, section_of(self._manifest, int(stage)), stage)

    def finish(self) -> bytes:
        """Write the manifest; return the root. Raises GenerationFailed."""
        with _failing(), self._mutex:
            self._manifest.root = root_of(self._manifest)
            return self._writer.write_manifest(self._manifest).root

    def _chain(self, stage: Stage, base_generation: int) -> list[LayerReference]:
        if base_generation == 0:
            return []
        base = self._files.written_manifest(base_generation)
        if base is None:
            raise GenerationFailed(
                f"the {stage.name.lower()} section is a delta against generation {base_generation},"
                " which is not stored here"
            )
        return self._files.chain(int(stage), section_of(base, int(stage)))


class _SectionWriter:
    """Writes a layer, and fills in the section of the manifest at its end."""

    def __init__(
        self,
        writer: writing.SectionWriter,
        chain: list[LayerReference],
        section: SectionManifest,
        stage: Stage,
    ) -> None:
        self._writer = writer
        self._chain = chain
        self._section = section
        self._stage = stage

    def append(self, block: domain_pb2.SectionBlock) -> None:
        """Write the next block. Raises GenerationFailed if it is damaged or out of order."""
        with _failing():
            self._writer.append(
                Block(
                    block.data,
                    block.entries,
                    block.tombstones,
                    block.raw_bytes,
                    (block.first_kind, block.first_key),
                    (block.last_kind, block.last_key),
                )
            )

    def finish(self, summary: domain_pb2.SectionSummary) -> TaskSnapshot:
        """Make the layer durable; a section without changes has none. Raises GenerationFailed."""
        with _failing():
            layers = [*self._chain, *self._own_layer()]
        self._section.CopyFrom(
            SectionManifest(
                version=summary.section_version,
                applied_revision=summary.applied_revision,
                state_digest=summary.state_digest,
                kinds=summary.kinds,
                layers=layers,
            )
        )
        return _task(self._stage, self._section)

    def discard(self) -> None:
        """Remove what was written."""
        self._writer.discard()

    def _own_layer(self) -> list[LayerReference]:
        if self._writer.entries:
            return [self._writer.finish()]
        self._writer.discard()
        return []


def durable_of(manifest: SnapshotManifest) -> Durable:
    """Return what the orchestrator knows of a generation that is stored."""
    return Durable(
        manifest.generation,
        manifest.cut_op,
        manifest.cut_checksum,
        manifest.root,
        tuple(_task(Stage(stage), section) for stage, section in sections(manifest)),
    )


def _task(stage: Stage, section: SectionManifest) -> TaskSnapshot:
    return TaskSnapshot(
        stage=stage,
        applied_revision=section.applied_revision,
        state_digest=section.state_digest,
        entities=sum(count.entities for count in section.kinds),
        size_bytes=sum(layer.size_bytes for layer in section.layers),
    )


@contextmanager
def _failing() -> Iterator[None]:
    """Turn what fails the generation alone into GenerationFailed."""
    try:
        yield
    except (
        AllCopiesBad,
        ConflictingManifest,
        CopyNotWritten,
        FormatError,
        GenerationDamaged,
    ) as error:
        raise GenerationFailed(str(error)) from error
