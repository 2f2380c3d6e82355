"""The journal's own bytes: segments, and the frame around each record in them.

A segment is a file of a fixed, sector-aligned size, written with zeros before its first use. Its
first sector (4,096 bytes) is the segment header; records follow, each beginning at a sector
boundary and padded with zeros to the next one. A record never crosses segments: if the next one
does not fit, the rest of the segment stays zero and the log goes on in the segment of the next
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
20     2    format version: 3 where superblock_sequence is not 0, else 2
22     2    kind: 1 prepare, 2 cut, 3 repaired, 4 restart
24     8    sequence: +1 for each record that this replica appends
32     8    durable_sequence: the last sequence known to be synced before this record's group was
            written; 0 for none
40     8    op: of the prepare; for a cut, the highest op that remains; zero for repaired; for a
            restart, the op behind which the log goes on
48     4    length of the content in bytes
52     4    thin_units: how many units behind the record's first are thin; zero in version 1
56     16   content_checksum: of a prepare, its header checksum (its identity); otherwise the
            BLAKE3-128 of the content
72     8    superblock_sequence: of the superblock that was durable then; zero before version 3
====== ==== ================================================================================

The checksum binds a frame to its place. So a misdirected write, a segment under the name of another
one, and a frame hidden inside a command's payload are invalid (the random journal_id is secret).
The frame repeats op and identity, so that a replica can ask its peers by (op, checksum) for a
prepare whose own bytes are damaged.

**Torn or rotten.** A disk writes a unit of 512 bytes whole or not at all, and a segment held zeros
before. If a crash cuts the write of a record short, some units are still all zeros although their
content is not. This distinguishes a torn record, which no journal ever acknowledged, from one that
rotted later. (A record that a disk wrote to another place leaves zeros, too. It can be recognized,
because its frame is valid only for the place of the zeros.) Two rules are needed. The last unit of
the content is filled up with the byte 0xFF (the units after it are zeros). The frame counts the
*thin* units: those with fewer than 16 bytes other than zero, which rot of a few bytes could make
blank. If there are more units of zeros than thin units, the record is torn
(`scan.DamagedRecord.torn`). The first unit holds the frame and is never thin. A tear stays unproven
if it affects no more units than there are thin ones that are not blank. Tears of records of version
1 are never proven, because version 1 fills up with zeros and counts no thin units.

Kinds of content:

* prepare: the bytes described in `viewstamp.format.prepare`.
* cut: empty. Records of lower sequence whose op is above `op` no longer belong to the log: a view
  change replaced them.
* repaired: pairs of 8-byte integers (first sequence, last sequence), both inclusive. The records
  lost at these sequences were repaired from peers, and no longer count as a loss of the log.
* restart: the 16-byte checksum of the entry at `op`. A snapshot of the cluster covers all entries
  up to `op`. Records of lower sequence no longer belong to the log, which goes on after `op`.

**Which superblock.** A record of version 3 names the superblock that was durable when the record
was written. A superblock of a lower sequence beside such a record is an older copy. Records at a
feature level below FEATURE_LEVEL_NAMED_SUPERBLOCK have version 2, which earlier builds read.

Version and magic of a frame keep their places in later versions. `scan` judges every sector of a
segment: part of an intact record, of a damaged one, or blank.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.prepare import HEADER_BYTES, SealedPrepare, checksum_of, decode_prepare
from viewstamp.limits import PREPARE_BODY_BYTES_MAX

SECTOR_BYTES = 4096
SEGMENT_MAGIC = b"VSSG"
SEGMENT_VERSION = 1
RECORD_MAGIC = b"VSRC"
RECORD_VERSION = 2
RECORD_VERSION_NAMED_SUPERBLOCK = 3
RECORD_VERSIONS_READ = (1, RECORD_VERSION, RECORD_VERSION_NAMED_SUPERBLOCK)
FRAME_BYTES = 80
UNIT_BYTES = 512
# Rot of fewer bytes than this cannot make a unit that is not thin look unwritten.
THIN_BYTES = 16
JOURNAL_ID_BYTES = 16
CONTENT_BYTES_MAX = HEADER_BYTES + PREPARE_BODY_BYTES_MAX

_ZERO_SECTOR = bytes(SECTOR_BYTES)
_FILL = b"\xff"
# A thin unit's zeros come in at most as many runs as THIN_BYTES, so one of them is this long.
_ZEROS_OF_THIN = bytes((UNIT_BYTES - THIN_BYTES) // THIN_BYTES)
_SEGMENT_HEADER = struct.Struct("<16s4sHHII16s16sQQ")
_FRAME = struct.Struct("<16s4sHHQQQII16sQ")
_PLACE = struct.Struct("<16sQQ")
_RANGE = struct.Struct("<QQ")
assert _FRAME.size == FRAME_BYTES < UNIT_BYTES
assert SECTOR_BYTES % UNIT_BYTES == 0


class RecordKind(IntEnum):
    """The kind of a record's content."""

    PREPARE = 1
    CUT = 2
    REPAIRED = 3
    RESTART = 4


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The journal and the number of a segment file. Both ids are 16 bytes."""

    cluster_id: bytes
    replica_id: int
    journal_id: bytes
    segment: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A record's frame without its checksum, which depends on where the record lies.

    The encoder of the record counts `thin_units`; None for a record of version 1.
    `superblock_sequence` is 0 where the record names no superblock.
    """

    kind: RecordKind
    sequence: int
    durable_sequence: int
    op: int
    length: int
    content_checksum: bytes
    thin_units: int | None = 0
    superblock_sequence: int = 0


