"""The records of the log by segment, for whoever reads them all again from the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coordinator.journal.index import Index, Location
from coordinator.journal.interface import HeldSegment
from coordinator.journal.segments import Segments
from viewstamp.format.record import SegmentHeader, encode_segment_header


class KeptRecords:
    """What the journal holds. Call it in the journal's thread."""

    def __init__(
        self,
        segments: Segments,
        index: Index,
        kind: SegmentHeader,
        end: Callable[[], tuple[int, int]],
    ) -> None:
        """`kind` is a header without its number, `end` where the next record will be written:
        segment and offset."""
        self._segments = segments
        self._index = index
        self._kind = kind
        self._end = end

    def segments(self) -> list[tuple[int, int]]:
        """Return the segments in use, ascending: number, and bytes that records may take."""
        last, offset = self._end()
        sealed = range(self._segments.first, last)
        return [*((each, self._segments.size_of(each)) for each in sealed), (last, offset)]

    def held(self, segment: int) -> HeldSegment | None:
        """Return a segment; None if it was dropped."""
        last, _ = self._end()
        if not self._segments.first <= segment <= last:
            return None
        return HeldSegment(
            self._segments.path(segment), self._header(segment), self._index.records_in(segment)
        )

    def path(self, segment: int) -> str:
        """Return the path of a segment, made or not."""
        return self._segments.path(segment)

    def is_in_place(self, record: Location) -> bool:
        """Return whether the log still has this record for its op."""
        return self._index.get(record.header.op) == record

    def rewrite_header(self, segment: int) -> None:
        """Write the first sector of a segment anew, if it is still there. Raises OSError: what is
        durable is unknown then."""
        if self.held(segment) is not None:
            self._segments[segment].write(0, encode_segment_header(self._header(segment)))
            self._segments[segment].sync()

    def _header(self, segment: int) -> SegmentHeader:
        size_bytes = self._segments.size_of(segment)
        return replace(self._kind, segment=segment, segment_bytes=size_bytes)
