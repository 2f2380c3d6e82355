"""Where the records of a ring lie, from the floor on, and how much room they leave.

Records go round: from the oldest that is needed (the head) to the end (the tail) everything is
taken. One sector always stays free, so that a full ring differs from an empty one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from coordinator.journal.findings import VerifiedRecord
from coordinator.journal.index import HeldOps, Location
from coordinator.journal.placement import Content, Placed
from viewstamp.format.prepare import SealedHeader
from viewstamp.format.record import SECTOR_BYTES, record_bytes
from viewstamp.format.ring import RING_SEGMENT, RingLayout


@dataclass(frozen=True, slots=True)
class RingRecord:
    """A record at or above the floor. `op` is that of a prepare, 0 for any other record."""

    sequence: int
    op: int
    offset: int
    extent_bytes: int


def _location_of(record: Placed, header: SealedHeader) -> Location:
    return Location(record.segment, record.offset, record.extent_bytes, header)


class RingIndex(HeldOps):
    """The location of each op held, and all records from the floor on, oldest first."""

    def __init__(
        self,
        layout: RingLayout,
        kept: Iterable[VerifiedRecord],
        live: Mapping[int, VerifiedRecord],
    ) -> None:
        """Take over recovery's result: all records kept, by sequence, and those of the log."""
        self._layout = layout
        self._records = deque(
            RingRecord(
                each.frame.sequence,
                each.header.op if each.header is not None else 0,
                each.offset,
                each.extent_bytes,
            )
            for each in kept
        )
        super().__init__()
        for op, entry in live.items():
            assert entry.header is not None
            place = RING_SEGMENT, entry.offset, entry.extent_bytes
            self._locations[op] = Location(*place, entry.header)
        self.live_bytes = self.bytes_from(0)
        """The bytes of the records of the log."""
        self._last_op = max(self._locations, default=0)
        last = self._records[-1] if self._records else None
        self.tail = layout.start if last is None else last.offset + last.extent_bytes
        """Where the next record goes, if it fits there."""

    # --- Looking ---

    @property
    def head_op(self) -> int:
        """The highest op held; 0 for none."""
        return self._last_op

    def live(self) -> tuple[Location, ...]:
        """Return the records of the log, by offset."""
        return tuple(sorted(self._locations.values(), key=lambda each: each.offset))

    def sequence_at(self, offset: int) -> int:
        """Return the sequence of the record at an offset."""
        return next(each.sequence for each in self._records if each.offset == offset)

    def bytes_from(self, op: int) -> int:
        """Return the bytes of the records of the log from an op on."""
        return sum(each.extent_bytes for at, each in self._locations.items() if at >= op)

    def bytes_before(self, sequence: int) -> int:
        """Return the bytes of the records below a sequence."""
        return sum(each.extent_bytes for each in self._before(sequence))

    def live_bytes_before(self, sequence: int) -> int:
        """Return the bytes of the records of the log below a sequence."""
        return sum(each.extent_bytes for each in self._before(sequence) if self._is_live(each))

    def _before(self, sequence: int) -> Iterator[RingRecord]:
        return takewhile(lambda each: each.sequence < sequence, self._records)

    def ops(self) -> tuple[int, ...]:
        """Return the ops held, ascending."""
        return tuple(sorted(self._locations))

    # --- Room ---

    def free_after(self, placed: Sequence[Placed] = ()) -> int:
        """Return the bytes that no needed record takes, in at most two pieces, once these are
        written, too."""
        size_bytes = self._layout.end - self._layout.start
        tail = placed[-1].offset + placed[-1].extent_bytes if placed else self.tail
        if self._records:
            return (self._records[0].offset - tail) % size_bytes  # equal ones: full
        return (placed[0].offset - tail) % size_bytes if placed else size_bytes

    def place(self, contents: Sequence[Content]) -> list[Placed] | None:
        """Return the place of each content behind the previous one, or at the beginning again.

        None if they do not all fit between tail and head.
        """
        placed: list[Placed] = []
        tail = self.tail
        head = self._records[0].offset if self._records else None
        for content in contents:
            extent_bytes = record_bytes(len(content.data))
            at = self._place(tail, head, extent_bytes)
            if at is None:
                return None
            placed.append(Placed(content, RING_SEGMENT, at, extent_bytes))
            tail = at + extent_bytes
            head = placed[0].offset if head is None else head
        return placed

    def _place(self, tail: int, head: int | None, extent_bytes: int) -> int | None:
        """Return where a record of so many bytes goes; a full ring keeps one sector free."""
        wanted_bytes = extent_bytes + SECTOR_BYTES
        if head is not None and tail <= head:
            return tail if tail + wanted_bytes <= head else None
        if tail + extent_bytes <= self._layout.end:
            return tail
        start, limit = self._layout.start, self._layout.end if head is None else head
        return start if start + wanted_bytes <= limit else None

    # --- Changing ---

    def enter(self, placed: Iterable[Placed], first_sequence: int) -> None:
        """Note written records; a later one of an op replaces the earlier."""
        for sequence, record in enumerate(placed, start=first_sequence):
            header = record.content.header
            op = 0 if header is None else header.op
            self._records.append(RingRecord(sequence, op, record.offset, record.extent_bytes))
            self.tail = record.offset + record.extent_bytes
            if header is not None:
                before = self._locations.get(op)
                self.live_bytes -= 0 if before is None else before.extent_bytes
                self._locations[op] = _location_of(record, header)
                self.live_bytes += record.extent_bytes
                self._last_op = max(self._last_op, op)

    def move(self, layout: RingLayout, placed: Sequence[Placed], first_sequence: int) -> None:
        """Forget all records but these, which lie on another side and have each op that is held.

        Other threads look headers up meanwhile: they find the old location or the new one.
        """
        self._layout = layout
        self._records.clear()
        headers = ((record, record.content.header) for record in placed)
        self._locations = {
            header.op: _location_of(record, header)
            for record, header in headers
            if header is not None
        }
        self.live_bytes = self.bytes_from(0)
        self.enter(placed, first_sequence)

    def _forget(self, op: int) -> None:
        location = self._locations.pop(op, None)
        self.live_bytes -= 0 if location is None else location.extent_bytes

    def remove_after(self, op: int) -> None:
        """Forget every op above `op`."""
        for later in [held for held in self._locations if held > op]:
            self._forget(later)
        self._last_op = max(self._locations, default=0)

    def first_needed(self, keep_from: int) -> int | None:
        """Return the sequence of the oldest record of the log with an op from `keep_from` on; None
        if there is none."""
        for each in self._records:
            if each.op >= keep_from and self._is_live(each):
                return each.sequence
        return None

    def _is_live(self, record: RingRecord) -> bool:
        location = self._locations.get(record.op)
        return location is not None and location.offset == record.offset

    def drop_before(self, sequence: int) -> int:
        """Forget the records below a sequence; return how many."""
        dropped = 0
        while self._records and self._records[0].sequence < sequence:
            record = self._records.popleft()
            if record.op and self._is_live(record):
                self._forget(record.op)
            dropped += 1
        if not self._locations:
            self._last_op = 0
        return dropped
