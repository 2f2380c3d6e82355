"""What a replica finds in its data directory, checked before anything is served.

Recovery relies on the order. A blank replica makes its journal first, whose segments name its
future cluster; the core's first write makes the superblock, once op 1 is durable. So a journal
without a superblock is a bootstrap that was cut short, and the core decides whether it can be
finished.

Only the superblock says which snapshot to start from. The snapshot's files are verified before the
journal is opened, which has to reach back to its cut. If a file has no intact copy, a member of a
cluster first fetches it from the others (`coordinator.app.snapshot_repair`).

Nothing is written before everything was checked, except snapshot files that are repaired or
fetched: a refused start leaves superblock and journal as they were found, until somebody brings the
missing part back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from coordinator import vsr
from coordinator.journal.interface import ReplicaJournal
from coordinator.journal.journal import SEGMENT_BYTES
from coordinator.journal.opening import Recovery
from coordinator.replica.epoch_membership import from_superblock
from coordinator.replica.journal_opening import (
    JOURNAL_DIRECTORY,
    JournalPlace,
    RingSettings,
    check_journal_is_not_newer,
    cluster_of_journal,
    open_journal,
)
from coordinator.replica.repairs import Repairs
from coordinator.replica.start import (
    SnapshotCut,
    WrongDirectoryError,
    join,
    start_event,
)
from coordinator.replica.superblock_file import SuperblockFile
from coordinator.snapshot.errors import NoIntactCopy, TransferFailed
from coordinator.snapshot.files import SnapshotDirectories, SnapshotFiles
from coordinator.snapshot.restore import Loaded
from coordinator.storage import FileStorage, Storage, StorageLock
from viewstamp import limits
from viewstamp.format import FormatVersionError
from viewstamp.format.superblock import NOT_ADMITTED, SuperblockState
from viewstamp.limits import (
    CLUSTER_ID_BYTES,
    SNAPSHOT_COPIES,
    SNAPSHOT_RESERVE_BYTES_MIN,
)
from viewstamp.telemetry import fields

_log = logging.getLogger(__name__)

# The message that says from what a start continues; tests and the crash test read it.
OPENED: Final = "directory opened"
SUPERBLOCK_FILE: Final = "superblock"
SNAPSHOTS_DIRECTORY: Final = "snapshots"


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """The open files of one replica, and what to tell the core of them.

    `base` is the snapshot to start from, None for the empty state; its reader closes it. `repairs`
    holds the faults found in snapshot files, and is told of later ones. `storage` is the disk they
    are on.
    """

    storage: Storage
    lock: StorageLock
    superblock: SuperblockFile
    journal: ReplicaJournal
    recovery: Recovery
    snapshots: SnapshotFiles
    base: Loaded | None
    repairs: Repairs
    start: vsr.Start

    @property
    def cluster_id(self) -> bytes:
        """The cluster of this directory, or its future cluster."""
        return self.superblock.state.cluster_id

    def close(self) -> None:
        """Close everything. Writes nothing: all acknowledged entries are durable."""
        if self.base is not None:
            self.base.close()
        self.snapshots.close()
        self.journal.close()
        self.lock.release()

    def write_core(self, state: vsr.CoreState) -> None:
        """Return once the core's part of the superblock is durable. Call it in the journal's
        thread."""
        self.superblock.write_core(state, self.journal.sequence_for_superblock)

    def record_commit(self, committed_op: int) -> None:
        """At a stop, durably note how far the log is committed; the core does not do so by itself.

        Later damage to the last records is then refused; otherwise it would pass for a torn tail.
        `committed_op` is at most what the journal durably holds of the log: a member executes
        entries before they are durable, and the disk may hold another one in their place.
        """
        self.superblock.record_commit(committed_op, self.journal.sequence_for_superblock)

    def record_generation(self, generation: int, cut_op: int) -> None:
        """Durably choose the snapshot to restart from. Its cut is recorded as committed.

        Do not call it in the journal's thread: prepares would wait for each of its syncs.
        """
        named = self.journal.sequence_for_superblock
        self.superblock.record_generation(generation, cut_op, named)

    def record_transferred(self, generation: int, cut_op: int) -> None:
        """Durably choose a snapshot that peers have sent. Raises TransferFailed.

        The disk must already record whether this replica may vote: a blank one that wrote its first
        superblock here would pass for an initial member, although it may have forgotten
        acknowledgements.
        """
        if not self.superblock.exists:
            raise TransferFailed("this replica has no superblock yet: its core writes the first")
        self.record_generation(generation, cut_op)


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    """Which directory, and whose it must be.

    `replica_count` is that of the founding; None takes what the directory says, as does the
    directory of a replica that was added later. `follows`: a blank one is that of a standby.
    """

    path: Path
    replica_id: int
    replica_count: int | None
    cluster_id: bytes | None = None  # None accepts, or generates, any
    segment_bytes: int = SEGMENT_BYTES
    archive: Path | None = None
    snapshots: tuple[Path, ...] = ()  # none: within the directory
    snapshot_reserve_bytes: int = SNAPSHOT_RESERVE_BYTES_MIN
    follows: bool = False
    ring: RingSettings | None = None  # None: the journal is in segments

    @property
    def is_standby(self) -> bool:
        """Whether a blank one is that of a replica without a vote."""
        beside = self.replica_count is not None and self.replica_id >= self.replica_count
        return self.follows or beside

    def snapshot_directories(self) -> tuple[str, ...]:
        """Return the directories of the copies of snapshots."""
        inside = self.path / SNAPSHOTS_DIRECTORY
        default = (inside / f"copy-{number}" for number in range(SNAPSHOT_COPIES))
        return tuple(map(str, self.snapshots or default))


@dataclass(slots=True)
class DamagedSnapshot:
    """A snapshot to restart from with a file that has no intact copy here, and where it lies.

    `generation` is the one that the superblock names, until `choose` names a newer one.
    """

    files: SnapshotFiles
    state: SuperblockState
    why: NoIntactCopy
    storage: Storage | None = None
    """Where the directory is; None for the file system."""
    generation: int = field(init=False)

    def __post_init__(self) -> None:
        self.generation = self.state.generation

    def choose(self, generation: int, _cut_op: int) -> None:
        """Restart from this generation, which is whole.

        The superblock is written later, once the journal has been compared with it: an older
        superblock would then have the sequence of the one that is gone.
        """
        self.generation = max(self.generation, generation)


# Returns once the snapshot is whole, or a newer one is, and chosen. Blocks.
Mend: TypeAlias = Callable[[DamagedSnapshot], None]


def open_replica(
    options: DirectoryOptions, storage: Storage | None = None, mend: Mend | None = None
) -> ReplicaFiles:
    """Open the directory, or create it blank.

    `mend` is called if a file of the snapshot has no intact copy; without `mend` that is refused.
    Raises DirectoryInUse, WrongDirectoryError, ConfigError, OSError and what journal, superblock
    and snapshot files raise.
    """
    with closing(replica_opening(options, storage or FileStorage())) as opening:
        try:
            while True:
                damaged = next(opening)
                if mend is None:
                    raise damaged.why
                mend(damaged)
        except StopIteration as opened:
            files: ReplicaFiles = opened.value
            return files


def replica_opening(
    options: DirectoryOptions, storage: Storage
) -> Generator[DamagedSnapshot, None, ReplicaFiles]:
    """Open the directory in steps, for callers with a way of their own to wait.

    Yields a snapshot that must be whole before the next step, and returns the files. Close it, or
    the directory stays locked. Raises what `open_replica` raises.
    """
    with ExitStack() as undo:
        storage.make_directory(str(options.path))
        lock = storage.lock(str(options.path))
        undo.callback(lock.release)
        superblock = _open_superblock(storage, options)
        repairs = Repairs()
        snapshots, base = None, None
        if superblock.state.generation:
            snapshots = _open_snapshots(storage, options, superblock.state, repairs)
            undo.callback(snapshots.close)
            base = yield from _loading(storage, options, snapshots, superblock)
            undo.callback(base.close)
            _check_base(base, superblock.state)
        journal, recovery = open_journal(storage, _place(options), superblock, base)
        undo.callback(journal.close)
        cut = cut_of(base)
        if cut is not None:
            choose = partial(_choose, superblock, journal)
            join(journal, cut, single=superblock.state.is_alone, choose=choose)
            journal.free_covered(cut.op + 1)
        if snapshots is None:
            # Only now: before the journal, a new identity would belong to no known cluster.
            snapshots = _open_snapshots(storage, options, superblock.state, repairs)
            undo.callback(snapshots.close)
        if superblock.exists:
            # The opening write: services tell this process from an older one by its sequence.
            superblock.begin(journal.sequence_for_superblock, is_damaged=recovery.head_uncertain)
        undo.pop_all()
    start = start_event(_known(superblock), journal, cut)
    _tell(journal, base)
    return ReplicaFiles(
        storage, lock, superblock, journal, recovery, snapshots, base, repairs, start
    )


def _place(options: DirectoryOptions) -> JournalPlace:
    archive = None if options.archive is None else str(options.archive)
    return JournalPlace(str(options.path), options.segment_bytes, archive, options.ring)


def _choose(superblock: SuperblockFile, journal: ReplicaJournal, cut: SnapshotCut) -> None:
    """Have the superblock name the snapshot: a newer one may replace one that was damaged."""
    superblock.record_generation(cut.generation, cut.op, journal.sequence_for_superblock)


def _tell(journal: ReplicaJournal, base: Loaded | None) -> None:
    """Log what this process starts from: a snapshot and the journal's entries after its cut."""
    base_op = 0 if base is None else base.manifest.cut_op
    head_op = 0 if journal.head is None else journal.head.op
    _log.info(
        OPENED,
        extra=fields(
            generation=0 if base is None else base.manifest.generation,
            journal_first_op=journal.first_op,
            replay_ops=max(0, head_op - base_op),
        ),
    )


