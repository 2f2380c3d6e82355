"""A snapshot on its way in, block by block, and the state that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from coordinator.mux.catalog_types import Restored
from coordinator.mux.stage import Stage, cut_services
from coordinator.snapshot.bases import INNER_STAGES
from coordinator.snapshot.inner_sections import entities_of
from past.domains import DOMAINS
from past.state import PastState
from services.runtime.installing import Installed, SectionInstallation
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.block import decode_block
from viewstamp.format.manifest import section_of
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionEntry
from viewstamp.machine.freezing import Entity


class ArrivingSnapshot:
    """The blocks of one generation, until `state` makes the state of its cut from them."""

    def __init__(self, manifest: SnapshotManifest) -> None:
        """Begin without blocks. Raises NewerSectionError, FormatVersionError."""
        self._manifest: Final = manifest
        self._inner: dict[Stage, list[list[bytes]]] = {
            stage: [[] for _ in section_of(manifest, int(stage)).layers] for stage in INNER_STAGES
        }
        self._installations = {
            stage: SectionInstallation(DOMAINS[stage], _begin(manifest, stage))
            for stage in cut_services(manifest.feature_level)
        }

    def add(self, stage: Stage, layer: int, blocks: Iterable[bytes]) -> None:
        """Take blocks of a layer, in order."""
        if stage in self._inner:
            self._inner[stage][layer].extend(blocks)
            return
        for block in blocks:
            self._installations[stage].add(pb.InstallBlock(layer=layer, data=block))

    def state(self) -> PastState:
        """Return the state of the cut. Raises SectionContentsError, RestoreError, FormatError."""
        manifest = self._manifest
        restored = Restored(
            op=manifest.cut_op,
            revision=manifest.cut_revision,
            feature_level=manifest.feature_level,
            generation=manifest.generation,
            sessions=self._entities(Stage.SESSIONS),
            catalog=self._entities(Stage.CATALOG),
        )
        sections = {stage: _loaded(each) for stage, each in self._installations.items()}
        return PastState(restored, sections, manifest.timestamp, manifest.cut_checksum)

    def _entities(self, stage: Stage) -> Iterator[Entity]:
        layers = [_entries(blocks) for blocks in self._inner[stage]]
        section = section_of(self._manifest, int(stage))
        return entities_of(stage, section, merge(layers, keep_tombstones=False))


def _begin(manifest: SnapshotManifest, stage: Stage) -> pb.InstallBegin:
    section = section_of(manifest, int(stage))
    return pb.InstallBegin(
        generation=manifest.generation,
        revision=manifest.cut_revision,
        section_version=section.version,
        state_digest=section.state_digest,
        entities=sum(count.entities for count in section.kinds),
        layers=len(section.layers),
    )


def _loaded(installation: SectionInstallation[Any]) -> Installed[Any]:
    for _ in installation.loading():
        pass
    assert installation.installed is not None, "loading has ended"
    return installation.installed


def _entries(blocks: list[bytes]) -> Iterator[SectionEntry]:
    """Yield the entries of a layer's blocks, and let go of each block."""
    blocks.reverse()
    while blocks:
        yield from decode_block(blocks.pop())
