"""Where the entries of the log lie. A hint in memory: every read verifies the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.journal.findings import VerifiedRecord
from coordinator.journal.placement import Placed
from viewstamp.format.prepare import SealedHeader


@dataclass(frozen=True, slots=True)
class Location:
    """Where a prepare was written."""

    segment: int
    offset: int
    extent_bytes: int
    header: SealedHeader


class HeldOps:
    """The location of each op that a journal holds, whatever its files are."""

    def __init__(self) -> None:
        self._locations: dict[int, Location] = {}

    @property
    def first_op(self) -> int:
        """The lowest op held; 0 for none."""
        return min(self._locations, default=0)

    def get(self, op: int) -> Location | None:
        """Return where an op lies, or None if it is not held."""
        return self._locations.get(op)

    def header(self, op: int) -> SealedHeader | None:
        """Return the header of an op, or None if it is not held."""
        location = self._locations.get(op)
        return None if location is None else location.header


class Index(HeldOps):
    """The location of each op held, and the ops that the records of each segment name."""

    def __init__(self, kept: Iterable[VerifiedRecord], live: Mapping[int, VerifiedRecord]) -> None:
        """Take over recovery's result: all records kept, and those that form the log."""
        super().__init__()
        self._ops_in_segment: dict[int, list[int]] = {}
        for entry in kept:
            self._ops_in_segment.setdefault(entry.segment, []).append(entry.frame.op)
        for op, entry in live.items():
            assert entry.header is not None
            self._locations[op] = Location(
                entry.segment, entry.offset, entry.extent_bytes, entry.header
            )
        self.head_op = max(self._locations, default=0)
        """The highest op held; 0 for none."""

    def enter(self, placed: Iterable[Placed]) -> None:
        """Note written records; a later one of an op replaces the earlier."""
        for record in placed:
            self._ops_in_segment.setdefault(record.segment, []).append(record.content.op)
            if record.content.header is not None:
                self._locations[record.content.op] = Location(
                    record.segment, record.offset, record.extent_bytes, record.content.header
                )
                self.head_op = max(self.head_op, record.content.op)

    def remove_after(self, op: int) -> None:
        """Forget every op above `op`."""
        for later in [held for held in self._locations if held > op]:
            del self._locations[later]
        self.head_op = max(self._locations, default=0)

    def last_op_in(self, segment: int) -> int:
        """Return the highest op that a record of this segment names; 0 for none."""
        return max(self._ops_in_segment.get(segment, ()), default=0)

    def records_in(self, segment: int) -> tuple[Location, ...]:
        """Return the records of this segment that are of the log, by offset."""
        found = (self._locations.get(op) for op in set(self._ops_in_segment.get(segment, ())))
        held = (each for each in found if each is not None and each.segment == segment)
        return tuple(sorted(held, key=lambda record: record.offset))

    def remove_segment(self, segment: int) -> None:
        """Forget the records of a segment."""
        for op in self._ops_in_segment.pop(segment, ()):
            location = self._locations.get(op)
            if location is not None and location.segment == segment:
                del self._locations[op]
