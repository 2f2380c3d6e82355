"""The life of one replica's directory: journal, superblock and snapshot files under the script."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from coordinator.journal import Journal, Superblock
from coordinator.snapshot.generation_writer import GenerationWriter
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Repairs,
    empty_manifest,
    loaded_state,
    open_files,
    write_section,
)
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES, prepare
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from tests.coordinator.snapshot.files.scripted_machine import (
    SCRIPT,
    STAGES,
    Op,
    ScriptedMachine,
    Verb,
    cut_op,
    machine_at,
)
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.prepare import NO_PARENT, SealedPrepare
from viewstamp.format.superblock import SuperblockState

COLLECTING_STAGE = 3
# The second disk is full while this generation is written.
FULL_DISK_GENERATION = 6
FULL_DIRECTORY = COPY_DIRECTORIES[1]
SPARE_BYTES = 500
SUPERBLOCK = "data/superblock"
FIRST = SuperblockState(CLUSTER_ID, 0, 1, view=1, log_view=1, commit_max=0, generation=0)


@dataclass
class Witness:
    """The promises to the outside, whatever happens to the process."""

    acknowledged_op: int = 0
    adopted: int = 0
    repairs: Repairs = field(default_factory=Repairs)


class SnapshotLife:
    """One process: it opens the directory, replays, and goes on with the script."""

    def __init__(self, storage: MemoryStorage, witness: Witness) -> None:
        """Open and replay."""
        self.storage = storage
        self.witness = witness
        storage.make_directory("data")
        storage.make_directory("copies")
        self.machine = ScriptedMachine()
        self.adopted: SnapshotManifest | None = None
        self.files = open_files(storage, witness.repairs)
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
        """Start from a generation, which must be the one that the log led to."""
        assert generation >= self.witness.adopted
        if not generation:
            return
        self.adopted = self.files.stored_manifest(generation)
        assert self.adopted is not None
        state = loaded_state(self.files, generation)
        self.machine = machine_at(cut_op(generation))
        assert state == self.machine.state
        assert self.adopted.cut_op == self.machine.op
        self.machine.base, self.machine.base_generation = state, generation
        self.machine.frozen = {}

    def _replay(self) -> None:
        head_op = self.journal.head.op if self.journal.head else 0
        assert head_op >= self.witness.acknowledged_op
        for each in entries(self.journal, self.machine.op + 1):
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
        if generation == FULL_DISK_GENERATION:
            self._fill_disk()
        manifest = empty_manifest(generation, self.machine.op, self.adopted)
        writer = GenerationWriter(self.files, manifest)
        for stage in STAGES:
            write_section(
                writer,
                stage,
                self.adopted.generation if self.adopted else 0,
                self.machine.changes_of(generation, stage),
                self.machine.base_tally(stage),
                self.machine.op,
            )
            if stage == COLLECTING_STAGE:
                # No manifest yet names the layers that were written so far.
                self.collect()
        writer.finish()

    def _fill_disk(self) -> None:
        """Leave so little on the second disk that its reserve must be released."""
        roots = self.storage.capacities_bytes
        if FULL_DIRECTORY not in roots:
            paths = (p for p in self.storage.paths() if p.startswith(f"{FULL_DIRECTORY}/"))
            used_bytes = sum(len(self.storage.content(path)) for path in paths)
            roots[FULL_DIRECTORY] = used_bytes + SPARE_BYTES

    def _adopt(self, generation: int) -> None:
        state = self.superblock.state
        if generation > state.generation:
            self.superblock.write(replace(state, generation=generation, commit_max=self.machine.op))
            self.witness.adopted = max(self.witness.adopted, generation)
        self.adopted = self.files.stored_manifest(generation)
        assert self.adopted is not None
        self.machine.release(generation)
        self.journal.truncate_before(self.adopted.cut_op + 1)
        self.collect()
        if generation >= FULL_DISK_GENERATION:
            self.storage.capacities_bytes.pop(FULL_DIRECTORY, None)
        lacking = self.files.rebuild_reserve(self.adopted)
        assert lacking == [] or self.storage.capacities_bytes

    def _fail(self, generation: int) -> None:
        self.files.release(generation)
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


def _prepares() -> list[SealedPrepare]:
    made: list[SealedPrepare] = []
    parent = NO_PARENT
    for number, op in enumerate(SCRIPT, start=1):
        made.append(prepare(number, parent, body=op.body))
        parent = made[-1].checksum
    return made


PREPARES = _prepares()
