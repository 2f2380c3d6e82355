"""The snapshot parts of one coordinator, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.app.config import Config, SnapshotConfig
from coordinator.app.outside import Outside
from coordinator.app.scrubbing import CopyAlarms, PeerFiles, make_scrubber
from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
from coordinator.gateway.snapshots import SnapshotReads
from coordinator.mux.catalog_types import CatalogChanged, CutTaken, Snapshot, SnapshotState
from coordinator.mux.mux import Mux
from coordinator.mux.stage import Stage
from coordinator.replica.batcher import Batcher
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.driver import Driver
from coordinator.replica.ports import Progress
from coordinator.replica.proposals import Proposals
from coordinator.replica.writer import JournalWriter
from coordinator.snapshot.adoption import Adoption, AdoptionPorts
from coordinator.snapshot.agreement import Reports
from coordinator.snapshot.bases import restored_tallies
from coordinator.snapshot.copies import CopyVerdict
from coordinator.snapshot.decisions import LocalState
from coordinator.snapshot.generation_writer import StoredGenerations, durable_of
from coordinator.snapshot.log_retention import NONE_AT_ALL, Follower, LogRetention, RetentionRoom
from coordinator.snapshot.orchestrator import LocalSnapshotOrchestrator, Ports
from coordinator.snapshot.pacing import SnapshotPace, Traffic
from coordinator.snapshot.sections import CutSections
from coordinator.snapshot.store import CatalogViewWriter, view_of
from coordinator.snapshot.triggers import ReplicaLoad, SnapshotTriggers, TriggerSettings
from coordinator.snapshot.work import Durable, LocalWork
from coordinator.stages.client import StageClient
from coordinator.telemetry.snapshots import SnapshotWatch
from viewstamp import limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.format.prepare import SealedPrepare
from viewstamp.snapshots.catalog_view import CATALOG_VIEW_FILE, CatalogView


class SnapshotSpace(Protocol):
    """Room in the journal."""

    full: bool

    @property
    def frees_by_snapshot(self) -> bool:
        """Whether only a snapshot that this replica adopts makes room."""

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot has to make room soon."""

    async def look_again(self) -> None:
        """Check again whether there is room."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The rest of the coordinator, as snapshots need it.

    `versions` are the services' section versions; `start` runs work whose failure ends the process;
    `watch` is told, and decides nothing. `tell_primary` sends what is durable here to the primary,
    `tell_others` to all. `followers` are the other replicas, as they last reported, and any
    thread may ask; the journal is kept for those that were heard lately. `peers` send files, None
    for a replica without any.
    """

    files: ReplicaFiles
    mux: Mux
    driver: Driver
    writer: JournalWriter[Any]
    services: Mapping[Stage, StageClient]
    proposals: Proposals
    alarms: Alarms
    space: SnapshotSpace
    versions: Callable[[Stage], int]
    clock_ms: Callable[[], int]
    start: Callable[[Coroutine[Any, Any, None]], None]
    watch: SnapshotWatch
    tell_primary: Callable[[Durable], None]
    tell_others: Callable[[Durable], None]
    followers: Callable[[], Sequence[Follower]]
    config: Config
    outside: Outside
    peers: PeerFiles | None
    roster: Roster


def traffic_of(progress: Progress, batcher: Batcher, is_urgent: Callable[[], bool]) -> Traffic:
    """Return what the work on snapshots must know of commands."""
    return Traffic(
        applied=lambda: progress.applied_revision,
        waiting=lambda: progress.op - progress.applied_op + len(batcher),
        is_urgent=is_urgent,
    )


def triggers_of(config: SnapshotConfig) -> TriggerSettings:
    """Return when snapshots are due, and how long they are kept."""
    return TriggerSettings(
        commands=config.commands,
        journal_bytes=config.journal_bytes,
        interval_ms=config.interval_ms,
        keep_last=config.keep_last,
        keep_daily=config.keep_daily,
    )


