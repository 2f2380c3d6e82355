"""Cuts, releases and restarts of any domain's machine, checked against a walk of its whole state.

Like a coordinator, a `SnapshotTrial` keeps all batches, and the layers that it read.
`SnapshotsCaller` adds it to a Hypothesis machine that already feeds a domain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from services.runtime.domain import Domain
from services.runtime.installing import SectionInstallation
from services.runtime.isolation import Isolation
from services.runtime.machine import AnsweredQueries, Machine
from services.runtime.queries import ENDLESS, Patience
from services.runtime.reading import SectionReading
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format.block import decode_block
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionEntry
from viewstamp.limits import FEATURE_LEVEL_MAX
from viewstamp.machine import freezing
from viewstamp.machine.freezing import ROWS_COPIED_PER_LOOK, Entity

_COMPRESSION = ThreadPoolExecutor(1)


class RecordedMachine(Machine[Any]):
    """A machine that remembers its logged batches and the answers."""

    def __init__(self, domain: Domain[Any]) -> None:
        """Start from the empty state."""
        super().__init__(domain)
        self.log: list[tuple[pb.Batch, bytes]] = []

    def apply(
        self,
        batch: pb.Batch,
        patience: Patience = ENDLESS,
        isolation: Isolation | None = None,
    ) -> AnsweredQueries:
        """Apply and remember."""
        applied = super().apply(batch, patience, isolation)
        if batch.sequence:
            answer = applied.reply.SerializeToString(deterministic=True)
            self.log.append((pb.Batch.FromString(batch.SerializeToString()), answer))
        return applied


@dataclass
class Cut:
    """The state at a cut, and the layer that was read of it."""

    sequence: int
    revision: int
    entities: list[Entity]
    digest: bytes
    summary: pb.SectionSummary | None = None
    blocks: list[bytes] = field(default_factory=list)


class SnapshotTrial:
    """The snapshots of one machine. `machine` is another one after a restart."""

    def __init__(self, domain: Domain[Any]) -> None:
        """Start with an empty machine."""
        self.machine = RecordedMachine(domain)
        self.cuts: dict[int, Cut] = {}

    @property
    def readable(self) -> list[int]:
        """The generations that were read, ascending."""
        return sorted(g for g, cut in self.cuts.items() if cut.summary is not None)

    def cut(self, rows_per_look: int = ROWS_COPIED_PER_LOOK) -> None:
        """Take a cut; a table is copied where it has fewer rows than this for each changed one."""
        machine = self.machine
        generation = max(self.cuts, default=0) + 1
        item = pb.Item(cut=pb.CutItem(generation=generation))
        batch = pb.Batch(
            sequence=machine.sequence + 1, feature_level=FEATURE_LEVEL_MAX, items=[item]
        )
        with patch.object(freezing, "ROWS_COPIED_PER_LOOK", rows_per_look):
            (outcome,) = machine.apply(batch).reply.outcomes
        assert outcome.WhichOneof("kind") == "done"
        entities = list(machine.domain.section.entities(machine.state))
        digest = machine.state_digest()
        self.cuts[generation] = Cut(machine.sequence, machine.revision, entities, digest)

    def release(self, generation: int) -> None:
        """Release a generation, frozen or not, and free what nobody needs any more."""
        released = self.machine.freezer.release(generation)
        if released is not None:
            for _ in released.forget():
                pass

    def read(self) -> None:
        """Read the section that is frozen; it must be that of its cut, however late it is read."""
        frozen = self.machine.freezer.frozen
        if frozen is None:
            return
        cut = self.cuts[frozen.generation]
        cut.blocks, cut.summary = asyncio.run(read_section(self.machine))
        assert cut.summary.generation == frozen.generation
        assert cut.summary.state_digest == cut.digest
        counts = {count.kind: count.entities for count in cut.summary.kinds}
        kinds = [kind for kind, _, _ in cut.entities]
        assert counts == {kind: kinds.count(kind) for kind in kinds}
        self._check_layer(cut)

    def restart(self, generation: int) -> None:
        """Go on with a new machine, made of a generation that was read and of the later batches."""
        old, cut = self.machine, self.cuts[generation]
        machine = RecordedMachine(old.domain)
        install(machine, generation, cut, self.layers(generation))
        assert list(machine.domain.section.entities(machine.state)) == cut.entities
        machine.log = [
            (batch, answer) for batch, answer in old.log if batch.sequence <= cut.sequence
        ]
        for batch, answer in old.log[len(machine.log) :]:
            machine.apply(batch)
            assert machine.log[-1][1] == answer, "the same batch was answered otherwise"
        assert machine.state_digest() == old.state_digest()
        assert machine.sequence == old.sequence
        self.machine = machine

    def layers(self, generation: int) -> list[list[bytes]]:
        """Return the blocks of each layer of a generation's chain, base first."""
        chain: list[list[bytes]] = []
        while generation:
            cut = self.cuts[generation]
            assert cut.summary is not None, "a delta is against what was read"
            chain.insert(0, list(cut.blocks))
            generation = cut.summary.base_generation
        return chain

    def _check_layer(self, cut: Cut) -> None:
        """The chain up to the base, and the layer, are the entities; no entry says nothing new."""
        assert cut.summary is not None
        base = merged(self.layers(cut.summary.base_generation))
        assert merged([*self.layers(cut.summary.base_generation), cut.blocks]) == cut.entities
        known = {(kind, key): canonical for kind, key, canonical in base}
        for entry in entries(cut.blocks):
            assert known.get((entry.kind, entry.key)) != entry.canonical