def _open_snapshots(
    storage: Storage, options: DirectoryOptions, state: SuperblockState, repairs: Repairs
) -> SnapshotFiles:
    if not options.snapshots:
        storage.make_directory(str(options.path / SNAPSHOTS_DIRECTORY))
    directories = SnapshotDirectories(
        options.snapshot_directories(), state.cluster_id, state.replica_id, state.generation
    )
    return SnapshotFiles(
        storage,
        directories,
        report=repairs,
        reserve_bytes_min=options.snapshot_reserve_bytes,
        has_writer_process=isinstance(storage, FileStorage),
    )


def _loading(
    storage: Storage,
    options: DirectoryOptions,
    snapshots: SnapshotFiles,
    superblock: SuperblockFile,
) -> Generator[DamagedSnapshot, None, Loaded]:
    try:
        return snapshots.load(superblock.state.generation)
    except NoIntactCopy as error:
        _check_is_newest(storage, options, superblock)
        damaged = DamagedSnapshot(snapshots, superblock.state, error, storage)
    yield damaged
    return snapshots.load(damaged.generation)


def _check_is_newest(
    storage: Storage, options: DirectoryOptions, superblock: SuperblockFile
) -> None:
    """Raise SuperblockOlder if the journal shows a later superblock, JournalNotFound without one.

    The snapshot that an older superblock names is often deleted, so that mending is just what it
    leads to. Peers may be long in coming, and nothing that they send would help.
    """
    check_journal_is_not_newer(storage, _place(options), superblock)


