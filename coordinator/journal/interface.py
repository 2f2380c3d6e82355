"""What the rest of a replica needs of its journal: one interface, and two kinds that have it.

`journal.Journal` appends to segments, `ring_journal.RingJournal` goes round in one file. A data
directory has the kind with which it was made. Tests of what is promised here run against both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.journal.index import Location
from coordinator.journal.segments import JournalSpace
from viewstamp.format.prepare import SealedHeader, SealedPrepare
from viewstamp.format.record import SegmentHeader


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A segment as it is now: where it lies, and the records of the log in it, by offset.

    `header` is what its first sector must say. Every record here is durable; one that is being
    written is not among them.
    """

    path: str
    header: SegmentHeader
    records: tuple[Location, ...]


class HeldRecords(Protocol):
    """What a journal holds, for whoever reads it all again. Call it in the journal's thread."""

    def segments(self) -> list[tuple[int, int]]:
        """Return the segments in use, ascending: number, and bytes that records may take."""

    def held(self, segment: int) -> HeldSegment | None:
        """Return a segment; None if it was dropped."""

    def path(self, segment: int) -> str:
        """Return the path of a segment, made or not."""

    def is_in_place(self, record: Location) -> bool:
        """Return whether the log still has this record for its op."""

    def rewrite_header(self, segment: int) -> None:
        """Write the first sector of a segment anew, if it is still there. Raises OSError: what is
        durable is unknown then."""


class LogIndex(Protocol):
    """Where the entries of the log lie. A hint in memory: every read verifies the record."""

    @property
    def head_op(self) -> int:
        """The highest op held; 0 for none."""

    @property
    def first_op(self) -> int:
        """The lowest op held; 0 for none."""

    def get(self, op: int) -> Location | None:
        """Return where an op lies, or None if it is not held."""

    def header(self, op: int) -> SealedHeader | None:
        """Return the header of an op, or None if it is not held."""

    def remove_after(self, op: int) -> None:
        """Forget every op above `op`."""


class ReplicaJournal(Protocol):
    """An open journal of either kind. Call it from one thread, except where it says otherwise."""

    is_alone: bool
    """Whether no other replica has a vote, so that nothing is ever discarded; may change."""
    public_id: bytes
    """16 bytes that stand for this journal before others."""
    durable_sequence: int
    """The sequence of the last record that is intact and durable; any thread may ask."""

    @property
    def index(self) -> LogIndex:
        """Where the entries lie."""

    @property
    def kept_records(self) -> HeldRecords:
        """All records of the log."""

    @property
    def segment_bytes(self) -> int:
        """The size of new segments, or of the ring."""

    @property
    def head(self) -> SealedHeader | None:
        """Header of the highest op, or None for an empty log."""

    @property
    def first_op(self) -> int:
        """The lowest op held, 0 for none."""

    @property
    def first_available_op(self) -> int:
        """The lowest op that the journal can hold."""

    @property
    def restart_op(self) -> int:
        """The op behind which the newest restart continues the log; 0 without one."""

    @property
    def records_copied(self) -> int:
        """How many records were copied, which is progress in a call; any thread may ask."""

    @property
    def missing_ops(self) -> tuple[int, ...]:
        """The ops that are lost, damaged or in doubt, ascending; some may lie above the head."""

    @property
    def missing_checksums(self) -> dict[int, bytes]:
        """The checksums by op of those missing entries whose damaged records still tell them."""

    @property
    def sequence_for_superblock(self) -> int:
        """The sequence that the superblock may name: 0 if other builds could not read that."""

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record that is there or known to be lost."""

    @property
    def head_uncertain(self) -> bool:
        """Whether there may have been ops above the head and the missing ones."""

    @property
    def is_settled(self) -> bool:
        """Whether every loss that recovery reported is repaired, and the disk records that."""

    def header(self, op: int) -> SealedHeader | None:
        """Return the header of an op, from memory, or None if it is not held."""

    def headers(self, first_op: int, last_op: int) -> list[SealedHeader]:
        """Return the headers of ops first_op..last_op, ascending; ops not held are left out."""

    def read(self, op: int) -> SealedPrepare | None:
        """Return the prepare of an op, verified anew, or None if not held. Raises CorruptRecord."""

    def space(self) -> JournalSpace:
        """Return how much room there is. Any thread may ask."""

    def bytes_from(self, op: int) -> int:
        """Return the bytes that would stay, of those that could go, without ops below `op`."""

    def append(self, group: Sequence[SealedPrepare], *, use_reserve: bool = False) -> None:
        """Write a group and return once all of it is durable. Raises NoSpace before anything is
        written, JournalFailed, and ValueError for what the rules of appending forbid."""

    def discard_after(self, op: int) -> None:
        """Durably take every op above `op` out of the log."""

    def restart_at(self, op: int, checksum: bytes) -> int:
        """Durably forget the log and continue it behind `op`; return how much was dropped."""

    def mark_repaired(self) -> bool:
        """Durably note that every loss has been repaired; return whether it has been."""

    def prepare_spares(self) -> int:
        """Make room ahead; return how much was made. Any thread may call it. Raises NoSpace."""

    def truncate_before(self, op: int) -> int:
        """Free what a snapshot covers, up to `op`; return how much was dropped."""

    def free_covered(self, op: int) -> int:
        """Free, at a start, what the snapshot covers that the superblock names, up to `op`, if the
        next command may need the room; return how much was dropped."""

    def close(self) -> None:
        """Close the files and release the lock. Writes nothing."""
