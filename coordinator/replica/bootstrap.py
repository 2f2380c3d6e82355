"""What a replica finds in its data directory, checked before anything is served.

The order is what recovery relies on. A blank replica makes its journal first, whose segments say
which cluster it is going to be; the superblock comes with the core's first write of it, once op 1
is durable. So a journal without a superblock is a founding that was cut short, and the core tells
whether it can be finished.

Nothing is written before everything was looked at: what refuses a start leaves the journal as it
was found, for whoever brings the missing part back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coordinator import vsr
from coordinator.journal.errors import JournalExists
from coordinator.journal.journal import SEGMENT_BYTES, Journal
from coordinator.journal.opening import Recovery
from coordinator.journal.segment import segment_numbers, segment_path
from coordinator.journal.superblock import Superblock, SuperblockState
from coordinator.storage import FileStorage, Storage, StorageLock
from viewstamp.format import FormatError
from viewstamp.format.record import SECTOR_BYTES, decode_segment_header
from viewstamp.limits import BOOT_NONCE_BYTES, CLUSTER_ID_BYTES, PIPELINE_PREPARES_MAX

SUPERBLOCK_FILE: Final = "superblock"
JOURNAL_DIRECTORY: Final = "journal"
FOUNDED_OP: Final = 1


class WrongDirectoryError(Exception):
    """The data directory is another replica's, or of another cluster."""


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """The open files of one replica, and what to tell the core of them."""

    lock: StorageLock
    superblock: SuperblockFile
    journal: Journal
    recovery: Recovery
    start: vsr.Start

    @property
    def cluster_id(self) -> bytes:
        """The cluster this directory belongs to, or is going to be."""
        return self.superblock.state.cluster_id

    def record_commit(self, committed_op: int) -> None:
        """Durably note how far the log is committed, for a stop: the core never does so alone.

        From then on damage to the last records is refused; without it they would pass for torn.
        """
        state = self.superblock.state
        if self.superblock.exists and committed_op > state.commit_max:
            self.superblock.write(replace(state, commit_max=committed_op))

    def record_generation(self, generation: int, cut_op: int) -> None:
        """Durably restart from a snapshot from now on. Its cut is committed, and says so."""
        state = self.superblock.state
        if generation > state.generation:
            commit_max = max(state.commit_max, cut_op)
            self.superblock.write(replace(state, generation=generation, commit_max=commit_max))


class SuperblockFile:
    """The superblock, created by its first write."""

    def __init__(self, storage: Storage, path: str, identity: SuperblockState) -> None:
        self._storage = storage
        self._path = path
        self._identity = identity
        self._superblock: Superblock | None = None
        if storage.exists(path):
            self._superblock = Superblock.open(storage, path)

    @property
    def exists(self) -> bool:
        """Whether it was ever written."""
        return self._superblock is not None

    @property
    def sequence(self) -> int:
        """How often it was written; 0 before the first time."""
        return 0 if self._superblock is None else self._superblock.sequence

    @property
    def state(self) -> SuperblockState:
        """What it holds; before the first write, the identity it will be written with."""
        return self._identity if self._superblock is None else self._superblock.state

    def write_core(self, state: vsr.SuperblockState) -> None:
        """Replace the core's part; what others have written meanwhile stays."""
        self.write(
            replace(
                self.state,
                view=state.view,
                log_view=state.log_view,
                commit_max=max(self.state.commit_max, state.commit_max),
            )
        )

    def write(self, state: SuperblockState) -> None:
        """Return once the state is durable. Raises what the superblock raises."""
        if self._superblock is None:
            self._superblock = Superblock.create(self._storage, self._path, state)
        else:
            self._superblock.write(state)


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    """Which directory, and whose it must be."""

    path: Path
    replica_id: int
    replica_count: int
    cluster_id: bytes | None = None  # None accepts, or generates, any
    segment_bytes: int = SEGMENT_BYTES
    archive: Path | None = None


