"""Judging every sector of a segment: part of an intact record, of a damaged one, or blank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.record import (
    FRAME_BYTES,
    SECTOR_BYTES,
    UNIT_BYTES,
    Frame,
    IntactRecord,
    decode_content,
    decode_frame,
    is_zero,
    record_bytes,
    units_end,
)


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """Sectors that hold something, but no intact record.

    `frame` is known if it verified; then the extent is that of the record. Otherwise the extent is
    one sector of unknown content. `torn` says that units are still zeros that no whole record has
    as zeros: units after the first if the frame is known, otherwise the first unit of the sector,
    where a frame would be.
    """

    offset: int
    extent_bytes: int
    frame: Frame | None
    reason: str
    torn: bool


@dataclass(frozen=True, slots=True)
class BlankSectors:
    """A stretch of sectors that are all zero."""

    offset: int
    extent_bytes: int


ScanItem = IntactRecord | DamagedRecord | BlankSectors


class SegmentBytes(Protocol):
    """The bytes of a whole segment: `bytes`, or memory of another kind."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> bytes: ...


def scan_segment(
    data: SegmentBytes, *, journal_id: bytes, segment: int, start: int = SECTOR_BYTES
) -> Iterator[ScanItem]:
    """Judge every sector of a segment after its header; the items touch and cover all of it.

    `start` is the offset of a record or of blank sectors, where an earlier walk ended. Never raises
    for damaged bytes, only FormatVersionError for intact ones of a later version.
    """
    offset = start
    while offset < len(data):
        blank_bytes = _blank_bytes(data, offset)
        item: ScanItem
        if blank_bytes:
            item = BlankSectors(offset, blank_bytes)
        else:
            item = _scan_record(data, offset, journal_id=journal_id, segment=segment)
        yield item
        offset += item.extent_bytes


def _blank_bytes(data: SegmentBytes, offset: int) -> int:
    end = offset
    while end < len(data) and is_zero(data[end : end + SECTOR_BYTES]):
        end = min(end + SECTOR_BYTES, len(data))
    return end - offset


def _scan_record(
    data: SegmentBytes, offset: int, *, journal_id: bytes, segment: int
) -> IntactRecord | DamagedRecord:
    sector = data[offset : offset + SECTOR_BYTES]
    try:
        frame = decode_frame(sector, journal_id=journal_id, segment=segment, offset=offset)
    except FormatVersionError:
        raise
    except FormatError as error:
        return DamagedRecord(offset, len(sector), None, str(error), is_zero(sector[:UNIT_BYTES]))
    extent = data[offset : offset + record_bytes(frame.length)]
    try:
        return IntactRecord(offset, len(extent), frame, decode_content(frame, extent))
    except FormatVersionError:
        raise
    except FormatError as error:
        return DamagedRecord(offset, len(extent), frame, str(error), _is_torn(frame, extent))


def _is_torn(frame: Frame, extent: bytes) -> bool:
    """Return whether units after the first are zeros that were not written as zeros."""
    if frame.thin_units is None:
        return False
    end = units_end(FRAME_BYTES + frame.length)
    blank_units = sum(
        is_zero(extent[start : start + UNIT_BYTES]) for start in range(UNIT_BYTES, end, UNIT_BYTES)
    )
    return blank_units > frame.thin_units