@dataclass(frozen=True, slots=True)
class IntactRecord:
    """A record that verified in full. `content` is a Prepare or, for other kinds, raw bytes."""

    offset: int
    extent_bytes: int
    frame: Frame
    content: SealedPrepare | bytes


def padded_bytes(size: int) -> int:
    """`size` rounded up to whole sectors."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def record_bytes(content_bytes: int) -> int:
    """Bytes that a record with this much content occupies in a segment."""
    return padded_bytes(FRAME_BYTES + content_bytes)


def units_end(size: int) -> int:
    """`size` rounded up to whole units."""
    return -(-size // UNIT_BYTES) * UNIT_BYTES


def _thin_units(content: bytes) -> int:
    """Count the units after the first one that a few changed bytes could make blank."""
    if _ZEROS_OF_THIN not in content:
        return 0
    # The fill of the last unit is not zero, so only the content's own zeros count.
    return sum(
        UNIT_BYTES - content.count(0, start, start + UNIT_BYTES) < THIN_BYTES
        for start in range(UNIT_BYTES - FRAME_BYTES, len(content), UNIT_BYTES)
    )


def _padding(length: int, *, filled: bool) -> bytes:
    """The bytes between a content of `length` bytes and the end of its last sector."""
    size = FRAME_BYTES + length
    fill_bytes = units_end(size) - size if filled else 0
    return (_FILL * fill_bytes).ljust(padded_bytes(size) - size, b"\0")


def is_zero(part: bytes) -> bool:
    """Whether a part of one sector is all zero, at the speed of a memory comparison."""
    return _ZERO_SECTOR.startswith(part)


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first sector of a segment; raises ValueError for a header that no segment may have."""
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
    if reserved_start or reserved_end or not is_zero(sector[_SEGMENT_HEADER.size :]):
        raise FormatError("reserved bytes of the segment header are not zero")
    if segment < 1 or segment_bytes < 2 * SECTOR_BYTES or segment_bytes % SECTOR_BYTES:
        raise FormatError(f"segment {segment} of {segment_bytes} bytes is impossible")
    return SegmentHeader(cluster_id, replica_id, journal_id, segment, segment_bytes)


def _frame_checksum(journal_id: bytes, segment: int, offset: int, checked: bytes) -> bytes:
    return checksum_of(_PLACE.pack(journal_id, segment, offset) + checked)


