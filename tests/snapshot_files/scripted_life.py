"""One replica's directory, lived in: journal, superblock and snapshot files under the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.journal import Journal, Superblock, SuperblockState
from coordinator.snapshot.compaction import CompactorHere
from coordinator.snapshot.copies import CopyVerdict
from coordinator.snapshot.files import GenerationWriter, SnapshotDirectories, SnapshotFiles
from tests.journal.builders import CLUSTER_ID, SEGMENT_BYTES, chain, prepare
from tests.journal.memory_storage import MemoryStorage
from tests.snapshot_files.scripted_machine import (
    SCRIPT,
    STAGES,
    Machine,
    Op,
    State,
    Verb,
    cut_op,
    machine_at,
)
from viewstamp.api.domain.v1.domain_service_pb2 import KindCount
from viewstamp.api.snapshots.v1.manifest_pb2 import SectionManifest, SnapshotManifest
from viewstamp.format.block import BlockBuilder, compress
from viewstamp.format.manifest import root_of, section_of
from viewstamp.format.merge import merge
from viewstamp.format.prepare import NO_PARENT, Prepare
from viewstamp.format.section import SectionTally

COPY_DIRECTORIES = ("copies/a", "copies/b", "copies/c")
DIRECTORIES = SnapshotDirectories(COPY_DIRECTORIES, CLUSTER_ID, 0)
RESERVE_BYTES_MIN = 4096
ENTRIES_PER_BLOCK = 3
SUPERBLOCK = "data/superblock"
FIRST = SuperblockState(CLUSTER_ID, 0, 1, view=1, log_view=1, commit_max=0, generation=0)


@dataclass
class Witness:
    """What was promised to the outside, whatever happens to the process."""

    acknowledged_op: int = 0
    adopted: int = 0
    repaired: list[str] = field(default_factory=list)


def open_files(storage: MemoryStorage, witness: Witness | None = None) -> SnapshotFiles:
    """The snapshot files of the test's replica."""
    seen = Witness() if witness is None else witness

    def report(name: str, verdicts: Sequence[CopyVerdict]) -> None:
        assert all(each.is_intact for each in verdicts), [str(each) for each in verdicts]
        seen.repaired.append(name)

    return SnapshotFiles(
        storage,
        DIRECTORIES,
        report=report,
        reserve_bytes_min=RESERVE_BYTES_MIN,
        compactor=CompactorHere(),
    )


def state_of(files: SnapshotFiles, generation: int) -> tuple[SnapshotManifest, State]:
    """What a generation holds."""
    with files.load(generation) as loaded:
        state: State = {
            stage: {
                (kind, key): canonical
                for kind, key, canonical in merge(
                    [layer.entries() for layer in layers], keep_tombstones=False
                )
                if canonical is not None
            }
            for stage, layers in loaded.layers.items()
        }
        return loaded.manifest, state


