"""The base of each stage: its section of the snapshot that the superblock names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from coordinator.mux.catalog_types import Restored
from coordinator.mux.stage import Stage, cut_services
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.inner_sections import entities_of, is_rewritten
from coordinator.snapshot.restore import Loaded
from coordinator.snapshot.sections import SectionBase as Tallied
from coordinator.stages.base import BaseExchangedError, InstalledSection
from viewstamp.api.snapshots.v1.manifest_pb2 import SectionManifest, SnapshotManifest
from viewstamp.format.digest import StateDigest
from viewstamp.format.manifest import section_of
from viewstamp.format.merge import merge
from viewstamp.machine.freezing import Entity

# Sections that the mux keeps; the others are installed into their services.
INNER_STAGES: Final = (Stage.SESSIONS, Stage.CATALOG)


def restored_mux(base: Loaded) -> Restored:
    """Return what a mux starts from. Raises FormatVersionError; see `inner_sections`."""
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
    """Return the tallies of the mux's sections, for the digests of the next cut."""
    return {
        (stage, manifest.generation): _tallied(section_of(manifest, int(stage)))
        for stage in INNER_STAGES
    }


def section_base(
    files: SnapshotFiles, manifest: SnapshotManifest, stage: Stage
) -> InstalledSection:
    """Return the base of a service. Its files are verified again at each reading."""
    section = section_of(manifest, int(stage))
    return InstalledSection(
        generation=manifest.generation,
        revision=manifest.cut_revision,
        sequence=0,
        section_version=section.version,
        state_digest=section.state_digest,
        entities=sum(count.entities for count in section.kinds),
        layers=len(section.layers),
        blocks=lambda: _blocks(files, manifest.generation, stage, len(section.layers)),
    )


def section_bases(
    files: SnapshotFiles, manifest: SnapshotManifest
) -> dict[Stage, InstalledSection]:
    """Return the base of each service that has a section. The others start empty."""
    stages = cut_services(manifest.feature_level)
    return {stage: section_base(files, manifest, stage) for stage in stages}


def _blocks(
    files: SnapshotFiles, generation: int, stage: Stage, layers: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of a section. Its layers may have been exchanged since it was announced."""
    with files.load(generation) as loaded:
        found = len(section_of(loaded.manifest, int(stage)).layers)
        if found != layers:
            raise BaseExchangedError(
                f"snapshot {generation} was announced to stage {int(stage)} with {layers} layers,"
                f" and has {found}"
            )
        yield from loaded.blocks(int(stage))


def _entities(base: Loaded, stage: Stage) -> Iterator[Entity]:
    layers = [layer.entries() for layer in base.layers[int(stage)]]
    section = section_of(base.manifest, int(stage))
    return entities_of(stage, section, merge(layers, keep_tombstones=False))


def _tallied(section: SectionManifest) -> Tallied:
    kinds = tuple((count.kind, count.entities) for count in section.kinds)
    return Tallied(StateDigest.from_bytes(section.state_digest).value, kinds)
