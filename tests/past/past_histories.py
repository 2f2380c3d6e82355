"""Random histories of all domains as a journal holds them, and snapshots as files hold them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from coordinator.mux.stage import SERVICE_STAGES, Stage, cut_stages
from coordinator.snapshot.inner_sections import VERSIONS
from past.domains import DOMAINS
from past.sections import ArrivingSnapshot
from past.state import PastState
from testkit.composite.chains import entities_of
from testkit.composite.cuts import Cuts
from testkit.logged_requests import decode_requests
from tests.composite.trial import CompositeTrial
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format.block import compress, raw_blocks
from viewstamp.format.manifest import section_of
from viewstamp.format.prepare import NO_PARENT, SealedPrepare, seal
from viewstamp.format.section import SectionEntry, SectionTally

CLUSTER_ID = bytes(16)


def history(random: Random, prepares: int) -> CompositeTrial:
    """Return a history that was executed, with reads behind its entries."""
    trial = CompositeTrial(random)
    trial.run(prepares)
    return trial


def sealed(trial: CompositeTrial) -> list[SealedPrepare]:
    """Return the entries of a history."""
    entries: list[SealedPrepare] = []
    revision = 0
    for op, (timestamp, body, level) in enumerate(trial.log, start=1):
        commands = sum(span.count for r in decode_requests(body) for span in r.spans)
        entries.append(
            seal(
                parent=entries[-1].checksum if entries else NO_PARENT,
                cluster_id=CLUSTER_ID,
                view=1,
                op=op,
                commit=op - 1,
                first_revision=revision + 1,
                command_count=commands,
                feature_level=level,
                timestamp=timestamp,
                body=body,
            )
        )
        revision += commands
    return entries


def manifest_of(cuts: Cuts, generation: int, checksum: bytes) -> SnapshotManifest:
    """Return the manifest of a cut behind an entry, whose sections have one layer each."""
    cut = cuts.taken[generation]
    manifest = SnapshotManifest(
        generation=generation,
        cut_op=cut.op,
        cut_revision=cut.revision,
        feature_level=cut.feature_level,
        cut_checksum=checksum,
    )
    for stage in cut_stages(cut.feature_level):
        tally = SectionTally()
        for kind, key, canonical in entities_of(cuts.sections[generation, stage]):
            tally.add((kind, key, None, canonical))
        section = section_of(manifest, int(stage))
        section.version = (
            DOMAINS[stage].section.version if stage in SERVICE_STAGES else VERSIONS[stage]
        )
        section.state_digest = tally.digest.to_bytes()
        section.kinds.extend(
            pb.KindCount(kind=k, entities=n) for k, n in sorted(tally.kinds.items())
        )
        section.layers.append(LayerReference(generation=generation))
    return manifest


def blocks_of(cuts: Cuts, generation: int, stage: Stage) -> Iterator[bytes]:
    """Yield the blocks of a section, as its one layer has them."""
    entities = entities_of(cuts.sections[generation, stage])
    for raw in raw_blocks(SectionEntry(*entity) for entity in entities):
        yield compress(raw).data


def state_of_cut(cuts: Cuts, generation: int, entries: list[SealedPrepare]) -> PastState:
    """Return the state of a cut, by way of its manifest and blocks."""
    checksum = entries[cuts.taken[generation].op - 1].checksum
    manifest = manifest_of(cuts, generation, checksum)
    arriving = ArrivingSnapshot(manifest)
    for stage in cut_stages(manifest.feature_level):
        for block in blocks_of(cuts, generation, stage):
            arriving.add(stage, 0, [block])
    return arriving.state()