def open_replica(options: DirectoryOptions, storage: Storage | None = None) -> ReplicaFiles:
    """Open the directory, or create it blank.

    Raises DirectoryInUse, WrongDirectoryError, OSError and what journal and superblock raise.
    """
    storage = storage or FileStorage()
    storage.make_directory(str(options.path))
    lock = storage.lock(str(options.path))
    try:
        superblock = _open_superblock(storage, options)
        journal, recovery = _open_journal(storage, options, superblock)
        if superblock.exists:
            # The opening write: services tell this process from an older one by its sequence.
            superblock.write(superblock.state)
    except BaseException:
        lock.release()
        raise
    return ReplicaFiles(lock, superblock, journal, recovery, _start(superblock, journal))


def _open_superblock(storage: Storage, options: DirectoryOptions) -> SuperblockFile:
    found = _cluster_of_journal(storage, str(options.path / JOURNAL_DIRECTORY))
    identity = SuperblockState(
        cluster_id=found or options.cluster_id or os.urandom(CLUSTER_ID_BYTES),
        replica_id=options.replica_id,
        replica_count=options.replica_count,
        view=0,
        log_view=0,
        commit_max=0,
        generation=0,
    )
    superblock = SuperblockFile(storage, str(options.path / SUPERBLOCK_FILE), identity)
    _check_identity(options, superblock.state)
    return superblock


def _cluster_of_journal(storage: Storage, directory: str) -> bytes | None:
    """Return the cluster id that the journal's first readable segment names, if there is one."""
    if not storage.exists(directory):
        return None
    for number in segment_numbers(storage, directory):
        file = storage.open(segment_path(directory, number))
        try:
            return decode_segment_header(file.read(0, SECTOR_BYTES)).cluster_id
        except FormatError:
            continue  # damaged: another one says the same, and opening the journal will tell
        finally:
            file.close()
    return None


def _check_identity(options: DirectoryOptions, state: SuperblockState) -> None:
    if options.cluster_id not in (None, state.cluster_id):
        assert options.cluster_id is not None
        raise WrongDirectoryError(
            f"{options.path} belongs to cluster {state.cluster_id.hex()}, not"
            f" {options.cluster_id.hex()}: correct --cluster-id or --data-directory"
        )
    if state.replica_id != options.replica_id:
        raise WrongDirectoryError(
            f"{options.path} belongs to replica {state.replica_id}, not {options.replica_id}:"
            " correct --replica-id or --data-directory"
        )
    if state.replica_count != options.replica_count:
        raise WrongDirectoryError(
            f"{options.path} was founded for {state.replica_count} replicas, not"
            f" {options.replica_count}: the count is fixed at founding; correct --replica-count"
        )


def _open_journal(
    storage: Storage, options: DirectoryOptions, superblock: SuperblockFile
) -> tuple[Journal, Recovery]:
    state = superblock.state
    directory = str(options.path / JOURNAL_DIRECTORY)
    archive = None if options.archive is None else str(options.archive)
    if not superblock.exists:
        try:
            return Journal.create(
                storage,
                directory,
                cluster_id=state.cluster_id,
                replica_id=state.replica_id,
                replica_count=state.replica_count,
                segment_bytes=options.segment_bytes,
                archive=archive,
            )
        except JournalExists:
            pass  # op 1 was written before the crash: it is opened like any other log
    return Journal.open(
        storage,
        directory,
        cluster_id=state.cluster_id,
        replica_id=state.replica_id,
        replica_count=state.replica_count,
        # The first superblock is written once op 1 is durable, and before it is known as committed.
        commit_max=max(FOUNDED_OP, state.commit_max) if superblock.exists else 0,
        log_view=state.log_view if superblock.exists else None,
        segment_bytes=options.segment_bytes,
        archive=archive,
    )


def _start(superblock: SuperblockFile, journal: Journal) -> vsr.Start:
    state = superblock.state
    known = None
    if superblock.exists:
        known = vsr.SuperblockState(state.view, state.log_view, state.commit_max)
    head = journal.head
    suffix: tuple[vsr.PrepareHeader, ...] = ()
    if head is not None:
        first = max(journal.first_op, head.op - PIPELINE_PREPARES_MAX + 1)
        suffix = tuple(journal.headers(first, head.op))
    return vsr.Start(known, suffix, os.urandom(BOOT_NONCE_BYTES))
