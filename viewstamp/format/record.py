"""The journal's own bytes: segments, and the frame around each record in them.

A segment is a file of a fixed, sector-aligned size, written with zeros before its first use. Its
first sector (4,096 bytes) is the segment header; records follow, each beginning at a sector
boundary and padded with zeros to the next one. A record never crosses segments: where the next one
does not fit, the rest of a segment stays zero and the log goes on in the segment of the next
number. All integers are unsigned and little-endian.

Segment header (the rest of its sector is zero):

====== ==== ================================================================================
offset size field
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of bytes 16..4095
16     4    magic, the ASCII letters "VSSG"
20     2    format version, 1
22     2    reserved, zero
24     4    replica_id
28     4    reserved, zero
32     16   cluster_id
48     16   journal_id: 16 random bytes drawn once per journal, the same in all its segments
64     8    segment: the number of this segment, 1, 2, 3 ...
72     8    segment_bytes: size of this file
====== ==== ================================================================================

Record frame, followed at once by `length` bytes of content:

====== ==== ================================================================================
offset size field
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of journal_id, segment (8 bytes), offset of the frame in its
            segment (8 bytes), then frame bytes 16..79
16     4    magic, the ASCII letters "VSRC"
20     2    format version, 1
22     2    kind: 1 prepare, 2 cut, 3 repaired
24     8    sequence: +1 for each record that this replica appends
32     8    durable_sequence: the last sequence known to be synced before this record's group was
            written; 0 for none
40     8    op: of the prepare; for a cut, the highest op that remains; zero for repaired
48     4    length of the content in bytes
52     4    reserved, zero
56     16   content_checksum: of a prepare, its header checksum (its identity); otherwise the
            BLAKE3-128 of the content
72     8    reserved, zero
====== ==== ================================================================================

The checksum binds a frame to its place. A misdirected write, a segment under another's name and a
frame that somebody hid inside a command's payload (the random journal_id is never told to anyone)
are therefore invalid. The frame names op and identity a second time, so that a prepare whose own
bytes are damaged can still be asked for from a peer by (op, checksum).

Kinds of content:

* prepare: the bytes described in `viewstamp.format.prepare`.
* cut: empty. Records of lower sequence whose op is above `op` no longer belong to the log: a view
  change replaced them.
* repaired: pairs of 8-byte integers (first sequence, last sequence), both inclusive. Whatever was
  lost at these sequences has been made good from peers, and is no longer held against the log.

A frame's version and magic keep their places in later versions. `scan_segment` judges every sector
of a segment: part of an intact record, of a damaged one, or blank.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.prepare import HEADER_BYTES, Prepare, checksum_of, decode_prepare
from viewstamp.limits import PREPARE_BODY_BYTES_MAX

SECTOR_BYTES = 4096
SEGMENT_MAGIC = b"VSSG"
SEGMENT_VERSION = 1
RECORD_MAGIC = b"VSRC"
RECORD_VERSION = 1
FRAME_BYTES = 80
JOURNAL_ID_BYTES = 16
CONTENT_BYTES_MAX = HEADER_BYTES + PREPARE_BODY_BYTES_MAX

_ZERO_SECTOR = bytes(SECTOR_BYTES)
_SEGMENT_HEADER = struct.Struct("<16s4sHHII16s16sQQ")
_FRAME = struct.Struct("<16s4sHHQQQII16sQ")
_PLACE = struct.Struct("<16sQQ")
_RANGE = struct.Struct("<QQ")
assert _FRAME.size == FRAME_BYTES


class RecordKind(IntEnum):
    """What a record's content is."""

    PREPARE = 1
    CUT = 2
    REPAIRED = 3


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Whose segment a file is. Both ids are 16 bytes."""

    cluster_id: bytes
    replica_id: int
    journal_id: bytes
    segment: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A record's frame without its checksum, which depends on where the record lies."""

    kind: RecordKind
    sequence: int
    durable_sequence: int
    op: int
    length: int
    content_checksum: bytes


@dataclass(frozen=True, slots=True)
class IntactRecord:
    """A record that verified in full. `content` is a Prepare or, for other kinds, raw bytes."""

    offset: int
    extent_bytes: int
    frame: Frame
    content: Prepare | bytes


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """Sectors that hold something, but no intact record.

    `frame` is known if it verified, and then the extent is the record's own; otherwise the extent
    is one sector, of which nothing can be told.
    """

    offset: int
    extent_bytes: int
    frame: Frame | None
    reason: str


@dataclass(frozen=True, slots=True)
class BlankSectors:
    """A stretch of sectors that are all zero."""

    offset: int
    extent_bytes: int


ScanItem = IntactRecord | DamagedRecord | BlankSectors


