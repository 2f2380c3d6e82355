"""Writing one generation: a layer per section, then the manifest that names them all."""

from __future__ import annotations

import logging
from typing import Final

from coordinator.mux.catalog_types import TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot.errors import CopyNotWritten
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.section_writer import SectionWriter, reached_by
from coordinator.snapshot.sections import GenerationFailed, SectionHead
from coordinator.snapshot.work import Durable, LocalCut
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import (
    LayerReference,
    SectionManifest,
    SnapshotManifest,
)
from viewstamp.format.layer import LayerHeader
from viewstamp.format.manifest import MANIFEST_VERSION, root_of, section_of, sections

_log: Final = logging.getLogger(__name__)


class StoredGenerations:
    """Generations in the three copy directories (`work.GenerationFiles`)."""

    def __init__(self, files: SnapshotFiles, cluster_id: bytes) -> None:
        self._files = files
        self._cluster_id = cluster_id

    def find(self, generation: int) -> Durable | None:
        """Return a generation whose manifest is here. Raises NoIntactCopy."""
        manifest = self._files.stored_manifest(generation)
        return None if manifest is None else durable_of(manifest)

    def begin(self, cut: LocalCut) -> GenerationWriter:
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
        return GenerationWriter(self._files, manifest)

    def delete(self, generation: int) -> None:
        """Delete the manifest, if there is one; layers that nobody names become garbage.

        If the disk refuses, which may be why the generation failed, the manifest stays until a
        newer one is adopted: nobody asks for it any more.
        """
        try:
            self._files.delete(generation)
        except CopyNotWritten as error:
            self._files.release(generation)
            _log.warning("the files of generation %d could not be deleted: %s", generation, error)


class GenerationWriter:
    """A generation being written. Different threads may write its sections."""

    def __init__(self, files: SnapshotFiles, manifest: SnapshotManifest) -> None:
        """`manifest` names the cut; its sections and its root are filled in here."""
        self._files = files
        self._manifest = manifest
        self._chains: dict[Stage, list[LayerReference]] = {}
        self._sections: dict[Stage, SectionManifest] = {}

    def section(self, stage: Stage, head: SectionHead) -> SectionWriter:
        """Begin a section, or begin it again. Does not block.

        The writer also raises GenerationFailed if the chain that it continues is not here.
        """
        return self._files.section_writer(
            self._manifest.generation, int(stage), lambda: self._header(stage, head)
        )

    def finish_section(
        self, stage: Stage, section: SectionWriter, summary: domain_pb2.SectionSummary
    ) -> TaskSnapshot:
        """Make a layer durable; a section without changes has none."""
        section.begin()
        own = [section.finish()] if section.entries else []
        found = self._sections[stage] = SectionManifest(
            version=summary.section_version,
            applied_revision=summary.applied_revision,
            state_digest=summary.state_digest,
            kinds=summary.kinds,
            layers=[*self._chains[stage], *own],
        )
        return _task(stage, found)

    def finish(self) -> bytes:
        """Write the manifest, once every section is finished; return the root."""
        for stage, section in self._sections.items():
            section_of(self._manifest, int(stage)).CopyFrom(section)
        self._manifest.root = root_of(self._manifest)
        return self._files.write_manifest(self._manifest).root

    def _header(self, stage: Stage, head: SectionHead) -> LayerHeader:
        chain = self._chains[stage] = self._chain(stage, head.base_generation)
        return LayerHeader(
            cluster_id=self._manifest.cluster_id,
            stage=int(stage),
            section_version=head.section_version,
            generation=self._manifest.generation,
            base_generation=reached_by(chain),
            feature_level=self._manifest.feature_level,
        )

    def _chain(self, stage: Stage, base_generation: int) -> list[LayerReference]:
        """Return the layers to continue, which stay until the generation is durable or given up."""
        if base_generation == 0:
            return []
        base = self._files.written_manifest(base_generation)
        if base is None:
            raise GenerationFailed(
                f"the {stage.name.lower()} section is a delta against generation {base_generation},"
                " which is not stored here"
            )
        section = section_of(base, int(stage))
        return self._files.keep_chain(self._manifest.generation, int(stage), section)


def durable_of(manifest: SnapshotManifest) -> Durable:
    """Return what the orchestrator knows of a stored generation."""
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
