"""The segmented append-only journal of one replica."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from coordinator.journal.errors import JournalNotFound
from coordinator.journal.held_log import PREPARES_KEPT_MIN, HeldLog
from coordinator.journal.index import Index, Location
from coordinator.journal.kept_records import KeptRecords
from coordinator.journal.opening import Recovered, Recovery, recover
from coordinator.journal.placement import Content, Placed, encode, place
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.segment import create_segment, remove_blank_segments
from coordinator.journal.segments import JournalSpace, Segments
from coordinator.journal.superblock import NO_SUPERBLOCK, SuperblockMark
from coordinator.storage import Storage, StorageFile, StorageLock
from viewstamp.format.record import (
    CONTENT_BYTES_MAX,
    JOURNAL_ID_BYTES,
    SECTOR_BYTES,
    SegmentHeader,
    record_bytes,
)
from viewstamp.limits import MIB

SEGMENT_BYTES: Final = 16 * MIB
# The space left to snapshot commands on a full disk, so that a snapshot can free the log.
RESERVE_SEGMENTS: Final = 2
# One more than the reserve, so that moving to the next segment never breaks it.
SPARE_SEGMENTS: Final = RESERVE_SEGMENTS + 1

assert SECTOR_BYTES + record_bytes(CONTENT_BYTES_MAX) <= SEGMENT_BYTES


class Journal(HeldLog):
    """An open journal. Call it from one thread; only `prepare_spares` may run in another."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        lock: StorageLock,
        recovered: Recovered,
        identity: JournalIdentity,
        segment_bytes: int,
        archive: str | None,
        superblock: Callable[[], SuperblockMark],
    ) -> None:
        """Use `Journal.open` or `Journal.create`."""
        opened, plan = recovered.opened, recovered.plan
        self.index = Index(plan.kept, plan.live)
        holes = recovered.recovery.holes
        super().__init__(
            directory, lock, identity, opened.journal_id, self.index, plan, holes, superblock
        )
        self._segment_bytes = segment_bytes
        kind = SegmentHeader(
            identity.cluster_id, identity.replica_id, opened.journal_id, 0, segment_bytes
        )
        self._segments = Segments(storage, directory, opened.files, kind, archive, self._fail)
        self._segment, self._offset = recovered.end()
        self.kept_records = KeptRecords(self._segments, self.index, kind, self._end)

    @classmethod
    def create(
        cls,
        storage: Storage,
        directory: str,
        *,
        cluster_id: bytes,
        replica_id: int,
        replica_count: int,
        segment_bytes: int = SEGMENT_BYTES,
        archive: str | None = None,
        entropy: Callable[[int], bytes] | None = None,
        superblock: Callable[[], SuperblockMark] = lambda: NO_SUPERBLOCK,
    ) -> tuple[Journal, Recovery]:
        """Make the journal of a replica that is being bootstrapped, and open it.

        Repeated after a crash, it starts over. Raises JournalExists if there are records already,
        NoSpace, DirectoryInUse.
        """
        storage.make_directory(directory)
        lock = storage.lock(directory)
        try:
            remove_blank_segments(storage, directory)
            journal_id = (entropy or os.urandom)(JOURNAL_ID_BYTES)
            for segment in range(1, 2 + SPARE_SEGMENTS):
                header = SegmentHeader(cluster_id, replica_id, journal_id, segment, segment_bytes)
                create_segment(storage, directory, header).close()
        finally:
            lock.release()
        return cls.open(
            storage,
            directory,
            cluster_id=cluster_id,
            replica_id=replica_id,
            replica_count=replica_count,
            commit_max=0,
            log_view=None,
            segment_bytes=segment_bytes,
            archive=archive,
            superblock=superblock,
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        directory: str,
        *,
        cluster_id: bytes,
        replica_id: int,
        replica_count: int,
        commit_max: int,
        log_view: int | None,
        replay_op: int = 1,
        base_checksum: bytes | None = None,
        is_base_fetched: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        archive: str | None = None,
        superblock: Callable[[], SuperblockMark] = lambda: NO_SUPERBLOCK,
    ) -> tuple[Journal, Recovery]:
        """Open an existing journal and recover it by the decision table.

        `commit_max` and `log_view` come from the superblock; a `log_view` of None means that there
        is no superblock yet. `replay_op` is one past the cut of the snapshot that the replica
        restarts from, `base_checksum` the checksum of the entry at the cut, if known;
        `is_base_fetched` says that the superblock does not name that snapshot yet. `archive` is a
        directory that receives dropped segments. `superblock` tells of the durable superblock,
        now and before each append. Raises DirectoryInUse, JournalNotFound, SuperblockOlder,
        MissingSegment, WrongCluster, WrongReplica, FormatVersionError (a newer build
        wrote this), CorruptJournal (damage that a single replica cannot mend, or contradictions
        that damage cannot explain) and JournalFailed (the disk refused a write).
        """
        if not storage.exists(directory):
            raise JournalNotFound(directory)
        identity = JournalIdentity(
            cluster_id,
            replica_id,
            replica_count,
            commit_max,
            log_view,
            replay_op,
            base_checksum,
            superblock(),
            is_base_fetched,
        )
        lock = storage.lock(directory)
        try:
            recovered = recover(storage, directory, identity)
        except BaseException:
            lock.release()
            raise
        journal = cls(
            storage, directory, lock, recovered, identity, segment_bytes, archive, superblock
        )
        return journal, recovered.recovery

    def close(self) -> None:
        """Close the files and release the lock. Writes nothing: all acknowledged entries are
        durable."""
        self._segments.close()
        self._lock.release()

    # --- Looking ---

    @property
    def segment_bytes(self) -> int:
        """The size of new segments; those made with another setting keep theirs."""
        return self._segment_bytes

    def space(self) -> JournalSpace:
        """Return how much room there is before appending needs disk space. Any thread may ask."""
        # Read the offset first: an append under way then makes the room too small, never too large.
        offset, segment = self._offset, self._segment
        size_of, last_segment = self._segments.size_of, self._segments.last
        usable = range(segment + 1, last_segment - RESERVE_SEGMENTS + 1)
        active_bytes = max(0, size_of(segment) - offset)
        return JournalSpace(
            free_bytes=active_bytes + sum(size_of(spare) - SECTOR_BYTES for spare in usable),
            spare_segments=last_segment - segment,
            reserve_intact=last_segment - segment >= RESERVE_SEGMENTS,
        )

    def bytes_from(self, op: int) -> int:
        """Return the bytes of the full segments that hold an op at or above `op`."""
        full = range(self._segments.first, self._segment)
        size_of, last_op_in = self._segments.size_of, self.index.last_op_in
        return sum(size_of(segment) for segment in full if last_op_in(segment) >= op)

    # --- Appending ---

    def _end(self) -> tuple[int, int]:
        return self._segment, self._offset

    def _file_of(self, segment: int) -> StorageFile:
        return self._segments[segment]

    def _unit_of(self, location: Location) -> int:
        return location.segment

    def _active_unit(self) -> int:
        return self._segment

    def _append(self, contents: Sequence[Content], *, use_reserve: bool) -> None:
        placed = place(
            contents,
            self._segment,
            self._offset,
            segment_bytes=self._segment_bytes,
            size_of=self._segments.size_of,
        )
        if not placed:
            return
        self._segments.make(placed[-1].segment + (0 if use_reserve else RESERVE_SEGMENTS))
        records = encode(placed, self._frames(placed), journal_id=self._journal_id)
        try:
            self._write(placed, records)
        except OSError as error:
            raise self._fail(f"writing to segment {placed[-1].segment}", error) from error
        self._enter(placed)

    def _write(self, placed: Sequence[Placed], records: Sequence[bytes]) -> None:
        """Write and sync each segment touched once; usually there is one."""
        segments = sorted({record.segment for record in placed})
        for segment in segments:
            indices = [i for i, record in enumerate(placed) if record.segment == segment]
            data = b"".join(records[i] for i in indices)
            self._segments[segment].write(placed[indices[0]].offset, data)
        for segment in segments:
            self._segments[segment].sync()

    def _enter(self, placed: Sequence[Placed]) -> None:
        self.index.enter(placed)
        last = placed[-1]
        self._segment, self._offset = last.segment, last.offset + last.extent_bytes
        self._entered(len(placed))

    # --- Segments ahead and behind ---

    def prepare_spares(self) -> int:
        """Make spare segments until enough are ahead; return how many were made.

        Safe to call while another thread appends. Raises NoSpace; segments made before that stay.
        """
        self._check_usable()
        return self._segments.make(self._segment + SPARE_SEGMENTS)

    def truncate_before(self, op: int) -> int:
        """Drop segments that hold no op at or above `op`, oldest first; return how many.

        The caller knows that a quorum holds the snapshot that covers them. Whatever `op` is, the
        last two pipelines of prepares stay, and the active segment, and the evidence of unsettled
        faults.
        """
        self._check_usable()
        keep_from = min(op, self.index.head_op - PREPARES_KEPT_MIN + 1)
        segment = self._segments.first
        while segment < self._segment and self.index.last_op_in(segment) < keep_from:
            segment += 1
        return self._drop_before(segment)

    def free_covered(self, op: int) -> int:
        """Return 0: segments that an earlier process did not drop go with the next snapshot."""
        self._check_usable()
        return 0

    def _drop_before(self, segment: int) -> int:
        needed = self._pending_repair.first_segment
        end = segment if needed is None else min(segment, needed)
        dropped = 0
        while self._segments.first < end:
            self.index.remove_segment(self._segments.first)
            self._segments.drop_first()
            dropped += 1
        return dropped
