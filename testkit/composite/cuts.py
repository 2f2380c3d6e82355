"""Composite cuts: what was frozen at each, and replicas that start from what it adds up to."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from coordinator.mux import catalog_types as catalog
from coordinator.mux import types as mux
from coordinator.mux.catalog_types import Restored
from coordinator.mux.types import CutTaken, Stage
from coordinator.stages import catalog_codec
from services.runtime.domain import Domain
from services.runtime.installing import SectionInstallation
from services.runtime.machine import Machine
from testkit.composite.chains import ROOT, TASKS, Section, applied, entities_of
from testkit.frozen import changes_of
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.log.v1 import log_pb2
from viewstamp.format.block import BlockBuilder, compress
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.framing import frame

# The internal commands that no service describes.
CUT_ROUTES: Final = {
    code: mux.Route(code, Stage.CATALOG, internal=True)
    for code in (
        catalog_codec.BEGIN_SNAPSHOT_CODE,
        catalog_codec.COMPLETE_SNAPSHOT_CODE,
        catalog_codec.FAIL_SNAPSHOT_CODE,
    )
}


class Cuts:
    """The sections of every cut of one replica, put together from what was frozen."""

    def __init__(self) -> None:
        """Begin with generation 0, which is empty."""
        self.taken: dict[int, CutTaken] = {}
        self.sections: dict[tuple[int, Stage], Section] = {(0, stage): {} for stage in Stage}

    def take(self, cut: CutTaken, machines: dict[Stage, Machine[Any]]) -> None:
        """Take over a cut: each section is its base and what has changed since."""
        self.taken[cut.generation] = cut
        frozen: dict[Stage, Any] = {Stage.SESSIONS: cut.sessions, Stage.CATALOG: cut.catalog}
        frozen |= {stage: machine.freezer.frozen for stage, machine in machines.items()}
        for stage, section in frozen.items():
            assert section.generation == cut.generation, f"{stage.name} is not frozen"
            base = self.sections[section.base_generation, stage]
            changed = [change for change in changes_of(section) if change[2] != change[3]]
            self.sections[cut.generation, stage] = applied(base, changed)

    def restored(self, generation: int) -> Restored:
        """Return what a mux starts from."""
        cut = self.taken[generation]
        return Restored(
            cut.op,
            cut.revision,
            cut.feature_level,
            generation,
            entities_of(self.sections[generation, Stage.SESSIONS]),
            entities_of(self.sections[generation, Stage.CATALOG]),
        )

    def installed(self, generation: int, domain: Domain[Any], stage: Stage) -> Machine[Any]:
        """Return a machine that starts from its section, by way of blocks."""
        entities = entities_of(self.sections[generation, stage])
        tally = SectionTally()
        builder = BlockBuilder()
        blocks = []
        for kind, key, canonical in entities:
            tally.add((kind, key, None, canonical))
            builder.add(SectionEntry(kind, key, canonical))
            while builder.is_full:
                blocks.append(compress(builder.take_raw()).data)
        while builder.size_bytes:
            blocks.append(compress(builder.take_raw()).data)
        begin = pb.InstallBegin(
            generation=generation,
            revision=self.taken[generation].revision,
            section_version=domain.section.version,
            state_digest=tally.digest.to_bytes(),
            entities=len(entities),
            layers=1,
        )
        installation = SectionInstallation(domain, begin)
        for block in blocks:
            installation.add(pb.InstallBlock(layer=0, data=block))
        for _ in installation.loading():
            pass
        machine = Machine(domain)
        assert installation.installed is not None
        machine.activate(installation.installed)
        return machine


def begin(generation: int) -> log_pb2.LoggedRequest:
    """Return the cut of a generation, whose completion keeps the last two."""
    payload = catalog_codec.begin_snapshot_request(catalog.BeginSnapshot(generation, 2, 0))
    return _internal(catalog_codec.BEGIN_SNAPSHOT_CODE, payload)


def decide(generation: int, random: Random) -> log_pb2.LoggedRequest:
    """Return the completion of a generation, or now and then its failure."""
    if random.randrange(3):
        completed = catalog.CompleteSnapshot(generation, ROOT, TASKS)
        payload = catalog_codec.complete_snapshot_request(completed)
        return _internal(catalog_codec.COMPLETE_SNAPSHOT_CODE, payload)
    payload = catalog_codec.fail_snapshot_request(catalog.FailSnapshot(generation, "late"))
    return _internal(catalog_codec.FAIL_SNAPSHOT_CODE, payload)


def _internal(code: int, payload: bytes) -> log_pb2.LoggedRequest:
    """Return a request of the cluster's own."""
    system = limits.SYSTEM_USER_ID
    span = log_pb2.LoggedSpan(code=code, count=1, items=frame(payload), user_id=system)
    return log_pb2.LoggedRequest(session_id=limits.GATEWAY_SESSION_ID, spans=[span])