def encode_record(
    frame: Frame, content: bytes, *, journal_id: bytes, segment: int, offset: int
) -> bytes:
    """The bytes of a record for `offset` of `segment`, in whole sectors, of version 2 or 3."""
    if len(content) != frame.length:
        raise ValueError(f"the frame says {frame.length} bytes, the content has {len(content)}")
    checked = _FRAME.pack(
        b"",
        RECORD_MAGIC,
        RECORD_VERSION_NAMED_SUPERBLOCK if frame.superblock_sequence else RECORD_VERSION,
        frame.kind,
        frame.sequence,
        frame.durable_sequence,
        frame.op,
        frame.length,
        _thin_units(content),
        frame.content_checksum,
        frame.superblock_sequence,
    )[CHECKSUM_BYTES:]
    checksum = _frame_checksum(journal_id, segment, offset, checked)
    return b"".join((checksum, checked, content, _padding(frame.length, filled=True)))


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
        thin_units,
        content_checksum,
        superblock_sequence,
    ) = _FRAME.unpack_from(buffer)
    if magic != RECORD_MAGIC:
        raise FormatError(f"record magic is {magic!r}, must be {RECORD_MAGIC!r}")
    checked = buffer[CHECKSUM_BYTES:FRAME_BYTES]
    if checksum != _frame_checksum(journal_id, segment, offset, checked):
        raise FormatError(f"record frame checksum {checksum.hex()} does not match its bytes")
    if version not in RECORD_VERSIONS_READ:
        raise FormatVersionError(
            f"record format version {version} is unknown, this build reads 1 to"
            f" {RECORD_VERSIONS_READ[-1]}"
        )
    if kind not in RecordKind._value2member_map_:
        raise FormatVersionError(f"record kind {kind} is unknown, this build reads 1, 2, 3 and 4")
    names_superblock = version == RECORD_VERSION_NAMED_SUPERBLOCK
    if (version == 1 and thin_units) or (superblock_sequence and not names_superblock):
        raise FormatError("reserved bytes of the record frame are not zero")
    if names_superblock and not superblock_sequence:
        raise FormatError(f"a record of version {version} names no superblock")
    frame = Frame(
        RecordKind(kind),
        sequence,
        durable_sequence,
        op,
        length,
        content_checksum,
        None if version == 1 else thin_units,
        superblock_sequence,
    )
    reason = invalid_frame(frame)
    if reason is not None:
        raise FormatError(f"record frame is impossible: {reason}")
    return frame


def claimed_sequence(buffer: bytes) -> int | None:
    """The sequence in bytes that look like a frame of any place; None if they do not.

    Nothing is verified, because that needs the place for which the record was made.
    """
    if len(buffer) < FRAME_BYTES:
        return None
    _, magic, _, _, sequence, *_ = _FRAME.unpack_from(buffer)
    return sequence if magic == RECORD_MAGIC else None


def invalid_frame(frame: Frame) -> str | None:
    """Why no correct journal can have written this frame, or None."""
    if frame.sequence < 1:
        return "sequence is 0, the first sequence is 1"
    if frame.durable_sequence >= frame.sequence:
        return f"durable_sequence {frame.durable_sequence} is not below {frame.sequence}"
    if frame.length > CONTENT_BYTES_MAX:
        return f"length {frame.length} exceeds {CONTENT_BYTES_MAX} bytes"
    units_behind_first = units_end(FRAME_BYTES + frame.length) // UNIT_BYTES - 1
    if (frame.thin_units or 0) > units_behind_first:
        return f"{frame.thin_units} thin units of {units_behind_first} behind the first"
    if frame.kind is RecordKind.PREPARE and frame.op < 1:
        return "op of a prepare is 0, the first op is 1"
    if frame.kind is RecordKind.RESTART and frame.op < 1:
        return "op of a restart is 0, a snapshot covers at least op 1"
    if frame.kind is RecordKind.REPAIRED and frame.op:
        return f"op of a repaired record is {frame.op}, must be 0"
    return None


def decode_record(buffer: bytes, *, journal_id: bytes, segment: int, offset: int) -> IntactRecord:
    """Read and verify the record that starts `buffer`; raises FormatError saying what is wrong."""
    frame = decode_frame(buffer, journal_id=journal_id, segment=segment, offset=offset)
    return IntactRecord(offset, record_bytes(frame.length), frame, decode_content(frame, buffer))


def decode_content(frame: Frame, buffer: bytes) -> SealedPrepare | bytes:
    """Read and verify the content that follows a verified frame. Raises FormatError."""
    end = FRAME_BYTES + frame.length
    extent_bytes = record_bytes(frame.length)
    if len(buffer) < extent_bytes:
        raise FormatError(f"record is cut off: {len(buffer)} of {extent_bytes} bytes")
    if buffer[end:extent_bytes] != _padding(frame.length, filled=frame.thin_units is not None):
        raise FormatError("padding after the record is not what it was written with")
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
    if frame.kind is RecordKind.RESTART and len(content) != CHECKSUM_BYTES:
        raise FormatError(f"a restart holds {CHECKSUM_BYTES} bytes, this one {len(content)}")
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
