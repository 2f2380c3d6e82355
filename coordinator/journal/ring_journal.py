"""The ring journal of one replica: one file of a fixed size, in which records go round.

It takes no space of the disk once it is made, and makes and removes no files. So its room is known
from the beginning, and there may be none: then commands are refused until a snapshot frees what it
covers. Part of the room is a reserve for what a snapshot journals, so that one can always complete.
What the log no longer needs counts as free: a ring that is full of it is written anew on its other
side (`ring_rewriting`).

An append costs two syncs: of the records, and of their slots (`viewstamp.format.ring` says why).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from coordinator.journal.errors import JournalNotFound, NoSpace
from coordinator.journal.held_log import PREPARES_KEPT_MIN, HeldLog
from coordinator.journal.index import Location
from coordinator.journal.opening import Recovery
from coordinator.journal.placement import (
    Content,
    Placed,
    encode,
    lost_content,
    prepare_content,
    restart_content,
)
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.ring_file import FIRST_FLOOR, create_ring
from coordinator.journal.ring_index import RingIndex
from coordinator.journal.ring_opening import RecoveredRing, recover_ring
from coordinator.journal.ring_records import RingRecords
from coordinator.journal.ring_rewriting import OtherSide
from coordinator.journal.segments import JournalSpace
from coordinator.journal.superblock import NO_SUPERBLOCK, SuperblockMark
from coordinator.storage import Storage, StorageFile, StorageLock
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import (
    CONTENT_BYTES_MAX,
    JOURNAL_ID_BYTES,
    SECTOR_BYTES,
    Frame,
    RecordKind,
    record_bytes,
)
from viewstamp.format.ring import RING_SEGMENT, RingFloor, RingSlot, encode_slot
from viewstamp.limits import MIB

RING_BYTES: Final = 64 * MIB
# The share of a ring that only snapshots and marks of the journal may use; as much again is for
# entries that another replica has admitted.
RESERVE_PARTS: Final = 8
# A reserve has room for this many of the largest records, however small the ring is.
RESERVE_RECORDS_MIN: Final = 2
# Entries that another replica has admitted may use the reserve down to this part of it.
ENTRY_RESERVE_PARTS: Final = 2
# A snapshot is due once one part in this many is taken: the other parts last until it completes.
DUE_PARTS: Final = 2
# Entries that a snapshot covers stay for replicas a little behind, up to this share of the ring.
KEPT_PARTS: Final = 4
RECORD_BYTES_MAX: Final = record_bytes(CONTENT_BYTES_MAX)


def reserve_bytes_of(ring_bytes: int, record_bytes_max: int) -> int:
    """Return how much of a ring is the reserve."""
    return max(ring_bytes // RESERVE_PARTS, RESERVE_RECORDS_MIN * record_bytes_max)


def entry_reserve_bytes_of(ring_bytes: int, record_bytes_max: int) -> int:
    """Return the part of the reserve that no entry may use but those of snapshots.

    With reserve R, commands of clients leave 2 R free and entries of another primary R / 2. So a
    replica whose log is up to 1.5 R larger than that of its primary still takes all that was
    admitted there: logs differ by what is on its way, and by what stays below a snapshot. What is
    left, 4 MiB in 64 and never less than one of the largest records, takes the commands and marks
    of hundreds of snapshots.
    """
    return reserve_bytes_of(ring_bytes, record_bytes_max) // ENTRY_RESERVE_PARTS


class RingJournal(HeldLog):
    """An open ring. Call it from one thread; only `space` and `prepare_spares` may run in another.

    A unit that is dropped is a record, and its number is its sequence.
    """

    def __init__(
        self,
        directory: str,
        lock: StorageLock,
        recovered: RecoveredRing,
        identity: JournalIdentity,
        record_bytes_max: int,
        superblock: Callable[[], SuperblockMark],
    ) -> None:
        """Use `RingJournal.open` or `RingJournal.create`."""
        ring, plan = recovered.ring, recovered.plan
        self.index = RingIndex(ring.layout, plan.kept, plan.live)
        holes = recovered.recovery.holes
        super().__init__(
            directory, lock, identity, ring.floor.journal_id, self.index, plan, holes, superblock
        )
        self._ring = ring
        sizes = ring.floor.ring_bytes, record_bytes_max
        self._reserve_bytes = reserve_bytes_of(*sizes)
        self._entry_reserve_bytes = entry_reserve_bytes_of(*sizes)
        self._kept_floor = 0
        self._kept_bytes = 0
        self._held_back_op = 0
        self._next_sequence = max(self._next_sequence, ring.floor.floor)
        self._free_bytes = self._count_free()
        self.kept_records = RingRecords(ring, self.index)

    @classmethod
    def create(
        cls,
        storage: Storage,
        directory: str,
        *,
        cluster_id: bytes,
        replica_id: int,
        replica_count: int,
        ring_bytes: int = RING_BYTES,
        record_bytes_max: int = RECORD_BYTES_MAX,
        entropy: Callable[[int], bytes] | None = None,
        superblock: Callable[[], SuperblockMark] = lambda: NO_SUPERBLOCK,
    ) -> tuple[RingJournal, Recovery]:
        """Make the journal of a replica that is being bootstrapped, and open it.

        Repeated after a crash, it starts over. Raises JournalExists if there are records already,
        NoSpace, DirectoryInUse.
        """
        storage.make_directory(directory)
        lock = storage.lock(directory)
        try:
            journal_id = (entropy or os.urandom)(JOURNAL_ID_BYTES)
            floor = RingFloor(cluster_id, replica_id, journal_id, ring_bytes, FIRST_FLOOR)
            create_ring(storage, directory, floor)
        finally:
            lock.release()
        return cls.open(
            storage,
            directory,
            JournalIdentity(cluster_id, replica_id, replica_count, 0, None, 1, None, superblock()),
            record_bytes_max=record_bytes_max,
            superblock=superblock,
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        directory: str,
        identity: JournalIdentity,
        *,
        record_bytes_max: int = RECORD_BYTES_MAX,
        superblock: Callable[[], SuperblockMark] = lambda: NO_SUPERBLOCK,
    ) -> tuple[RingJournal, Recovery]:
        """Open an existing ring and recover it by the decision tables.

        No record is larger than `record_bytes_max`. Raises what `Journal.open` raises.
        """
        if not storage.exists(directory):
            raise JournalNotFound(directory)
        lock = storage.lock(directory)
        try:
            recovered = recover_ring(storage, directory, identity)
        except BaseException:
            lock.release()
            raise
        journal = cls(directory, lock, recovered, identity, record_bytes_max, superblock)
        return journal, recovered.recovery

    def close(self) -> None:
        """Close the file and release the lock. Writes nothing: all acknowledged entries are
        durable."""
        self._ring.file.close()
        self._lock.release()

    # --- Room ---

    @property
    def segment_bytes(self) -> int:
        """The bytes of the whole ring."""
        return self._ring.floor.ring_bytes

    @property
    def band_bytes(self) -> int:
        """The room beside the reserve that only entries of other primaries may use.

        Logs differ a little: in what is on its way, and in what they keep below a snapshot. What a
        primary has admitted must fit everywhere: behind it in the log may be the command that
        completes the snapshot.
        """
        return self._reserve_bytes

    @property
    def entry_bytes(self) -> int:
        """The room for entries that another replica has admitted; any thread may ask."""
        return max(0, self._free_bytes - self._entry_reserve_bytes)

    @property
    def is_snapshot_due(self) -> bool:
        """Whether so much is taken that a snapshot has to free some; any thread may ask."""
        return self._free_bytes * DUE_PARTS <= self._data_bytes

    @property
    def _data_bytes(self) -> int:
        layout = self._ring.layout
        return layout.end - layout.start

    def space(self) -> JournalSpace:
        """Return how much room there is. Any thread may ask. A ring has no spare segments."""
        free_bytes = self._free_bytes
        return JournalSpace(
            free_bytes=max(0, free_bytes - self._reserve_bytes - self.band_bytes),
            spare_segments=0,
            reserve_intact=free_bytes >= self._entry_reserve_bytes,
        )

    def bytes_from(self, op: int) -> int:
        """Return the bytes of the records of the log with an op from `op` on."""
        return self.index.bytes_from(op)

    def prepare_spares(self) -> int:
        """Return 0, for all room is there from the beginning. Any thread may call it."""
        self._check_usable()
        return 0

    def _count_free(self) -> int:
        """Return the bytes for records, once covered entries are dropped and the log is written
        anew. Each record takes a slot, too, and what shows a loss of unknown op stays."""
        free_bytes = self._free_after(()) + self._kept_bytes
        if not self._pending_repair.is_told:
            return free_bytes
        needed_bytes = self.index.live_bytes - self.index.live_bytes_before(self._kept_floor)
        needed_bytes += len(self.missing_ops) * SECTOR_BYTES
        needed_bytes += SECTOR_BYTES if self._restart() is not None else 0
        return max(free_bytes, self._data_bytes - needed_bytes)

    # --- Appending ---

    def _append(self, contents: Sequence[Content], *, use_reserve: bool) -> None:
        if not contents:
            return
        placed = self._place(contents, 0 if use_reserve else self._entry_reserve_bytes)
        frames = self._frames(placed)
        records = encode(placed, frames, journal_id=self._journal_id)
        pairs = zip(placed, records, strict=True)
        try:
            self._ring.write_records((record.offset, data) for record, data in pairs)
            self._ring.write_slots(self._slots(placed, frames))
        except OSError as error:
            raise self._fail("writing to the ring", error) from error
        self.index.enter(placed, self._next_sequence)
        self._entered(len(placed))

    def _place(self, contents: Sequence[Content], reserve_bytes: int) -> list[Placed]:
        placed = self._fitting(contents, reserve_bytes)
        if placed is None and self._kept_floor:
            self._drop_before(self._kept_floor)
            placed = self._fitting(contents, reserve_bytes)
        if placed is None and self._fits_anew(contents, reserve_bytes):
            self._write_anew()
            placed = self._fitting(contents, reserve_bytes)
        if placed is None:
            raise NoSpace(
                f"the ring of {self.segment_bytes} bytes in {self._directory} is full of entries"
                " that no snapshot covers; a snapshot that completes frees them"
            )
        return placed

    def _fitting(self, contents: Sequence[Content], reserve_bytes: int) -> list[Placed] | None:
        placed = self.index.place(contents)
        if placed is None or self._free_after(placed) < reserve_bytes:
            return None
        return placed

    def _free_after(self, placed: Sequence[Placed]) -> int:
        """Return the bytes that are free once these records are written; negative for too many."""
        used = self._next_sequence + len(placed) - self._ring.floor.floor
        by_slots = (self._ring.layout.slots - used) * SECTOR_BYTES
        return min(self.index.free_after(placed), by_slots)

    def _fits_anew(self, contents: Sequence[Content], reserve_bytes: int) -> bool:
        """Return whether there is room for records if nothing but the log takes any.

        A restart forgets the log: it drops what it can instead.
        """
        if not self._pending_repair.is_told or contents[0].kind is RecordKind.RESTART:
            return False
        wanted_bytes = sum(record_bytes(len(each.data)) for each in contents)
        return self._count_free() >= wanted_bytes + reserve_bytes

    def _write_anew(self) -> None:
        """Write the log to the other side, and nothing else.

        Raises JournalFailed, and CorruptRecord for an entry that cannot be read: then nothing has
        changed, the process ends, and its next start tells what is lost before it copies anything.
        """
        side = OtherSide(self._ring)
        first_sequence = max(self._next_sequence, self._ring.other_sequence + 1)
        try:
            placed, shown_from = self._copy(side, first_sequence)
            if not placed:
                self._drop_before(self._active_unit())
                return
            side.turn(first_sequence)
        except OSError as error:
            raise self._fail("writing the ring anew", error) from error
        self._next_sequence = first_sequence
        self._entered(len(placed))
        self.index.move(side.layout, placed, first_sequence)
        self._kept_floor = self._kept_bytes = 0
        self._pending_repair.is_shown_from(shown_from)

    def _copy(self, side: OtherSide, first_sequence: int) -> tuple[list[Placed], int]:
        """Write what is needed to a side; return where it lies, without contents, and the first
        sequence that shows a loss, 0 for none."""
        placed, shown_from, offset = list[Placed](), 0, side.layout.start
        for sequence, content in enumerate(self._needed(), first_sequence):
            record = Placed(content, RING_SEGMENT, offset, record_bytes(len(content.data)))
            (frame,) = self._frames([record], sequence - self._next_sequence)
            side.write(record, frame)
            if not shown_from and content.kind is RecordKind.PREPARE and content.header is None:
                shown_from = sequence
            placed.append(replace(record, content=replace(content, data=b"")))
            offset += record.extent_bytes
            self.records_copied += 1
        return placed, shown_from

    def _needed(self) -> Iterator[Content]:
        """Yield the restart behind which the log goes on, if there is one, and then the log. Of an
        entry that is missing only its identity is left."""
        restart = self._restart()
        if restart is not None:
            yield restart
        missing = self.missing_checksums
        for op in sorted((*self.index.ops(), *missing)):
            prepare = self.read(op)
            if prepare is None:
                yield lost_content(op, missing[op])
            else:
                yield prepare_content(prepare)

    def _restart(self) -> Content | None:
        """Return the restart behind which the log goes on, if there is one."""
        base = self._base
        if not self.restart_op or self.restart_op != base.op or base.checksum is None:
            return None
        return restart_content(base.op, base.checksum)

    def _slots(self, placed: Sequence[Placed], frames: Sequence[Frame]) -> dict[int, bytes]:
        """Return the slots of records that are durable, by number."""
        slots: dict[int, bytes] = {}
        for record, frame in zip(placed, frames, strict=True):
            number = self._ring.layout.slot_of(frame.sequence)
            mark = record.content.data if frame.kind is RecordKind.RESTART else b""
            slot = RingSlot(frame, record.offset, mark)
            slots[number] = encode_slot(slot, journal_id=self._journal_id, number=number)
        return slots

    def _file_of(self, segment: int) -> StorageFile:
        return self._ring.file

    def _unit_of(self, location: Location) -> int:
        return self.index.sequence_at(location.offset)

    def _active_unit(self) -> int:
        return self._next_sequence - 1

    # --- Freeing ---

    def append(self, group: Sequence[SealedPrepare], *, use_reserve: bool = False) -> None:
        """Append as `HeldLog` says; what settles a loss frees what showed it."""
        super().append(group, use_reserve=use_reserve)
        self._free_held_back()
        self._free_bytes = self._count_free()

    def discard_after(self, op: int) -> None:
        """Discard as `HeldLog` says; what settles a loss frees what showed it."""
        super().discard_after(op)
        self._free_held_back()
        self._free_bytes = self._count_free()

    def restart_at(self, op: int, checksum: bytes) -> int:
        """Start over as `HeldLog` says; losses above `op` hold back what shows them."""
        dropped = super().restart_at(op, checksum)
        self._held_back_op = op + 1
        dropped += self._free_held_back()
        self._free_bytes = self._count_free()
        return dropped

    def mark_repaired(self) -> bool:
        """Note the end of all repairs as `HeldLog` says, and free what showed the losses."""
        is_settled = super().mark_repaired()
        self._free_held_back()
        self._free_bytes = self._count_free()
        return is_settled

    def _free_held_back(self) -> int:
        """Free what a snapshot covers already, once no unsettled loss holds it back."""
        op = self._held_back_op
        return self.truncate_before(op) if op and self.is_settled else 0

    def truncate_before(self, op: int) -> int:
        """Free the records below `op`; return how many.

        The caller knows that a quorum holds the snapshot that covers them. Some stay: the last two
        pipelines of prepares, as far as they take no more than their share of the ring, the last
        record, and the evidence of unsettled faults.
        """
        self._check_usable()
        self._held_back_op = 0 if self.is_settled else max(op, self._held_back_op)
        end_op = min(op, self.index.head_op)
        dropped = self._drop_before(self._first_needed(self._keep_from(end_op)))
        # What stays beyond that goes as soon as its room is needed.
        self._kept_floor = self._unneeded_before(self._first_needed(end_op))
        self._kept_bytes = self.index.bytes_before(self._kept_floor)
        self._free_bytes = self._count_free()
        return dropped

    def _first_needed(self, op: int) -> int:
        first = self.index.first_needed(op)
        return self._active_unit() if first is None else first

    def free_covered(self, op: int) -> int:
        """Free what an earlier process may not have freed: the superblock names the snapshot that
        covers all below `op`, and a full ring takes no command that would lead to the next one."""
        return self.truncate_before(op)

    def _keep_from(self, end_op: int) -> int:
        """Return the first of the last two pipelines of prepares, or a later op if these take more
        than their share; `end_op` at the latest."""
        op = min(end_op, self.index.head_op - PREPARES_KEPT_MIN + 1)
        taken_bytes = self.index.bytes_from(op)
        while op < end_op and taken_bytes * KEPT_PARTS > self._data_bytes:
            location = self.index.get(op)
            taken_bytes -= 0 if location is None else location.extent_bytes
            op += 1
        return op

    def _drop_before(self, unit: int) -> int:
        """Raise the floor. It is durable in both copies before any of the room is used again."""
        floor = self._unneeded_before(unit)
        if floor <= self._ring.floor.floor:
            return 0
        try:
            self._ring.raise_floor(floor)
        except OSError as error:
            raise self._fail("raising the floor of the ring", error) from error
        dropped = self.index.drop_before(floor)
        self._kept_floor = self._kept_bytes = 0
        self._free_bytes = self._count_free()
        return dropped

    def _unneeded_before(self, unit: int) -> int:
        """Return the sequence before which nothing is needed, not even as evidence."""
        needed = self._pending_repair.first_segment
        return unit if needed is None else min(unit, needed)