def _check_base(base: Loaded, state: SuperblockState) -> None:
    """Raise WrongDirectoryError for another snapshot than the superblock's of the same number,
    FormatVersionError for one that only a newer build applies."""
    manifest = base.manifest
    if manifest.generation == state.generation and manifest.cut_op > state.commit_max:
        raise WrongDirectoryError(
            f"snapshot {manifest.generation} was cut at op {manifest.cut_op}, but the superblock"
            f" names one of that number with a cut up to op {state.commit_max}: this is another"
            " one; remove its manifests, so that it is fetched from other replicas, or bring back"
            " superblock, journal and snapshots from one backup"
        )
    level = manifest.feature_level
    if level > limits.FEATURE_LEVEL_MAX:
        raise FormatVersionError(
            f"snapshot {base.manifest.generation} was cut at feature level {level}, and this build"
            f" knows levels up to {limits.FEATURE_LEVEL_MAX}: start a newer one; the data directory"
            " is good"
        )


def cut_of(base: Loaded | None) -> SnapshotCut | None:
    """Return the cut of the snapshot that the replica restarts from."""
    if base is None:
        return None
    manifest = base.manifest
    return SnapshotCut(manifest.generation, manifest.cut_op, manifest.cut_checksum)


def _open_superblock(storage: Storage, options: DirectoryOptions) -> SuperblockFile:
    found = cluster_of_journal(storage, str(options.path / JOURNAL_DIRECTORY))
    identity = SuperblockState(
        cluster_id=found or options.cluster_id or os.urandom(CLUSTER_ID_BYTES),
        replica_id=options.replica_id,
        replica_count=options.replica_count or 1,
        view=0,
        log_view=0,
        commit_max=0,
        generation=0,
        voting_view=NOT_ADMITTED if options.is_standby else 0,
    )
    superblock = SuperblockFile(storage, str(options.path / SUPERBLOCK_FILE), identity)
    _check_identity(options, superblock.state)
    return superblock


