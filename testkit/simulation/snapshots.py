"""Snapshots of the compact application, through the real snapshot files and superblock.

The state is one entity in the section of streams; the other sections are empty. A cut is taken
after every so many entries. Who decides that a generation is complete is the simulation, which
counts the replicas that hold it: that takes the place of the commands that the product logs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from coordinator.mux.stage import cut_stages
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.snapshot.agreement import Agreed, DurableReport, judge
from coordinator.snapshot.errors import CopyNotWritten, SnapshotNoSpace
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.generation_writer import GenerationWriter
from coordinator.snapshot.restore import Loaded
from coordinator.vsr import PrepareHeader
from testkit.checkers.checker import Broken
from testkit.generation_builders import write_section
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.manifest import section_of, sections
from viewstamp.format.section import SectionTally

if TYPE_CHECKING:
    from testkit.simulation.process import Process

STATE_STAGE: Final = 3
STATE_KIND: Final = 1
STATE_KEY: Final = b"state"
FORMAT_VERSION: Final = 1
TRANSFER_MS: Final = 40


@dataclass(slots=True)
class Generations:
    """The replicas that hold each generation durably, and their roots."""

    replica_count: int
    diverged: set[int] = field(default_factory=set)
    """Replicas whose state a story changed: their roots may differ."""
    reports: dict[int, dict[int, DurableReport]] = field(default_factory=dict)
    roots: dict[int, bytes] = field(default_factory=dict)
    """The root of each generation that a majority holds."""

    @property
    def completed(self) -> int:
        """The newest generation that a majority holds; 0 if there is none."""
        return max(self.roots, default=0)

    def report(self, replica: int, generation: int, root: bytes) -> None:
        """A replica holds a generation durably."""
        reports = self.reports.setdefault(generation, {})
        reports[replica] = DurableReport(root, ())
        sound = {reports[each].root for each in reports if each not in self.diverged}
        if len(sound) > 1:
            raise Broken("SnapshotsAgree", f"replica {replica} differs in generation {generation}")
        verdict = judge(reports, self.replica_count)
        if isinstance(verdict, Agreed):
            self.roots[generation] = verdict.report.root

    def disk_lost(self, replica: int) -> None:
        """A replica holds nothing any more."""
        self.diverged.discard(replica)
        for reports in self.reports.values():
            reports.pop(replica, None)


def blank_manifest(generation: int, header: PrepareHeader) -> SnapshotManifest:
    """Return the manifest of a generation cut after an entry, without its sections."""
    return SnapshotManifest(
        format_version=FORMAT_VERSION,
        cluster_id=header.cluster_id,
        generation=generation,
        cut_op=header.op,
        cut_revision=header.last_revision,
        view=header.view,
        timestamp=header.timestamp,
        cut_checksum=header.checksum,
        feature_level=header.feature_level,
    )


def written(files: SnapshotFiles, blank: SnapshotManifest, state: bytes) -> SnapshotManifest | None:
    """Write a generation; return its manifest once it is durable, or None if there was no room."""
    stored = files.stored_manifest(blank.generation)
    if stored is not None:
        return stored
    try:
        return _written(files, blank, state)
    except (SnapshotNoSpace, CopyNotWritten):
        files.release(blank.generation)
        return None


def _written(files: SnapshotFiles, blank: SnapshotManifest, state: bytes) -> SnapshotManifest:
    manifest = SnapshotManifest()
    manifest.CopyFrom(blank)
    writer = GenerationWriter(files, manifest)
    for stage in map(int, cut_stages(manifest.feature_level)):
        changes = [(STATE_KIND, STATE_KEY, None, state)] if stage == STATE_STAGE else []
        write_section(writer, stage, 0, changes, SectionTally(), manifest.cut_revision)
    writer.finish()
    return manifest


def state_of(loaded: Loaded) -> bytes:
    """The state that a generation holds."""
    ((_, _, state),) = [entry for layer in loaded.layers[STATE_STAGE] for entry in layer.entries()]
    assert state is not None
    return state


class Snapshots:
    """The snapshots of one process."""

    def __init__(self, process: Process, files: ReplicaFiles, generations: Generations) -> None:
        self._process = process
        self._files = files
        self._generations = generations
        self._is_fetching = False
        self.adopted = 0
        self.cut_op = 0
        if files.base is not None:
            self.adopted = files.base.manifest.generation
            self.cut_op = files.base.manifest.cut_op

    def cut(self, generation: int, header: PrepareHeader, state: bytes) -> None:
        """Make a generation of the state after this entry."""
        if generation <= self.adopted:
            return

        def done(manifest: SnapshotManifest | None) -> None:
            if manifest is not None:
                self._process.snapshot_durable(generation, manifest.root)
                self.adopt()

        blank = blank_manifest(generation, header)
        self._process.background(
            "snapshot", lambda: written(self._files.snapshots, blank, state), done
        )

    def adopt(self) -> None:
        """Restart from the newest complete generation from now on, if it is here."""
        generation = self._generations.completed
        if generation <= self.adopted:
            return
        manifest = self._files.snapshots.stored_manifest(generation)
        if manifest is None or manifest.cut_op > self._process.application.op:
            return  # not here, or what leads to it is still being executed
        if manifest.root != self._generations.roots[generation]:
            self._process.halt(f"another root of generation {generation} than the majority's")
        self.adopted, self.cut_op = generation, manifest.cut_op

        def work() -> None:
            self._files.record_generation(generation, manifest.cut_op)
            self._process.standing.truncate_before(manifest.cut_op + 1)
            self._files.snapshots.collect_garbage({generation}, generation)

        # What was dropped may have made room.
        self._process.background("adopt", work, lambda _: self._process.standing.space.make())

    def fetch(self, peers: Callable[[], list[Process | None]], restart: Callable[[], Any]) -> None:
        """Take over a generation of the first peer that has a newer one; then `restart`.

        Peers may be down, or gone on: then it is tried again.
        """
        if not self._is_fetching:
            self._is_fetching = True
            self._process.later(TRANSFER_MS, lambda: self._fetch(peers, restart))

    def _fetch(self, peers: Callable[[], list[Process | None]], restart: Callable[[], Any]) -> None:
        self._is_fetching = False
        newer = [p for p in peers() if p is not None and p.snapshots.cut_op > self.cut_op]
        if not newer:
            self.fetch(peers, restart)
            return
        peer = newer[0]
        generation = peer.snapshots.adopted
        with peer.files.snapshots.load(generation) as loaded:
            state, blank = state_of(loaded), SnapshotManifest()
            blank.CopyFrom(loaded.manifest)
        for stage, _ in list(sections(blank)):
            section_of(blank, stage).Clear()

        def work() -> bool:
            if written(self._files.snapshots, blank, state) is None:
                return False
            self._files.record_generation(generation, blank.cut_op)
            return True

        def done(is_here: bool) -> None:
            if is_here:
                self._process.machine.world.marks.hit("state transfer")
                restart()
            self.fetch(peers, restart)

        self._process.background("state transfer", work, done)
