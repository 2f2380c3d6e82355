"""Parts of an archived log: pieces and indexes of pieces, as one record, and the index itself.

A part stands for a range of log entries without a hole, or for an index whose own parts may have
holes that the manifest names. Level 0 is a piece (`archive_piece`). A part of level k + 1 is an
index of parts of level k and below. Records have 128 bytes. Integers are unsigned and
little-endian.

====== ==== ================================================================================
offset size part record
====== ==== ================================================================================
0      4    level: 0 for a piece, else that of the index
4      4    reserved, zero
8      8    first_op
16     8    last_op
24     8    first_revision: of the first entry
32     8    last_revision: of the last entry
40     8    first_time: log time of the first entry, microseconds since 1970
48     8    last_time: of the last entry
56     8    stored_bytes: size of the object, as it is stored
64     16   parent: checksum of the entry before the first one
80     16   last_checksum: of the last entry
96     32   digest: BLAKE3 of the object, as it is stored. It is part of the object's name
====== ==== ================================================================================

An index is a header of 48 bytes, followed by its records.

====== ==== ================================================================================
offset size index header
====== ==== ================================================================================
0      32   checksum: BLAKE3 (32 bytes) of all other bytes of the file, 32 to its end
32     4    magic, the ASCII letters "VSAI"
36     2    format version, 1
38     2    reserved, zero
40     4    level, 1 to 8
44     4    parts (N)
48     128 N records, ops ascending
====== ==== ================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from blake3 import blake3

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.archive_piece import PieceHeader
from viewstamp.format.digest import DIGEST_BYTES

INDEX_MAGIC: Final = b"VSAI"
INDEX_VERSION: Final = 1
INDEX_HEADER_BYTES: Final = 48
PART_BYTES: Final = 128
LEVEL_MAX: Final = 8
INDEX_PARTS_MAX: Final = 4096

_PART: Final = struct.Struct("<IIQQQQQQQ16s16s32s")
_HEADER: Final = struct.Struct("<32s4sHHII")
assert _PART.size == PART_BYTES
assert _HEADER.size == INDEX_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of an archived log, or an index of pieces. Times are microseconds since 1970.

    Checksums have 16 bytes; `digest` has 32, and is that of the object as it is stored.
    """

    level: int
    first_op: int
    last_op: int
    first_revision: int
    last_revision: int
    first_time: int
    last_time: int
    stored_bytes: int
    parent: bytes
    last_checksum: bytes
    digest: bytes

    @property
    def is_piece(self) -> bool:
        """Whether it holds entries itself."""
        return self.level == 0

    def follows(self, before: LogPart) -> bool:
        """Return whether its first entry is the one behind the last entry of another part."""
        return self.first_op == before.last_op + 1 and self.parent == before.last_checksum


def invalid_part(part: LogPart) -> str | None:
    """Return why no shipper can have made this part, or None."""
    if part.level > LEVEL_MAX:
        return f"level {part.level} exceeds {LEVEL_MAX}"
    if not 1 <= part.first_op <= part.last_op:
        return f"ops {part.first_op} to {part.last_op} are no range"
    if not 1 <= part.first_revision <= part.last_revision + 1:
        return f"revisions {part.first_revision} to {part.last_revision} are no range"
    if not part.stored_bytes:
        return "the object is empty"
    return None


def encode_part(part: LogPart) -> bytes:
    """Return the 128 bytes of a part. Raises FormatError for an impossible one."""
    reason = invalid_part(part)
    if reason is not None:
        raise FormatError(f"part of an archived log is impossible: {reason}")
    return _PART.pack(
        part.level,
        0,
        part.first_op,
        part.last_op,
        part.first_revision,
        part.last_revision,
        part.first_time,
        part.last_time,
        part.stored_bytes,
        part.parent,
        part.last_checksum,
        part.digest,
    )


def decode_parts(data: bytes, gaps: Sequence[tuple[int, int]] | None = None) -> tuple[LogPart, ...]:
    """Read records that fill `data`, ascending; raises FormatError saying what is wrong.

    With `gaps` each hole between two parts must lie in one of these ranges of ops.
    """
    parts: list[LogPart] = []
    for level, reserved, *fields in _PART.iter_unpack(data):
        part = LogPart(level, *fields)
        reason = "reserved bytes are not zero" if reserved else invalid_part(part)
        if reason is not None:
            raise FormatError(f"part {len(parts)} of an archived log: {reason}")
        parts.append(part)
    for before, after in pairwise(parts):
        _check_order(before, after, gaps)
    return tuple(parts)


