"""The ring journal's own bytes: one file of a fixed size, in which records go round.

The file is filled with zeros when it is made, and never grows. All integers are unsigned and
little-endian. Its parts, in sectors of 4,096 bytes:

=============== ============================================================================
sectors         part
=============== ============================================================================
0               a segment header (`viewstamp.format.record`) of segment 1, of the ring's bytes
1               the first copy of the floor
2 ..            side 0: its slots, 32 in a sector, and behind them its records
behind it       side 1, in the same way
the last one    the second copy of the floor
=============== ============================================================================

The floor names the side that is in use, and the ring's bytes are those of a ring with this side
alone. The other side is where the log is written anew, without what it no longer needs. Records
(`viewstamp.format.record`) are those of segment 1.

A side has as many slots as sectors for records, and a record takes at least one: slots last as long
as the room. A record never crosses the end of its side. If the next one does not fit there, it goes
to the beginning of the side. The record of sequence s has slot s mod the number of slots.

Slot (128 bytes, so that no write tears one):

====== ==== ================================================================================
offset size field
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of journal_id, number of the slot (8 bytes), bytes 16..127
16     4    magic, the ASCII letters "VSRS"
20     2    format version, 1
22     2    kind of the record
24     8    sequence
32     8    durable_sequence
40     8    op
48     4    length of the content in bytes
52     4    reserved, zero
56     16   content_checksum
72     8    superblock_sequence
80     8    offset of the record in the file
88     16   of a restart, its content; else zero
104    24   reserved, zero
====== ==== ================================================================================

Floor (the rest of its sector is zero):

====== ==== ================================================================================
offset size field
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of bytes 16..4095
16     4    magic, the ASCII letters "VSRF"
20     2    format version, 1
22     2    number of the copy, 0 or 1
24     4    replica_id
28     4    side, 0 or 1
32     16   cluster_id
48     16   journal_id
64     8    bytes of the ring
72     8    floor: the sequence of the first record that is needed
====== ==== ================================================================================

**The order of writes.** The records of a group are written and synced, and then their slots. So a
slot that names a record proves that the record was durable: if it is damaged, it has rotted. A
record that is damaged and that no slot names is torn, and was never acknowledged. The floor rises
in both copies, one after the other, before anything below it is written over. What is written on
the other side is whole and synced before the floor names it. Its sequences are higher than all that
lie there, and those of this side, so that nothing is believed that an earlier time has left.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.prepare import checksum_of
from viewstamp.format.record import (
    FRAME_BYTES,
    SECTOR_BYTES,
    Frame,
    RecordKind,
    SegmentHeader,
    invalid_frame,
    is_zero,
    padded_bytes,
)

RING_FILE: Final = "ring.log"
# The number of the segment that the whole ring is, for its header and its records.
RING_SEGMENT: Final = 1
SLOT_BYTES: Final = 128
SLOT_MAGIC: Final = b"VSRS"
SLOT_MAGIC_OFFSET: Final = 16
SLOT_SEQUENCE_OFFSET: Final = 24
FLOOR_MAGIC: Final = b"VSRF"
RING_VERSION: Final = 1
FLOOR_COPIES: Final = 2
SIDES: Final = 2
SLOTS_PER_SECTOR: Final = SECTOR_BYTES // SLOT_BYTES
_SECTORS_BESIDE: Final = 1 + FLOOR_COPIES
_SLOT = struct.Struct("<16s4sHHQQQII16sQQ16s24s")
_FLOOR = struct.Struct("<16s4sHHII16s16sQQ")
_SLOT_PLACE = struct.Struct("<16sQ")
_NOTHING: Final = bytes(CHECKSUM_BYTES)
assert _SLOT.size == SLOT_BYTES
assert FRAME_BYTES < SLOT_BYTES


def floor_offset(copy: int, file_bytes: int) -> int:
    """Return the offset of a copy of the floor: far apart, so that no one write hits both."""
    return SECTOR_BYTES if copy == 0 else file_bytes - SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Where the parts of one side lie, in a ring of so many bytes."""

    ring_bytes: int
    side: int = 0

    @classmethod
    def of_file(cls, file_bytes: int, side: int = 0) -> RingLayout:
        """Return the layout of the smallest ring whose file has so many bytes."""
        sectors = (file_bytes // SECTOR_BYTES - _SECTORS_BESIDE) // SIDES
        return cls((max(0, sectors) + _SECTORS_BESIDE) * SECTOR_BYTES, side)

    @property
    def slots(self) -> int:
        """The number of slots of a side, and of sectors for records."""
        sectors = self.ring_bytes // SECTOR_BYTES - _SECTORS_BESIDE
        return sectors * SLOTS_PER_SECTOR // (SLOTS_PER_SECTOR + 1)

    @property
    def side_bytes(self) -> int:
        """The bytes of a side."""
        return padded_bytes(self.slots * SLOT_BYTES) + self.slots * SECTOR_BYTES

    @property
    def file_bytes(self) -> int:
        """The bytes of the file, which has both sides."""
        return _SECTORS_BESIDE * SECTOR_BYTES + SIDES * self.side_bytes

    @property
    def slots_start(self) -> int:
        """The offset of the first slot."""
        return 2 * SECTOR_BYTES + self.side * self.side_bytes

    @property
    def start(self) -> int:
        """The offset at which records begin."""
        return self.slots_start + padded_bytes(self.slots * SLOT_BYTES)

    @property
    def end(self) -> int:
        """The offset at which the side ends."""
        return self.start + self.slots * SECTOR_BYTES

    @property
    def other(self) -> RingLayout:
        """The layout of the other side."""
        return replace(self, side=(self.side + 1) % SIDES)

    def floor_offset(self, copy: int) -> int:
        """Return the offset of a copy of the floor."""
        return floor_offset(copy, self.file_bytes)

    def slot_of(self, sequence: int) -> int:
        """Return the number of the slot of a record."""
        return sequence % self.slots


@dataclass(frozen=True, slots=True)
class RingSlot:
    """What a slot says of a record: its frame (without thin units), and where it lies.

    `mark` is the content of a cut or a restart, which is therefore whole here; else empty.
    """

    frame: Frame
    offset: int
    mark: bytes = b""

    def is_of(self, frame: Frame) -> bool:
        """Return whether this is the slot of the record with that frame."""
        return self.frame == replace(frame, thin_units=0)


@dataclass(frozen=True, slots=True)
class RingFloor:
    """Whose ring it is, which side is in use, and the sequence of the first record needed."""

    cluster_id: bytes
    replica_id: int
    journal_id: bytes
    ring_bytes: int
    floor: int
    side: int = 0

    @property
    def layout(self) -> RingLayout:
        """Where the parts of the side in use lie."""
        return RingLayout(self.ring_bytes, self.side)

    @property
    def header(self) -> SegmentHeader:
        """The header of the file."""
        return SegmentHeader(
            self.cluster_id, self.replica_id, self.journal_id, RING_SEGMENT, self.ring_bytes
        )


def encode_slot(slot: RingSlot, *, journal_id: bytes, number: int) -> bytes:
    """The bytes of a slot."""
    frame = slot.frame
    checked = _SLOT.pack(
        b"",
        SLOT_MAGIC,
        RING_VERSION,
        frame.kind,
        frame.sequence,
        frame.durable_sequence,
        frame.op,
        frame.length,
        0,
        frame.content_checksum,
        frame.superblock_sequence,
        slot.offset,
        slot.mark if frame.kind is RecordKind.RESTART else b"",
        b"",
    )[CHECKSUM_BYTES:]
    return checksum_of(_SLOT_PLACE.pack(journal_id, number) + checked) + checked


def decode_slot(raw: bytes, *, journal_id: bytes, number: int) -> RingSlot | None:
    """Read and verify a slot; None for one that was never written. Raises FormatError."""
    if is_zero(raw):
        return None
    (
        checksum,
        magic,
        version,
        kind,
        sequence,
        durable_sequence,
        op,
        length,
        _,
        content_checksum,
        superblock_sequence,
        offset,
        mark,
        _,
    ) = _SLOT.unpack(raw)
    if magic != SLOT_MAGIC:
        raise FormatError(f"slot magic is {magic!r}, must be {SLOT_MAGIC!r}")
    if checksum != checksum_of(_SLOT_PLACE.pack(journal_id, number) + raw[CHECKSUM_BYTES:]):
        raise FormatError(f"slot checksum {checksum.hex()} does not match its bytes")
    if version != RING_VERSION or kind not in RecordKind._value2member_map_:
        raise FormatVersionError(
            f"slot format version {version} with kind {kind} is unknown, this build reads version"
            f" {RING_VERSION}"
        )
    frame = Frame(
        RecordKind(kind),
        sequence,
        durable_sequence,
        op,
        length,
        content_checksum,
        superblock_sequence=superblock_sequence,
    )
    reason = invalid_frame(frame)
    if reason is not None:
        raise FormatError(f"slot is impossible: {reason}")
    return RingSlot(frame, offset, mark if frame.kind is RecordKind.RESTART else b"")


def encode_floor(floor: RingFloor, copy: int) -> bytes:
    """The sector of a copy of the floor."""
    packed = _FLOOR.pack(
        b"",
        FLOOR_MAGIC,
        RING_VERSION,
        copy,
        floor.replica_id,
        floor.side,
        floor.cluster_id,
        floor.journal_id,
        floor.ring_bytes,
        floor.floor,
    )
    checked = packed[CHECKSUM_BYTES:].ljust(SECTOR_BYTES - CHECKSUM_BYTES, b"\0")
    return checksum_of(checked) + checked


def decode_floor(sector: bytes, copy: int) -> RingFloor:
    """Read and verify a copy of the floor; raises FormatError saying what is wrong."""
    if len(sector) != SECTOR_BYTES:
        raise FormatError(f"a floor is {len(sector)} bytes, must be {SECTOR_BYTES}")
    (
        checksum,
        magic,
        version,
        found,
        replica_id,
        side,
        cluster_id,
        journal_id,
        ring_bytes,
        floor,
    ) = _FLOOR.unpack_from(sector)
    if magic != FLOOR_MAGIC:
        raise FormatError(f"floor magic is {magic!r}, must be {FLOOR_MAGIC!r}")
    if checksum != checksum_of(sector[CHECKSUM_BYTES:]):
        raise FormatError(f"floor checksum {checksum.hex()} does not match its bytes")
    if version != RING_VERSION:
        raise FormatVersionError(
            f"ring format version {version} is unknown, this build reads {RING_VERSION}"
        )
    if found != copy or floor < 1:
        raise FormatError(f"copy {found} of floor {floor} lies in the place of copy {copy}")
    if side >= SIDES:
        raise FormatError(f"the floor names side {side}, there are {SIDES}")
    return RingFloor(cluster_id, replica_id, journal_id, ring_bytes, floor, side)