async def read_section(machine: Machine[Any]) -> tuple[list[bytes], pb.SectionSummary]:
    """Return the blocks and the summary of the frozen section."""
    frozen = machine.freezer.frozen
    assert frozen is not None
    version = machine.domain.section.version
    reading = SectionReading(machine.freezer, frozen, version, _COMPRESSION, lambda: True)
    *blocks, last = [response async for response in reading.responses()]
    assert last.WhichOneof("kind") == "summary"
    return [response.block.data for response in blocks], last.summary


def install(
    machine: Machine[Any], generation: int, cut: Cut, layers: Sequence[Sequence[bytes]]
) -> pb.Installed:
    """Install layers into a machine, and return its report to the coordinator."""
    begin = pb.InstallBegin(
        generation=generation,
        revision=cut.revision,
        sequence=cut.sequence,
        section_version=machine.domain.section.version,
        state_digest=cut.digest,
        entities=len(cut.entities),
        layers=len(layers),
    )
    installation = SectionInstallation(machine.domain, begin)
    for layer, blocks in enumerate(layers):
        for data in blocks:
            installation.add(pb.InstallBlock(layer=layer, data=data))
    for _ in installation.loading():
        pass
    assert installation.installed is not None
    machine.activate(installation.installed)
    return installation.installed.answer()


def entries(blocks: Sequence[bytes]) -> list[SectionEntry]:
    """Return the entries of a layer."""
    return [entry for data in blocks for entry in decode_block(data)]


def merged(layers: Sequence[Sequence[bytes]]) -> list[Entity]:
    """Return the entities of a chain of layers."""
    found = merge([entries(blocks) for blocks in layers], keep_tombstones=False)
    return [(kind, key, canonical) for kind, key, canonical in found if canonical is not None]


class SnapshotsCaller:
    """Rules for a Hypothesis machine: cuts, late reads, releases and restarts at any moment."""

    trial: SnapshotTrial
    took_over: Callable[[Machine[Any]], None]

    def begin_snapshots(
        self, domain: Domain[Any], took_over: Callable[[Machine[Any]], None]
    ) -> None:
        """Start with an empty machine; `took_over` gets it, and every later one.

        Commands must go to the machine that it got last.
        """
        self.trial = SnapshotTrial(domain)
        self.took_over = took_over
        took_over(self.trial.machine)

    @rule(is_read=st.booleans(), is_released=st.booleans(), is_copied=st.booleans())
    def cut(self, is_read: bool, is_released: bool, is_copied: bool) -> None:
        """Take a cut, of whole tables or row by row, and perhaps read and release it at once."""
        self.trial.cut(rows_per_look=ROWS_COPIED_PER_LOOK if is_copied else 0)
        if is_read:
            self.trial.read()
            if is_released:
                self.trial.release(max(self.trial.cuts))

    @precondition(lambda self: self.trial.cuts)
    @rule()
    def read_late(self) -> None:
        """Read the frozen section, some commands later."""
        self.trial.read()

    @precondition(lambda self: self.trial.readable)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Release a generation that was read, even by an earlier machine or long ago."""
        self.trial.release(data.draw(st.sampled_from(self.trial.readable)))

    @precondition(lambda self: self.trial.readable)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """Go on with a machine made of any generation."""
        self.trial.restart(data.draw(st.sampled_from(self.trial.readable)))
        self.took_over(self.trial.machine)