def is_urgent(
    load: ReplicaLoad, catalog: Mapping[int, Snapshot], local_state: Callable[[int], LocalState]
) -> bool:
    """Return whether a generation is to be made durable as fast as possible.

    It is if commands need it, for a full disk or a long item log; or if the other replicas have
    already completed it, since the next cut would make this replica abandon it.
    """
    if load.is_disk_full or load.item_log_bytes > limits.ITEM_LOG_CUT_BYTES:
        return True
    newest = max(catalog, default=0)
    is_completed = newest > 0 and catalog[newest].state is SnapshotState.COMPLETED
    return is_completed and local_state(newest) is LocalState.FROZEN


def waits_for_adoption(
    catalog: Mapping[int, Snapshot], adopted: int, local_state: Callable[[int], LocalState]
) -> bool:
    """Return whether the cluster has completed a later generation than the one adopted here, and
    this replica still writes it, or is about to adopt it.

    Only a generation that this replica adopts makes room in its ring. If it cannot write the one
    that the others have completed, another one makes none, and uses up the reserve. One that was
    abandoned here is never adopted: then only another one makes room.
    """
    done = (at for at, each in catalog.items() if each.state is SnapshotState.COMPLETED)
    newest = max(done, default=0)
    return newest > adopted and local_state(newest) is not LocalState.NOTHING


