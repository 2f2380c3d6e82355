"""What the stages start from: the sections of the snapshot that the superblock names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from coordinator.mux.catalog_types import Entity, Restored
from coordinator.mux.stage import Stage
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.inner_sections import entities_of, is_rewritten
from coordinator.snapshot.restore import Loaded
from coordinator.snapshot.sections import SectionBase as Tallied
from coordinator.stages.base import InstalledSection
from viewstamp.api.snapshots.v1.manifest_pb2 import SectionManifest, SnapshotManifest
from viewstamp.format.digest import StateDigest
from viewstamp.format.manifest import section_of
from viewstamp.format.merge import merge

# Sections that the mux keeps; the others are installed into their services.
INNER_STAGES: Final = (Stage.SESSIONS, Stage.CATALOG)


def restored_mux(base: Loaded) -> Restored:
    """Return what a mux goes on from. Raises FormatVersionError; see `inner_sections`."""
    manifest = base.manifest
    return Restored(
        op=manifest.cut_op,
        revision=manifest.cut_revision,
        feature_level=manifest.feature_level,
        generation=manifest.generation,
        sessions=_entities(base, Stage.SESSIONS),
        catalog=_entities(base, Stage.CATALOG),
        rewritten=frozenset(
            stage for stage in INNER_STAGES if is_rewritten(stage, section_of(manifest, int(stage)))
        ),
    )


def restored_tallies(manifest: SnapshotManifest) -> Mapping[tuple[Stage, int], Tallied]:
    """Return what the mux's sections add up to, for the digests of the next cut."""
    return {
        (stage, manifest.generation): _tallied(section_of(manifest, int(stage)))
        for stage in INNER_STAGES
    }


def section_base(
    files: SnapshotFiles, manifest: SnapshotManifest, stage: Stage
) -> InstalledSection:
    """Return what a service is to start from. Its files are verified anew at each reading."""
    section = section_of(manifest, int(stage))
    return InstalledSection(
        generation=manifest.generation,
        revision=manifest.cut_revision,
        sequence=0,
        section_version=section.version,
        state_digest=section.state_digest,
        entities=sum(count.entities for count in section.kinds),
        layers=len(section.layers),
        blocks=lambda: _blocks(files, manifest.generation, stage),
    )


def _blocks(files: SnapshotFiles, generation: int, stage: Stage) -> Iterator[tuple[int, bytes]]:
    with files.load(generation) as loaded:
        yield from loaded.blocks(int(stage))


def _entities(base: Loaded, stage: Stage) -> Iterator[Entity]:
    layers = [layer.entries() for layer in base.layers[int(stage)]]
    section = section_of(base.manifest, int(stage))
    return entities_of(stage, section, merge(layers, keep_tombstones=False))


def _tallied(section: SectionManifest) -> Tallied:
    kinds = tuple((count.kind, count.entities) for count in section.kinds)
    return Tallied(StateDigest.from_bytes(section.state_digest).value, kinds)