def _check_identity(options: DirectoryOptions, state: SuperblockState) -> None:
    if options.cluster_id not in (None, state.cluster_id):
        assert options.cluster_id is not None
        raise WrongDirectoryError(
            f"{options.path} belongs to cluster {state.cluster_id.hex()}, not"
            f" {options.cluster_id.hex()}: correct --cluster-id or --data-directory"
        )
    if options.replica_count is not None and state.members is None:
        _check_role(options, state)
    if state.replica_id != options.replica_id:
        raise WrongDirectoryError(
            f"{options.path} belongs to replica {state.replica_id}, not {options.replica_id}:"
            " correct --replica-id or --data-directory"
        )
    if options.replica_count not in (None, state.replica_count):
        raise WrongDirectoryError(
            f"{options.path} was bootstrapped for {state.replica_count} replicas, not"
            f" {options.replica_count}: the count is fixed at bootstrap; correct --replica-count"
            " (--replicas of `viewstamp up`)"
        )


def _check_role(options: DirectoryOptions, state: SuperblockState) -> None:
    """Refuse a change of role: a standby never becomes a voter, and a voter never a standby."""
    if state.is_standby and not options.is_standby:
        raise WrongDirectoryError(
            f"{options.path} belongs to standby {state.replica_id} beside {state.replica_count}"
            f" replicas, and a standby never gets a vote: start it as that standby, or give replica"
            f" {options.replica_id} a directory of its own"
        )
    if options.is_standby and not state.is_standby:
        raise WrongDirectoryError(
            f"{options.path} belongs to replica {state.replica_id} of {state.replica_count}, which"
            f" has a vote, and cannot become standby {options.replica_id}: correct --replica-id, or"
            " give the standby an empty directory"
        )


def _known(superblock: SuperblockFile) -> vsr.CoreState | None:
    if not superblock.exists:
        return None
    state = superblock.state
    membership = from_superblock(state.members)
    return vsr.CoreState(
        state.view, state.log_view, state.commit_max, state.voting_view, membership
    )
