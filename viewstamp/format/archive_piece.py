"""A piece of an archived log: committed entries without a hole, in the order of their ops.

A header of 144 bytes, followed at once by the entries as the journal stores them (`prepare`) and
nothing else. Every replica makes the same bytes of the same range, since nothing of the replica is
in it. Integers are unsigned and little-endian.

====== ==== ================================================================================
offset size piece header
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of header bytes 16..143
16     16   body_checksum: BLAKE3-128 of all bytes behind the header
32     4    magic, the ASCII letters "VSAP"
36     2    format version, 1
38     2    reserved, zero
40     16   cluster_id
56     8    first_op
64     8    last_op
72     8    first_revision
80     8    last_revision
88     8    first_time, microseconds since 1970
96     8    last_time
104    8    body_bytes: the bytes behind the header
112    16   parent: checksum of the entry before the first one, zeros before op 1
128    16   last_checksum: of the last entry
====== ==== ================================================================================

A reader verifies in this order: length, magic, checksum, version, reserved bytes, body length, body
checksum, and then each entry, its op, its cluster, and that it names the one before it as parent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.prepare import (
    HEADER_BYTES,
    SealedPrepare,
    checksum_of,
    decode_header,
    decode_prepare,
    encode_prepare,
)

PIECE_MAGIC: Final = b"VSAP"
PIECE_VERSION: Final = 1
PIECE_HEADER_BYTES: Final = 144

_HEADER: Final = struct.Struct("<16s16s4sHH16sQQQQQQQ16s16s")
_CHECKED: Final = struct.Struct("<16s4sHH16sQQQQQQQ16s16s")
assert _HEADER.size == PIECE_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class PieceHeader:
    """What a piece holds. Times are microseconds since 1970; checksums have 16 bytes."""

    cluster_id: bytes
    first_op: int
    last_op: int
    first_revision: int
    last_revision: int
    first_time: int
    last_time: int
    body_bytes: int
    parent: bytes
    last_checksum: bytes


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A verified piece: its header, and its entries."""

    header: PieceHeader
    entries: tuple[SealedPrepare, ...]


def piece_of(entries: Sequence[SealedPrepare]) -> LogPiece:
    """Return the piece that entries make; raises FormatError unless each follows the one before."""
    if not entries:
        raise FormatError("a piece holds at least one entry")
    first, last = entries[0], entries[-1]
    header = PieceHeader(
        cluster_id=first.header.cluster_id,
        first_op=first.op,
        last_op=last.op,
        first_revision=first.first_revision,
        last_revision=last.last_revision,
        first_time=first.timestamp,
        last_time=last.timestamp,
        body_bytes=sum(HEADER_BYTES + entry.header.size for entry in entries),
        parent=first.parent,
        last_checksum=last.checksum,
    )
    _check_chain(header, entries)
    return LogPiece(header, tuple(entries))


def encode_piece(piece: LogPiece) -> bytes:
    """Return the bytes of a piece."""
    header = piece.header
    body = b"".join(map(encode_prepare, piece.entries))
    checked = _CHECKED.pack(
        checksum_of(body),
        PIECE_MAGIC,
        PIECE_VERSION,
        0,
        header.cluster_id,
        header.first_op,
        header.last_op,
        header.first_revision,
        header.last_revision,
        header.first_time,
        header.last_time,
        header.body_bytes,
        header.parent,
        header.last_checksum,
    )
    return checksum_of(checked) + checked + body


def decode_piece(data: bytes) -> LogPiece:
    """Read and verify a whole piece; raises FormatError saying what is wrong."""
    header, body_checksum = _decode_header(data)
    body = memoryview(data)[PIECE_HEADER_BYTES:]
    if len(body) != header.body_bytes:
        raise FormatError(
            f"piece from op {header.first_op} has {len(body)} bytes of entries, its header says"
            f" {header.body_bytes}"
        )
    if checksum_of(body) != body_checksum:
        raise FormatError(f"entries of the piece from op {header.first_op} were changed")
    entries = tuple(_entries(body))
    if not entries:
        raise FormatError("piece without an entry")
    _check_chain(header, entries)
    return LogPiece(header, entries)


def _decode_header(data: bytes) -> tuple[PieceHeader, bytes]:
    if len(data) < PIECE_HEADER_BYTES:
        raise FormatError(f"piece is cut off: {len(data)} of {PIECE_HEADER_BYTES} bytes")
    checksum, body_checksum, magic, version, reserved, *fields = _HEADER.unpack_from(data)
    if magic != PIECE_MAGIC:
        raise FormatError(f"piece magic is {magic!r}, must be {PIECE_MAGIC!r}")
    if checksum != checksum_of(data[CHECKSUM_BYTES:PIECE_HEADER_BYTES]):
        raise FormatError(f"piece header checksum {checksum.hex()} does not match its bytes")
    if version != PIECE_VERSION:
        raise FormatVersionError(
            f"piece format version {version} is unknown, this build reads {PIECE_VERSION}"
        )
    if reserved:
        raise FormatError("reserved bytes of the piece are not zero")
    return PieceHeader(*fields), body_checksum


def _entries(body: memoryview) -> Iterator[SealedPrepare]:
    offset = 0
    while offset < len(body):
        size = decode_header(body[offset:]).size
        end = offset + HEADER_BYTES + size
        yield decode_prepare(body[offset:end])
        offset = end


def _check_chain(header: PieceHeader, entries: Sequence[SealedPrepare]) -> None:
    """Raise FormatError unless the entries are those that the header announces."""
    op, parent = header.first_op, header.parent
    for entry in entries:
        if entry.op != op or entry.parent != parent:
            raise FormatError(f"piece: op {entry.op} does not follow op {op - 1}")
        if entry.header.cluster_id != header.cluster_id:
            raise FormatError(f"op {entry.op} is of cluster {entry.header.cluster_id.hex()}")
        op, parent = op + 1, entry.checksum
    first, last = entries[0], entries[-1]
    found = (last.op, first.first_revision, last.last_revision, first.timestamp, last.timestamp)
    stated = (
        header.last_op,
        header.first_revision,
        header.last_revision,
        header.first_time,
        header.last_time,
    )
    if found != stated or parent != header.last_checksum:
        raise FormatError(f"the header of the piece says {stated}, its entries {found}")