class Life:
    """One process: it opens what is there, replays, and goes on with the script."""

    def __init__(self, storage: MemoryStorage, witness: Witness) -> None:
        """Open and replay."""
        self.storage = storage
        self.witness = witness
        storage.make_directory("data")
        storage.make_directory("copies")
        self.machine = Machine()
        self.adopted: SnapshotManifest | None = None
        self._writer: GenerationWriter | None = None
        self.files = open_files(storage, witness)
        self._open_replica()
        self._replay()

    # --- Opening ---

    def _open_replica(self) -> None:
        found = self.storage.exists(SUPERBLOCK)
        if found:
            self.superblock = Superblock.open(self.storage, SUPERBLOCK)
            self._install(self.superblock.state.generation)
            self._open_journal()
        else:
            self.journal, _ = Journal.create(
                self.storage,
                "data/journal",
                cluster_id=CLUSTER_ID,
                replica_id=0,
                replica_count=1,
                segment_bytes=SEGMENT_BYTES,
                entropy=bytes,
            )
            self.superblock = Superblock.create(self.storage, SUPERBLOCK, FIRST)

    def _open_journal(self) -> None:
        state = self.superblock.state
        self.journal, recovery = Journal.open(
            self.storage,
            "data/journal",
            cluster_id=CLUSTER_ID,
            replica_id=0,
            replica_count=1,
            commit_max=state.commit_max,
            log_view=state.log_view,
            replay_op=self.machine.op + 1,
            segment_bytes=SEGMENT_BYTES,
        )
        assert recovery.faults == ()

    def _install(self, generation: int) -> None:
        """Start from a generation, which must be what the log led to."""
        assert generation >= self.witness.adopted
        if not generation:
            return
        self.adopted, state = state_of(self.files, generation)
        self.machine = machine_at(cut_op(generation))
        assert state == self.machine.state
        assert self.adopted.cut_op == self.machine.op
        self.machine.base, self.machine.base_generation = state, generation
        self.machine.frozen = {}

    def _replay(self) -> None:
        head_op = self.journal.head.op if self.journal.head else 0
        assert head_op >= self.witness.acknowledged_op
        for each in self.journal.iterate(self.machine.op + 1):
            assert each.body == SCRIPT[each.op - 1].body
            self._apply(SCRIPT[each.op - 1])
        assert self.machine.op == head_op
        assert self.machine.state == machine_at(head_op).state
        assert self.machine.completed == machine_at(head_op).completed

    # --- Going on ---

    def run_to(self, op: int) -> None:
        """Log and apply the script's ops up to this one."""
        while self.machine.op < op:
            number = self.machine.op + 1
            self.journal.append([PREPARES[number - 1]])
            self.witness.acknowledged_op = max(self.witness.acknowledged_op, number)
            self.journal.prepare_spares()
            self._apply(SCRIPT[number - 1])

    def _apply(self, op: Op) -> None:
        self.machine.apply(op)
        match op.verb:
            case Verb.BEGIN:
                self._write(op.number)
            case Verb.COMPLETE:
                self._adopt(op.number)
            case Verb.FAIL:
                self._fail(op.number)
            case Verb.COMPACT:
                self._compact()
            case Verb.PRUNE:
                self.collect()
            case Verb.CHANGE:
                pass

    def _write(self, generation: int) -> None:
        if self.files.stored_manifest(generation) is not None:
            return
        writer = self.files.begin(generation)
        manifest = SnapshotManifest(
            format_version=1,
            cluster_id=CLUSTER_ID,
            generation=generation,
            cut_op=self.machine.op,
            cut_revision=self.machine.op,
            view=1,
            timestamp=self.machine.op,
            cut_checksum=PREPARES[self.machine.op - 1].checksum,
            feature_level=1,
        )
        if self.adopted is not None:
            manifest.parent_generation = self.adopted.generation
            manifest.parent_root = self.adopted.root
        for stage in STAGES:
            section_of(manifest, stage).CopyFrom(self._write_section(writer, stage))
        manifest.root = root_of(manifest)
        writer.write_manifest(manifest)

    def _write_section(self, writer: GenerationWriter, stage: int) -> SectionManifest:
        before = section_of(self.adopted, stage) if self.adopted else SectionManifest()
        base = self.files.chain(stage, before)
        section = writer.section(stage, section_version=1, feature_level=1, base=base)
        tally = self.machine.base_tally(stage)
        builder = BlockBuilder()
        for change in self.machine.changes_of(writer.generation, stage):
            entry = tally.add(change)
            if entry is not None:
                builder.add(entry)
                if (section.entries + 1) % ENTRIES_PER_BLOCK:
                    section.append(compress(builder.take_raw()))
        while builder.size_bytes:
            section.append(compress(builder.take_raw()))
        layers = [*base, section.finish()] if section.entries else base
        section.discard()
        return section_manifest(self.machine.op, tally, layers)

    def _adopt(self, generation: int) -> None:
        state = self.superblock.state
        if generation > state.generation:
            self.superblock.write(
                replace(state, generation=generation, commit_max=self.machine.op)
            )
            self.witness.adopted = max(self.witness.adopted, generation)
        self.adopted = self.files.stored_manifest(generation)
        assert self.adopted is not None
        self.machine.release(generation)
        self.journal.truncate_before(self.adopted.cut_op + 1)
        self.collect()
        assert self.files.rebuild_reserve(self.adopted) == []

    def _fail(self, generation: int) -> None:
        self.files.begin(generation).discard()
        self.files.delete(generation)
        self.collect()

    def _compact(self) -> None:
        assert self.adopted is not None
        for stage in self.files.stages_to_compact(self.adopted):
            self.files.compact(self.adopted, stage)

    def collect(self) -> None:
        """Remove garbage."""
        adopted = self.adopted.generation if self.adopted else 0
        self.files.collect_garbage(self.machine.completed, adopted)

    def close(self) -> None:
        """End the process in good order."""
        self.journal.close()
        self.superblock.close()
        self.files.close()


def section_manifest(revision: int, tally: SectionTally, layers: Sequence[object]) -> SectionManifest:
    """The manifest of a section that adds up to a tally."""
    return SectionManifest(
        version=1,
        applied_revision=revision,
        state_digest=tally.digest.to_bytes(),
        kinds=[KindCount(kind=kind, entities=count) for kind, count in tally.kinds.items()],
        layers=layers,  # type: ignore[arg-type]  # The stub wants its own container.
    )


def _prepares() -> list[Prepare]:
    made: list[Prepare] = []
    parent = NO_PARENT
    for number, op in enumerate(SCRIPT, start=1):
        made.append(prepare(number, parent, body=op.body))
        parent = made[-1].checksum
    return made


PREPARES = _prepares()