class SnapshotAssembly:
    """Everything about snapshots in one process."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        limits_here = around.config.snapshots
        deadline_ms = limits_here.deadline_ms
        traffic = traffic_of(around.driver.progress, around.driver.intake.batcher, self._is_urgent)
        self._pace = SnapshotPace(traffic, deadline_ms)
        self._loop = asyncio.get_running_loop()
        manifest = None if around.files.base is None else around.files.base.manifest
        snapshots = around.mux.catalog.list_after(0, around.mux.catalog.last_generation)
        self._unwritten: dict[int, bytes] = {}  # checksums by op
        self._diverged_at: dict[int, int] = {}  # generations by replica
        self._shows_view = False
        self._copies: dict[int, tuple[str, ...]] = {}  # directories by generation
        self._view = CatalogViewWriter(
            around.config.data_directory / CATALOG_VIEW_FILE,
            self._catalog_view,
            self._view_is_stale,
            self._view_is_current,
            around.outside.write_view,
        )
        restored = None if manifest is None else restored_tallies(manifest)
        self._sections = CutSections(around.services, around.versions, restored)
        self._retention = LogRetention(
            around.files.journal,
            around.followers,
            lambda: NONE_AT_ALL if around.space.full else RetentionRoom(around.config.retain_ms),
        )
        self._adoption = Adoption(around.files.snapshots, self._adoption_ports())
        self._adoption.start_from(manifest)
        self.orchestrator = LocalSnapshotOrchestrator(
            self._ports(),
            SnapshotTriggers(
                triggers_of(limits_here), 0 if manifest is None else manifest.cut_revision
            ),
            around.clock_ms,
            None if manifest is None else durable_of(manifest),
            snapshots,
            deadline_ms,
            Reports(around.roster),
        )
        self.reads = SnapshotReads(
            around.mux.catalog,
            self.orchestrator.reported,
            around.driver.mux_effects.read_followed,
            level_in_force=lambda: around.mux.feature_level,
        )
        self._copy_alarms = CopyAlarms(around.alarms)
        self.scrubber = make_scrubber(
            around, traffic, self._adoption, self._copy_alarms, self._root_of
        )
        if manifest is not None:
            self._copied(manifest.generation, around.files.snapshots.directories)
        around.roster.follow(self._members_entered)

    # --- Life ---

    def start(self) -> None:
        """Begin the work on generations. If it fails, the process ends."""
        self._around.files.repairs.listen(self._repaired_in_some_thread)
        self._around.start(self.orchestrator.run())
        self._around.start(self._retention.run(self._around.writer.call))
        if self.scrubber is not None:
            self._around.start(self.scrubber.run())

    async def stop(self) -> None:
        """Write the final view, after the started work was cancelled."""
        if self._shows_view:
            await self._view.settle()
        if self.scrubber is not None:
            self.scrubber.close()

    async def replayed(self) -> None:
        """Note that the journal was replayed: the catalog now knows what is to be kept.

        The view is written from now on. Until then the earlier process's view is more complete.
        """
        if not self._shows_view:
            self._shows_view = True
            self._around.start(self._view.run())
        await self._adoption.replayed()

    def adopted_elsewhere(self, replica: int, generation: int) -> None:
        """Clear the alarm of a replica that would restart from a generation with the majority's
        root."""
        if generation >= self._diverged_at.get(replica, generation + 1):
            self._no_longer_diverged(replica)

    def _members_entered(self) -> None:
        """End the alarms of removed replicas; and a generation may have its majority now."""
        for replica in sorted(self._diverged_at.keys() - set(self._around.roster.others)):
            self._no_longer_diverged(replica)
        self.orchestrator.wake()

    def _no_longer_diverged(self, replica: int) -> None:
        del self._diverged_at[replica]
        self._around.alarms.clear(cluster_pb2.ALARM_KIND_REPLICA_DIVERGED, str(replica))

    def cut_op(self, generation: int) -> int:
        """Return the op at which a generation was cut; 0 if it is unknown here."""
        adopted = self._adoption.adopted
        if adopted is not None and adopted.generation == generation:
            return adopted.cut_op  # also once the catalog has deleted it
        snapshot = self.orchestrator.catalog.get(generation)
        return 0 if snapshot is None else snapshot.cut_op

    def _root_of(self, generation: int) -> bytes:
        snapshot = self.orchestrator.catalog.get(generation)
        return b"" if snapshot is None else snapshot.root

    # --- From the log ---

    def persisting(self, prepares: Sequence[SealedPrepare]) -> None:
        """Note entries on their way to the journal. Committed ones may be executed before they
        arrive."""
        self._unwritten.update((prepare.op, prepare.checksum) for prepare in prepares)

    def persisted(self, prepares: Sequence[SealedPrepare]) -> None:
        """Note that the journal has these entries, unless others have replaced them."""
        for prepare in prepares:
            if self._unwritten.get(prepare.op) == prepare.checksum:
                del self._unwritten[prepare.op]

    def cut_taken(self, taken: CutTaken) -> None:
        """Begin a generation: all stages are frozen."""
        self.orchestrator.cut_taken(taken, self._checksum(taken.op))

    def _checksum(self, op: int) -> bytes:
        # The journal may still have another entry there, which is about to be discarded.
        checksum = self._unwritten.get(op)
        if checksum is not None:
            return checksum
        header = self._around.files.journal.header(op)
        assert header is not None, (
            f"op {op} is applied and is neither in the journal nor on its way"
        )
        return header.checksum

    def catalog_changed(self, changed: CatalogChanged) -> None:
        """Take a change of the catalog by an applied prepare."""
        for generation in changed.deleted:
            self._copies.pop(generation, None)
        self._around.watch.decided(changed.snapshots)
        self._view.changed()
        self.orchestrator.catalog_changed(changed.snapshots, changed.deleted)
        self.reads.catalog_changed(changed.snapshots, changed.deleted)
        if changed.deleted and not any(map(self._is_to_be_adopted, changed.snapshots)):
            self._around.start(self._adoption.clean())

    def _is_to_be_adopted(self, snapshot: Snapshot) -> bool:
        """Return whether a completed generation is about to be adopted, which cleans up files
        anyway."""
        state = self.orchestrator.local_state(snapshot.generation)
        return snapshot.state is SnapshotState.COMPLETED and state is LocalState.DURABLE

    # --- Ports ---

    def _ports(self) -> Ports:
        around = self._around
        files = StoredGenerations(around.files.snapshots, around.files.cluster_id)
        return Ports(
            work=around.watch.work(LocalWork(self._sections, files, pace=self._pace)),
            adopt=around.watch.adopt(self._adoption.adopt),
            propose=lambda code, request: around.proposals.propose(code, request, 0),
            publish=lambda _: self._view.changed(),
            next_generation=lambda: around.mux.catalog.last_generation + 1,
            load=self._load,
            failed=self._failed,
            completed=self._completed,
            tell_primary=around.tell_primary,
            tell_others=around.tell_others,
            diverged=self._diverged,
        )

    def _adoption_ports(self) -> AdoptionPorts:
        around = self._around
        return AdoptionPorts(
            writer=around.writer,
            record=around.files.record_generation,
            truncate=self._retention.truncate_before,
            services=around.services,
            release=self._release,
            kept=self._kept,
            copied=self._copied,
            freed=around.space.look_again,
            start=around.start,
            compacted=around.watch.compacted,
            unreadable=self._unreadable,
            pace=self._pace,
        )

    def _copied(self, generation: int, directories: Sequence[str]) -> None:
        self._copies[generation] = tuple(directories)
        self._view.changed()

    def _catalog_view(self) -> CatalogView:
        progress = self._around.driver.progress
        position = (progress.applied_op, progress.applied_revision)
        snapshots, reported = self.orchestrator.catalog.values(), self.orchestrator.reported
        return view_of(position, snapshots, reported, self._copies)

    def _release(self, generation: int) -> None:
        self._around.mux.release(generation)
        # A cut taken before this release is a delta against an older generation.
        self._sections.forget_before(min(self.orchestrator.pins(), default=generation))

    def _kept(self) -> frozenset[int]:
        return self.orchestrator.pins() | self.orchestrator.catalog.keys()

    def _is_urgent(self) -> bool:
        return is_urgent(self._load(), self.orchestrator.catalog, self.orchestrator.local_state)

    def _load(self) -> ReplicaLoad:
        around = self._around
        progress = around.driver.progress
        return ReplicaLoad(
            now_ms=around.clock_ms(),
            revision=progress.applied_revision,
            journal_bytes=progress.handed_over_bytes,
            item_log_bytes=max(client.item_log_bytes for client in around.services.values()),
            is_disk_full=around.space.full and not self._waits_for_adoption(),
            is_ring_due=around.space.is_snapshot_due and not self._waits_for_adoption(),
        )

    def _waits_for_adoption(self) -> bool:
        if not self._around.space.frees_by_snapshot:
            return False
        adopted = self._adoption.adopted
        generation = 0 if adopted is None else adopted.generation
        orchestrator = self.orchestrator
        return waits_for_adoption(orchestrator.catalog, generation, orchestrator.local_state)

    # --- Alarms ---

    def _failed(self, reason: str) -> None:
        self._around.alarms.clear(cluster_pb2.ALARM_KIND_SNAPSHOT_FAILED)
        self._around.alarms.raise_alarm(
            cluster_pb2.ALARM_KIND_SNAPSHOT_FAILED,
            f"the last snapshot failed: {reason}. The journal grows until a snapshot completes",
        )

    def _completed(self, _: int) -> None:
        self._around.alarms.clear(cluster_pb2.ALARM_KIND_SNAPSHOT_FAILED)

    def _diverged(self, replica: int, generation: int, why: str) -> None:
        self._diverged_at[replica] = generation
        kind = cluster_pb2.ALARM_KIND_REPLICA_DIVERGED
        self._around.alarms.raise_alarm(kind, why, str(replica))

    def _unreadable(self, manifests: Sequence[str]) -> None:
        kind, what = cluster_pb2.ALARM_KIND_SNAPSHOT_COPY_BAD, "manifests"
        if manifests:
            text = "; ".join(manifests)
            self._around.alarms.tell(
                kind,
                f"{text}: files of this and older generations are kept; bring back an"
                " intact copy of"
                " the manifest, or delete the generation",
                what,
            )
        else:
            self._around.alarms.clear(kind, what)

    def _view_is_stale(self, reason: str) -> None:
        self._around.alarms.raise_alarm(
            cluster_pb2.ALARM_KIND_CATALOG_VIEW_STALE,
            f"{CATALOG_VIEW_FILE} could not be written and is out of date: {reason}",
        )

    def _view_is_current(self) -> None:
        self._around.alarms.clear(cluster_pb2.ALARM_KIND_CATALOG_VIEW_STALE)

    def _repaired_in_some_thread(self, name: str, verdicts: Sequence[CopyVerdict]) -> None:
        self._loop.call_soon_threadsafe(self._repaired, name, verdicts)

    def _repaired(self, name: str, verdicts: Sequence[CopyVerdict]) -> None:
        found = "; ".join(f"{each.directory}: {each}" for each in verdicts)
        self._copy_alarms.tell(name, f"{name}: {found}")