def padded_bytes(size: int) -> int:
    """`size` rounded up to whole sectors."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def record_bytes(content_bytes: int) -> int:
    """Bytes that a record with this much content occupies in a segment."""
    return padded_bytes(FRAME_BYTES + content_bytes)


def _is_zero(part: bytes) -> bool:
    """Whether a part of one sector is all zero, at the speed of a memory comparison."""
    return _ZERO_SECTOR.startswith(part)


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first sector of a segment; raises ValueError for a header that none may have."""
    if len(header.cluster_id) != CHECKSUM_BYTES or len(header.journal_id) != JOURNAL_ID_BYTES:
        raise ValueError("cluster_id and journal_id of a segment are 16 bytes each")
    if header.segment < 1 or header.segment_bytes % SECTOR_BYTES:
        raise ValueError(f"a segment has a number from 1 on and whole sectors, not {header}")
    packed = _SEGMENT_HEADER.pack(
        b"",
        SEGMENT_MAGIC,
        SEGMENT_VERSION,
        0,
        header.replica_id,
        0,
        header.cluster_id,
        header.journal_id,
        header.segment,
        header.segment_bytes,
    )
    checked = packed[CHECKSUM_BYTES:].ljust(SECTOR_BYTES - CHECKSUM_BYTES, b"\0")
    return checksum_of(checked) + checked


def decode_segment_header(sector: bytes) -> SegmentHeader:
    """Read and verify a segment's first sector; raises FormatError saying what is wrong."""
    if len(sector) != SECTOR_BYTES:
        raise FormatError(f"segment header is {len(sector)} bytes, must be {SECTOR_BYTES}")
    (
        checksum,
        magic,
        version,
        reserved_start,
        replica_id,
        reserved_end,
        cluster_id,
        journal_id,
        segment,
        segment_bytes,
    ) = _SEGMENT_HEADER.unpack_from(sector)
    if magic != SEGMENT_MAGIC:
        raise FormatError(f"segment magic is {magic!r}, must be {SEGMENT_MAGIC!r}")
    if checksum != checksum_of(sector[CHECKSUM_BYTES:]):
        raise FormatError(f"segment header checksum {checksum.hex()} does not match its bytes")
    if version != SEGMENT_VERSION:
        raise FormatVersionError(
            f"segment format version {version} is unknown, this build reads {SEGMENT_VERSION}"
        )
    if reserved_start or reserved_end or not _is_zero(sector[_SEGMENT_HEADER.size :]):
        raise FormatError("reserved bytes of the segment header are not zero")
    if segment < 1 or segment_bytes < 2 * SECTOR_BYTES or segment_bytes % SECTOR_BYTES:
        raise FormatError(f"segment {segment} of {segment_bytes} bytes is impossible")
    return SegmentHeader(cluster_id, replica_id, journal_id, segment, segment_bytes)


def _frame_checksum(journal_id: bytes, segment: int, offset: int, checked: bytes) -> bytes:
    return checksum_of(_PLACE.pack(journal_id, segment, offset) + checked)


def encode_record(
    frame: Frame, content: bytes, *, journal_id: bytes, segment: int, offset: int
) -> bytes:
    """A record as it lies at `offset` of `segment`, padded to whole sectors."""
    if len(content) != frame.length:
        raise ValueError(f"the frame says {frame.length} bytes, the content has {len(content)}")
    checked = _FRAME.pack(
        b"",
        RECORD_MAGIC,
        RECORD_VERSION,
        frame.kind,
        frame.sequence,
        frame.durable_sequence,
        frame.op,
        frame.length,
        0,
        frame.content_checksum,
        0,
    )[CHECKSUM_BYTES:]
    checksum = _frame_checksum(journal_id, segment, offset, checked)
    return (checksum + checked + content).ljust(record_bytes(frame.length), b"\0")


def decode_frame(buffer: bytes, *, journal_id: bytes, segment: int, offset: int) -> Frame:
    """Read and verify the frame at the start of `buffer`; raises FormatError saying what is wrong.

    `segment` and `offset` are where the bytes were read from.
    """
    if len(buffer) < FRAME_BYTES:
        raise FormatError(f"record frame is cut off: {len(buffer)} of {FRAME_BYTES} bytes")
    (
        checksum,
        magic,
        version,
        kind,
        sequence,
        durable_sequence,
        op,
        length,
        reserved_middle,
        content_checksum,
        reserved_end,
    ) = _FRAME.unpack_from(buffer)
    if magic != RECORD_MAGIC:
        raise FormatError(f"record magic is {magic!r}, must be {RECORD_MAGIC!r}")
    checked = buffer[CHECKSUM_BYTES:FRAME_BYTES]
    if checksum != _frame_checksum(journal_id, segment, offset, checked):
        raise FormatError(f"record frame checksum {checksum.hex()} does not match its bytes")
    if version != RECORD_VERSION:
        raise FormatVersionError(
            f"record format version {version} is unknown, this build reads {RECORD_VERSION}"
        )
    if kind not in RecordKind._value2member_map_:
        raise FormatVersionError(f"record kind {kind} is unknown, this build reads 1, 2 and 3")
    if reserved_middle or reserved_end:
        raise FormatError("reserved bytes of the record frame are not zero")
    frame = Frame(RecordKind(kind), sequence, durable_sequence, op, length, content_checksum)
    reason = invalid_frame(frame)
    if reason is not None:
        raise FormatError(f"record frame is impossible: {reason}")
    return frame


