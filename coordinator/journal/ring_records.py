"""The records of a ring as one segment, for whoever reads them all again from the disk."""

from __future__ import annotations

from coordinator.journal.index import Location
from coordinator.journal.interface import HeldSegment
from coordinator.journal.ring_file import RingFile
from coordinator.journal.ring_index import RingIndex
from viewstamp.format.ring import RING_SEGMENT


class RingRecords:
    """What a ring holds. Call it in the journal's thread."""

    def __init__(self, ring: RingFile, index: RingIndex) -> None:
        self._ring = ring
        self._index = index

    def segments(self) -> list[tuple[int, int]]:
        """Return the one segment: number, and bytes that records take."""
        return [(RING_SEGMENT, self._index.bytes_from(0))]

    def held(self, segment: int) -> HeldSegment | None:
        """Return the ring; None for any other number."""
        if segment != RING_SEGMENT:
            return None
        return HeldSegment(self._ring.file.path, self._ring.floor.header, self._index.live())

    def path(self, segment: int) -> str:
        """Return the path of the ring."""
        return self._ring.file.path

    def is_in_place(self, record: Location) -> bool:
        """Return whether the log still has this record for its op."""
        return self._index.get(record.header.op) == record

    def rewrite_header(self, segment: int) -> None:
        """Write the first sector of the ring anew. Raises OSError: what is durable is unknown
        then."""
        if segment == RING_SEGMENT:
            self._ring.write_header()
