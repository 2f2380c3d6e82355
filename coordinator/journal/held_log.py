"""The log that an open journal holds, whatever files its records are in.

Both kinds of journals are made of this: what is held and what is missing, and the rules of
appending, discarding and starting over. A kind says where records go and how room is freed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from coordinator.journal.errors import CorruptRecord, JournalFailed, NoSpace
from coordinator.journal.index import Location
from coordinator.journal.interface import LogIndex
from coordinator.journal.pending_repair import PendingRepair
from coordinator.journal.placement import (
    Content,
    Placed,
    cut_content,
    frames_of,
    names_superblock,
    prepare_content,
    repaired_content,
    restart_content,
)
from coordinator.journal.plan import JournalIdentity, OpeningPlan
from coordinator.journal.rules import Log, LogBase, check_group
from coordinator.journal.superblock import SuperblockMark
from coordinator.storage import StorageFile, StorageLock
from viewstamp.format import FormatError
from viewstamp.format.prepare import SealedHeader, SealedPrepare, checksum_of
from viewstamp.format.record import Frame, decode_record
from viewstamp.limits import PIPELINE_PREPARES_MAX

# A peer that is a pipeline behind, with another one in flight, is served without a snapshot.
PREPARES_KEPT_MIN: Final = 2 * PIPELINE_PREPARES_MAX


class HeldLog(ABC):
    """The log of an open journal. Call it from one thread.

    After `JournalFailed` every method raises it again: the process has to end, since a second sync
    may report success for data that the kernel has dropped.
    """

    def __init__(
        self,
        directory: str,
        lock: StorageLock,
        identity: JournalIdentity,
        journal_id: bytes,
        index: LogIndex,
        plan: OpeningPlan,
        holes: Sequence[int],
        superblock: Callable[[], SuperblockMark],
    ) -> None:
        """Take over what opening found."""
        self._directory = directory
        self._lock = lock
        self._cluster_id = identity.cluster_id
        self.is_alone = identity.single
        """Whether no other replica has a vote, so that nothing is ever discarded; may change."""
        self._journal_id = journal_id
        self.public_id = checksum_of(journal_id)
        """16 bytes that stand for this journal before others; its own id stays secret."""
        self._base = identity.base
        self._superblock = superblock
        self._restart_op = plan.restart_op
        self._log_index = index
        self._pending_repair = PendingRepair(plan, holes)
        self._next_sequence = plan.last_sequence + 1
        self.durable_sequence = plan.durable_sequence
        """The sequence of the last record that is intact and durable; any thread may ask."""
        self.records_copied = 0
        """How many records were copied, which is progress in a call; any thread may ask."""
        self._is_named = plan.is_named or identity.superblock.journal_sequence > 0
        self._failure: str | None = None

    # --- Looking ---

    @property
    def head(self) -> SealedHeader | None:
        """Header of the highest op, or None for an empty log."""
        return self.header(self._log_index.head_op)

    @property
    def first_op(self) -> int:
        """The lowest op held, 0 for none."""
        return self._log_index.first_op

    @property
    def first_available_op(self) -> int:
        """The lowest op that the journal can hold: the lowest held, or the first of an empty
        log."""
        return self._log_index.first_op or self._base.op + 1

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
        return self._log_index.header(op)

    def headers(self, first_op: int, last_op: int) -> list[SealedHeader]:
        """Return the headers of ops first_op..last_op, ascending; ops not held are left out."""
        found = (self.header(op) for op in range(first_op, last_op + 1))
        return [header for header in found if header is not None]

    def read(self, op: int) -> SealedPrepare | None:
        """Return the prepare of an op, verified anew, or None if not held. Raises CorruptRecord."""
        self._check_usable()
        location = self._log_index.get(op)
        if location is None:
            return None
        file = self._file_of(location.segment)
        try:
            data = file.read(location.offset, location.extent_bytes)
            record = decode_record(
                data,
                journal_id=self._journal_id,
                segment=location.segment,
                offset=location.offset,
            )
        except (OSError, FormatError) as error:
            raise CorruptRecord(file.path, location.offset, op, str(error)) from error
        prepare = record.content
        if not isinstance(prepare, SealedPrepare) or prepare.checksum != location.header.checksum:
            raise CorruptRecord(file.path, location.offset, op, "another record lies in its place")
        return prepare

    # --- Appending ---

    def append(self, group: Sequence[SealedPrepare], *, use_reserve: bool = False) -> None:
        """Write a group and return once all of it is durable, with one sync for each file touched.

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
        if op >= self._log_index.head_op and not self._pending_repair.any:
            return
        self._append([cut_content(op)], use_reserve=True)
        self._log_index.remove_after(op)
        self._pending_repair.removed_after(op)

    def restart_at(self, op: int, checksum: bytes) -> int:
        """Durably forget the log and continue it behind `op`; return how many units
        (`truncate_before`) were dropped.

        For a member that adopts a snapshot cut at `op`, whose entry has `checksum`, beyond its own
        log. The next append is that entry itself or the one after it. Entries above `op` that are
        known to be lost, or may have existed, stay missing.
        """
        self._check_usable()
        self._check_member("forgets its log")
        dropped = self._append_restart(op, checksum)
        self._log_index.remove_after(0)
        self._base = LogBase(op, checksum)
        self._restart_op = op
        self._pending_repair.covered_up_to(op)
        return dropped + self._drop_before(self._active_unit())

    def _append_restart(self, op: int, checksum: bytes) -> int:
        """Append the restart; return how many units had to be dropped to make room for it.

        Units before the active one hold only entries that the snapshot covers, or that stay
        missing. An entry that contradicts the snapshot at `op` stays until the record is durable:
        if a crash left only the entries behind it, they would pass for a log that continues from
        the snapshot.
        """
        content = restart_content(op, checksum)
        try:
            self._append([content], use_reserve=True)
        except NoSpace:
            other = self._log_index.get(op) or self._log_index.get(op + 1)
            dropped = self._drop_before(self._unit_of(other) if other else self._active_unit())
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
        if self.is_alone:
            raise ValueError(f"a single replica never {what}: what it journaled is committed")

    def _log(self) -> Log:
        return Log(
            self._cluster_id,
            self.is_alone,
            self._base,
            # Missing ops are repaired in any order, also above the last op held.
            max((self._log_index.head_op, *self._pending_repair.missing)),
            self._log_index.header,
        )

    def _frames(self, placed: Sequence[Placed], behind: int = 0) -> list[Frame]:
        """Return the frames of the next records, behind so many sequences that are left out."""
        return frames_of(
            placed,
            next_sequence=self._next_sequence + behind,
            head=self.head,
            superblock_sequence=self._superblock().sequence,
        )

    def _entered(self, count: int) -> None:
        """Count records that are durable now."""
        self._next_sequence += count
        self.durable_sequence = self._next_sequence - 1
        self._is_named = self._is_named or names_superblock(self.head)

    def _fail(self, doing: str, error: OSError) -> JournalFailed:
        self._failure = (
            f"{doing} in {self._directory} failed: {error}. What is durable is unknown, so this "
            f"process must end; a restart recovers from what the disk holds"
        )
        return JournalFailed(self._failure)

    # --- What a kind of journal adds ---

    @abstractmethod
    def _file_of(self, segment: int) -> StorageFile:
        """Return the file of a segment that is held."""

    @abstractmethod
    def _append(self, contents: Sequence[Content], *, use_reserve: bool) -> None:
        """Write a group and enter it. Raises NoSpace before anything is written."""

    @abstractmethod
    def _drop_before(self, unit: int) -> int:
        """Drop the units before one, as far as no unsettled fault needs them; return how many."""

    @abstractmethod
    def _unit_of(self, location: Location) -> int:
        """Return the unit that holds a record."""

    @abstractmethod
    def _active_unit(self) -> int:
        """Return the unit that holds the last record."""