def _check_order(before: LogPart, after: LogPart, gaps: Sequence[tuple[int, int]] | None) -> None:
    hole = before.last_op + 1, after.first_op - 1
    if hole[0] > hole[1] + 1:
        raise FormatError(f"part from op {after.first_op} begins before op {hole[0]}")
    if hole[0] == hole[1] + 1 and not after.follows(before):
        raise FormatError(f"part from op {after.first_op} does not follow the entry before it")
    is_hole = hole[0] <= hole[1]
    if gaps is not None and is_hole and not any(a <= hole[0] and hole[1] <= b for a, b in gaps):
        raise FormatError(f"ops {hole[0]} to {hole[1]} are missing, and no gap says so")


def encode_index(parts: Sequence[LogPart]) -> bytes:
    """Return the bytes of an index of parts; its level is one above the highest of theirs."""
    if not 1 <= len(parts) <= INDEX_PARTS_MAX:
        raise FormatError(f"an index has 1 to {INDEX_PARTS_MAX} parts, not {len(parts)}")
    level = max(part.level for part in parts) + 1
    packed = _HEADER.pack(b"", INDEX_MAGIC, INDEX_VERSION, 0, level, len(parts))
    checked = packed[DIGEST_BYTES:] + b"".join(map(encode_part, parts))
    return blake3(checked).digest() + checked


def decode_index(data: bytes) -> tuple[LogPart, ...]:
    """Read and verify an index; raises FormatError saying what is wrong."""
    if len(data) < INDEX_HEADER_BYTES:
        raise FormatError(f"index is cut off: {len(data)} of {INDEX_HEADER_BYTES} bytes")
    checksum, magic, version, reserved, level, count = _HEADER.unpack_from(data)
    if magic != INDEX_MAGIC:
        raise FormatError(f"index magic is {magic!r}, must be {INDEX_MAGIC!r}")
    if checksum != blake3(data[DIGEST_BYTES:]).digest():
        raise FormatError(f"index checksum {checksum.hex()} does not match its bytes")
    if version != INDEX_VERSION:
        raise FormatVersionError(
            f"index format version {version} is unknown, this build reads {INDEX_VERSION}"
        )
    if reserved:
        raise FormatError("reserved bytes of the index are not zero")
    if not 1 <= count <= INDEX_PARTS_MAX or len(data) != INDEX_HEADER_BYTES + count * PART_BYTES:
        raise FormatError(f"index of {len(data)} bytes states {count} parts")
    parts = decode_parts(data[INDEX_HEADER_BYTES:])
    if level != max(part.level for part in parts) + 1:
        raise FormatError(f"index of level {level} holds parts up to level {level}")
    return parts


def piece_part(header: PieceHeader, digest: bytes, stored_bytes: int) -> LogPart:
    """Return the part that stands for a piece."""
    return LogPart(
        level=0,
        first_op=header.first_op,
        last_op=header.last_op,
        first_revision=header.first_revision,
        last_revision=header.last_revision,
        first_time=header.first_time,
        last_time=header.last_time,
        stored_bytes=stored_bytes,
        parent=header.parent,
        last_checksum=header.last_checksum,
        digest=digest,
    )


def index_part(parts: Sequence[LogPart], digest: bytes, stored_bytes: int) -> LogPart:
    """Return the part that stands for an index of these parts."""
    first, last = parts[0], parts[-1]
    return LogPart(
        level=max(part.level for part in parts) + 1,
        first_op=first.first_op,
        last_op=last.last_op,
        first_revision=first.first_revision,
        last_revision=last.last_revision,
        first_time=first.first_time,
        last_time=last.last_time,
        stored_bytes=stored_bytes,
        parent=first.parent,
        last_checksum=last.last_checksum,
        digest=digest,
    )


assert _PART.size == 64 + 2 * CHECKSUM_BYTES + DIGEST_BYTES
