"""The segmented append-only journal of one replica."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from coordinator.journal.errors import (
    CorruptRecord,
    JournalFailed,
    JournalNotFound,
    NoSpace,
)
from coordinator.journal.index import Index
from coordinator.journal.opening import Recovered, Recovery, recover
from coordinator.journal.pending_repair import PendingRepair
from coordinator.journal.placement import (
    Content,
    Placed,
    cut_content,
    encode,
    names_superblock,
    place,
    prepare_content,
    repaired_content,
    restart_content,
)
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.rules import Log, LogBase, check_group
from coordinator.journal.segment import create_segment, remove_blank_segments
from coordinator.journal.segments import JournalSpace, Segments
from coordinator.journal.superblock import NO_SUPERBLOCK, SuperblockMark
from coordinator.storage import Storage, StorageLock
from viewstamp.format import FormatError
from viewstamp.format.prepare import SealedHeader, SealedPrepare, checksum_of
from viewstamp.format.record import (
    CONTENT_BYTES_MAX,
    JOURNAL_ID_BYTES,
    SECTOR_BYTES,
    SegmentHeader,
    decode_record,
    record_bytes,
)
from viewstamp.limits import MIB, PIPELINE_PREPARES_MAX

SEGMENT_BYTES: Final = 16 * MIB
# The space left to snapshot commands on a full disk, so that a snapshot can free the log.
RESERVE_SEGMENTS: Final = 2
# One more than the reserve, so that moving to the next segment never breaks it.
SPARE_SEGMENTS: Final = RESERVE_SEGMENTS + 1
# A peer that is a pipeline behind, with another one in flight, is served without a snapshot.
PREPARES_KEPT_MIN: Final = 2 * PIPELINE_PREPARES_MAX

assert SECTOR_BYTES + record_bytes(CONTENT_BYTES_MAX) <= SEGMENT_BYTES


class Journal:
    """An open journal. Call it from one thread; only `prepare_spares` may run in another.

    After `JournalFailed` every method raises it again: the process has to end, since a second sync
    may report success for data that the kernel has dropped.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        lock: StorageLock,
        recovered: Recovered,
        base: LogBase,
        identity: JournalIdentity,
        segment_bytes: int,
        archive: str | None,
        superblock: Callable[[], SuperblockMark],
    ) -> None:
        """Use `Journal.open` or `Journal.create`."""
        self._directory = directory
        self._lock = lock
        self._identity = identity
        self._segment_bytes = segment_bytes
        opened, plan = recovered.opened, recovered.plan
        self._journal_id = opened.journal_id
        self.public_id = checksum_of(self._journal_id)
        """16 bytes that stand for this journal before others; its own id stays secret."""
        kind = SegmentHeader(
            identity.cluster_id, identity.replica_id, self._journal_id, 0, segment_bytes
        )
        self._segments = Segments(storage, directory, opened.files, kind, archive, self._fail)
        self._base = base
        self._superblock = superblock
        self._restart_op = plan.restart_op
        self.index = Index(plan.kept, plan.live)
        self._pending_repair = PendingRepair(plan, recovered.recovery.holes)
        self._next_sequence, self._segment, self._offset = recovered.end()
        self.durable_sequence = plan.durable_sequence
        """The sequence of the last record that is intact and durable; any thread may ask."""
        self._is_named = plan.is_named or identity.superblock.journal_sequence > 0
        self._failure: str | None = None

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
        base = LogBase(replay_op - 1, base_checksum) if replay_op > 1 else LogBase()
        journal = cls(
            storage, directory, lock, recovered, base, identity, segment_bytes, archive, superblock
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

    @property
    def head(self) -> SealedHeader | None:
        """Header of the highest op, or None for an empty log."""
        return self.header(self.index.head_op)

    @property
    def first_op(self) -> int:
        """The lowest op held, 0 for none."""
        return self.index.first_op

    @property
    def first_available_op(self) -> int:
        """The lowest op that the journal can hold: the lowest held, or the first of an empty
        log."""
        return self.index.first_op or self._base.op + 1

    @property
    def restart_op(self) -> int:
        """The op behind which the newest restart continues the log; 0 without one."""
        return self._restart_op

    @property
    def missing_ops(self) -> tuple[int, ...]:
        """The ops that are lost, damaged or in doubt, ascending; some may lie above the head."""
        return self._pending_repair.missing_ops

    @property
    def missing_checksums(self) -> dict[int, bytes]:
        """The checksums by op of those missing entries whose damaged records still tell them."""
        return self._pending_repair.missing_checksums

    @property
    def sequence_for_superblock(self) -> int:
        """The sequence that the superblock may name: 0 if other builds could not read that."""
        return self.durable_sequence if self._is_named else 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record that is there or known to be lost."""
        return self._next_sequence - 1

    @property
    def head_uncertain(self) -> bool:
        """Whether there may have been ops above the head and the missing ones."""
        return self._pending_repair.is_unknown

    def header(self, op: int) -> SealedHeader | None:
        """Return the header of an op, from memory, or None if it is not held."""
        return self.index.header(op)

    def headers(self, first_op: int, last_op: int) -> list[SealedHeader]:
        """Return the headers of ops first_op..last_op, ascending; ops not held are left out."""
        found = (self.header(op) for op in range(first_op, last_op + 1))
        return [header for header in found if header is not None]

    def read(self, op: int) -> SealedPrepare | None:
        """Return the prepare of an op, verified anew, or None if not held. Raises CorruptRecord."""
        self._check_usable()
        location = self.index.get(op)
        if location is None:
            return None
        path = self._segments.path(location.segment)
        try:
            data = self._segments[location.segment].read(location.offset, location.extent_bytes)
            record = decode_record(
                data,
                journal_id=self._journal_id,
                segment=location.segment,
                offset=location.offset,
            )
        except (OSError, FormatError) as error:
            raise CorruptRecord(path, location.offset, op, str(error)) from error
        prepare = record.content
        if not isinstance(prepare, SealedPrepare) or prepare.checksum != location.header.checksum:
            raise CorruptRecord(path, location.offset, op, "another record lies in its place")
        return prepare

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

    def append(self, group: Sequence[SealedPrepare], *, use_reserve: bool = False) -> None:
        """Write a group and return once all of it is durable, with one sync per segment touched.

        A member may write an op again to repair it. Only snapshot commands may `use_reserve`.
        Raises NoSpace before anything is written, and JournalFailed if the disk refuses: the caller
        ends the process. Raises ValueError for prepares that break the rules of appending
        (`rules`).
        """
        self._check_usable()
        check_group(self._log(), group)
        contents = [prepare_content(prepare) for prepare in group]
        self._append(contents, use_reserve=use_reserve)
        for prepare in group:
            self._pending_repair.appended(prepare.op)

    def discard_after(self, op: int) -> None:
        """Durably take every op above `op` out of the log: a view change replaced them.

        Otherwise a restart would find them again and offer them to others. Clusters only: a single
        replica's journaled entries are committed.
        """
        self._check_usable()
        self._check_member("discards ops")
        if op >= self.index.head_op and not self._pending_repair.any:
            return
        self._append([cut_content(op)], use_reserve=True)
        self.index.remove_after(op)
        self._pending_repair.removed_after(op)

    def restart_at(self, op: int, checksum: bytes) -> int:
        """Durably forget the log and continue it behind `op`; return how many segments were
        dropped.

        For a member that adopts a snapshot cut at `op`, whose entry has `checksum`, beyond its own
        log. The next append is that entry itself or the one after it. Entries above `op` that are
        known to be lost, or may have existed, stay missing.
        """
        self._check_usable()
        self._check_member("forgets its log")
        dropped = self._append_restart(op, checksum)
        self.index.remove_after(0)
        self._base = LogBase(op, checksum)
        self._restart_op = op
        self._pending_repair.covered_up_to(op)
        return dropped + self._drop_before(self._segment)

    def _append_restart(self, op: int, checksum: bytes) -> int:
        """Append the restart; return how many segments had to be dropped to make room for it.

        Segments before the active one hold only entries that the snapshot covers, or that stay
        missing. An entry that contradicts the snapshot at `op` stays until the record is durable:
        if a crash left only the entries behind it, they would pass for a log that continues from
        the snapshot.
        """
        content = restart_content(op, checksum)
        try:
            self._append([content], use_reserve=True)
        except NoSpace:
            other = self.index.get(op) or self.index.get(op + 1)
            dropped = self._drop_before(other.segment if other else self._segment)
            if not dropped:
                raise
            self._append([content], use_reserve=True)
            return dropped
        return 0

    @property
    def is_settled(self) -> bool:
        """Whether every loss that recovery reported is repaired, and the disk records that."""
        return not self._pending_repair.any

    def mark_repaired(self) -> bool:
        """Durably note that every loss has been repaired; return whether it has been.

        Call it in status normal. While an op is missing that was neither appended again nor
        discarded, nothing happens; each restart reports the faults again, so repeat the call.
        """
        self._check_usable()
        if self._pending_repair.missing:
            return False
        if self._pending_repair.ranges:
            self._append([repaired_content(self._pending_repair.ranges)], use_reserve=True)
        self._pending_repair.settle()
        return True

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise JournalFailed(self._failure)

    def _check_member(self, what: str) -> None:
        if self._identity.single:
            raise ValueError(f"a single replica never {what}: what it journaled is committed")

    def _log(self) -> Log:
        identity = self._identity
        return Log(
            identity.cluster_id,
            identity.single,
            self._base,
            # Missing ops are repaired in any order, also above the last op held.
            max((self.index.head_op, *self._pending_repair.missing)),
            self.index.header,
        )

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
        records = encode(
            placed,
            next_sequence=self._next_sequence,
            journal_id=self._journal_id,
            head=self.head,
            superblock_sequence=self._superblock().sequence,
        )
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
        self._next_sequence += len(placed)
        self.durable_sequence = self._next_sequence - 1
        self._is_named = self._is_named or names_superblock(self.head)

    def _fail(self, doing: str, error: OSError) -> JournalFailed:
        self._failure = (
            f"{doing} in {self._directory} failed: {error}. What is durable is unknown, so this "
            f"process must end; a restart recovers from what the disk holds"
        )
        return JournalFailed(self._failure)

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

    def _drop_before(self, segment: int) -> int:
        needed = self._pending_repair.first_segment
        end = segment if needed is None else min(segment, needed)
        dropped = 0
        while self._segments.first < end:
            self.index.remove_segment(self._segments.first)
            self._segments.drop_first()
            dropped += 1
        return dropped