def invalid_frame(frame: Frame) -> str | None:
    """Why no correct journal can have written this frame, or None."""
    if frame.sequence < 1:
        return "sequence is 0, the first sequence is 1"
    if frame.durable_sequence >= frame.sequence:
        return f"durable_sequence {frame.durable_sequence} is not below {frame.sequence}"
    if frame.length > CONTENT_BYTES_MAX:
        return f"length {frame.length} exceeds {CONTENT_BYTES_MAX} bytes"
    if frame.kind is RecordKind.PREPARE and frame.op < 1:
        return "op of a prepare is 0, the first op is 1"
    if frame.kind is RecordKind.REPAIRED and frame.op:
        return f"op of a repaired record is {frame.op}, must be 0"
    return None


def decode_record(buffer: bytes, *, journal_id: bytes, segment: int, offset: int) -> IntactRecord:
    """Read and verify the record that starts `buffer`; raises FormatError saying what is wrong."""
    frame = decode_frame(buffer, journal_id=journal_id, segment=segment, offset=offset)
    return IntactRecord(offset, record_bytes(frame.length), frame, decode_content(frame, buffer))


def decode_content(frame: Frame, buffer: bytes) -> Prepare | bytes:
    """Read and verify the content behind a verified frame; raises FormatError."""
    end = FRAME_BYTES + frame.length
    extent_bytes = record_bytes(frame.length)
    if len(buffer) < extent_bytes:
        raise FormatError(f"record is cut off: {len(buffer)} of {extent_bytes} bytes")
    if not _is_zero(buffer[end:extent_bytes]):
        raise FormatError("padding after the record is not zero")
    content = buffer[FRAME_BYTES:end]
    if frame.kind is not RecordKind.PREPARE:
        return _verified_mark(frame, content)
    prepare = decode_prepare(content)
    if prepare.checksum != frame.content_checksum or prepare.op != frame.op:
        raise FormatError(
            f"frame announces op {frame.op} {frame.content_checksum.hex()}, "
            f"the prepare is op {prepare.op} {prepare.checksum.hex()}"
        )
    return prepare


def _verified_mark(frame: Frame, content: bytes) -> bytes:
    if checksum_of(content) != frame.content_checksum:
        raise FormatError(f"content checksum of a {frame.kind.name.lower()} record does not match")
    if frame.kind is RecordKind.CUT and content:
        raise FormatError(f"a cut record has no content, this one has {len(content)} bytes")
    if frame.kind is RecordKind.REPAIRED:
        decode_ranges(content)
    return content


def encode_ranges(ranges: tuple[tuple[int, int], ...]) -> bytes:
    """Content of a repaired record: inclusive ranges of sequences."""
    return b"".join(_RANGE.pack(first, last) for first, last in ranges)


def decode_ranges(content: bytes) -> tuple[tuple[int, int], ...]:
    """Inclusive ranges of sequences; raises FormatError for half a range or one that is empty."""
    if len(content) % _RANGE.size:
        raise FormatError(f"{len(content)} bytes are no whole number of sequence ranges")
    ranges = tuple(_RANGE.iter_unpack(content))
    for first, last in ranges:
        if first > last:
            raise FormatError(f"sequence range {first}..{last} is empty")
    return ranges


def scan_segment(data: bytes, *, journal_id: bytes, segment: int) -> Iterator[ScanItem]:
    """Judge every sector of a segment after its header; the items touch and cover all of it.

    Never raises for damaged bytes, only FormatVersionError for intact ones of a later version.
    """
    offset = SECTOR_BYTES
    while offset < len(data):
        blank_bytes = _blank_bytes(data, offset)
        item: ScanItem
        if blank_bytes:
            item = BlankSectors(offset, blank_bytes)
        else:
            item = _scan_record(data, offset, journal_id=journal_id, segment=segment)
        yield item
        offset += item.extent_bytes


def _blank_bytes(data: bytes, offset: int) -> int:
    end = offset
    while end < len(data) and _is_zero(data[end : end + SECTOR_BYTES]):
        end = min(end + SECTOR_BYTES, len(data))
    return end - offset


def _scan_record(
    data: bytes, offset: int, *, journal_id: bytes, segment: int
) -> IntactRecord | DamagedRecord:
    sector = data[offset : offset + SECTOR_BYTES]
    try:
        frame = decode_frame(sector, journal_id=journal_id, segment=segment, offset=offset)
    except FormatVersionError:
        raise
    except FormatError as error:
        return DamagedRecord(offset, len(sector), None, str(error))
    extent = data[offset : offset + record_bytes(frame.length)]
    try:
        return IntactRecord(offset, len(extent), frame, decode_content(frame, extent))
    except FormatVersionError:
        raise
    except FormatError as error:
        return DamagedRecord(offset, len(extent), frame, str(error))
