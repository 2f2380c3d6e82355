"""Records and segments: layout, classification of every sector, and proof against misplacement."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from testkit.journal_builders import CLUSTER_ID, JOURNAL_ID, SEGMENT_BYTES, chain
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import SealedPrepare, checksum_of, encode_prepare
from viewstamp.format.record import (
    CONTENT_BYTES_MAX,
    FRAME_BYTES,
    SECTOR_BYTES,
    UNIT_BYTES,
    Frame,
    IntactRecord,
    RecordKind,
    SegmentHeader,
    decode_frame,
    decode_ranges,
    decode_record,
    decode_segment_header,
    encode_ranges,
    encode_record,
    encode_segment_header,
    padded_bytes,
    record_bytes,
)
from viewstamp.format.scan import BlankSectors, DamagedRecord, ScanItem, scan_segment

HEADER = SegmentHeader(CLUSTER_ID, 2, JOURNAL_ID, 7, SEGMENT_BYTES)
PLACE: Any = {"journal_id": JOURNAL_ID, "segment": 7, "offset": SECTOR_BYTES}
EMPTY_CHECKSUM = checksum_of(b"")
GOLDEN_FRAME_VERSION_1 = bytes.fromhex(
    "d49c26a8359ba24e608aab375c4b846356535243010001000900000000000000"
    "080000000000000001000000000000008400000000000000b274df6150860862"
    "7cae83e6688421e70000000000000000"
)
GOLDEN_FRAME = bytes.fromhex(
    "5524f6a01d5eacc078b76784f89a5fab56535243020001000900000000000000"
    "080000000000000001000000000000008400000000000000b274df6150860862"
    "7cae83e6688421e70000000000000000"
)
GOLDEN_SEGMENT = bytes.fromhex(
    "e41d078ce74740ba7d601afd371865bb56535347010000000200000000000000"
    "000102030405060708090a0b0c0d0e0f6a6f75726e616c2d6964656e74697479"
    "07000000000000000040000000000000"
)


def prepare_record(prepare: SealedPrepare, sequence: int, offset: int, durable: int = 0) -> bytes:
    """The record of a prepare in segment 7."""
    content = encode_prepare(prepare)
    frame = Frame(RecordKind.PREPARE, sequence, durable, prepare.op, len(content), prepare.checksum)
    return encode_record(frame, content, journal_id=JOURNAL_ID, segment=7, offset=offset)


def small_segment() -> bytes:
    """A segment with two records, the second one of two sectors, and one blank sector."""
    one, two = chain(2, bodies={2: bytes(range(256)) * 20})
    records = prepare_record(one, 1, SECTOR_BYTES) + prepare_record(two, 2, 2 * SECTOR_BYTES, 1)
    return (encode_segment_header(HEADER) + records).ljust(5 * SECTOR_BYTES, b"\0")


def scan(data: bytes, segment: int = 7) -> list[ScanItem]:
    """Scan with the known journal id."""
    return list(scan_segment(data, journal_id=JOURNAL_ID, segment=segment))


def reframed(record: bytes, offset: int, value: bytes) -> bytes:
    """Return a record with changed frame bytes and a correct checksum."""
    changed = record[:offset] + value + record[offset + len(value) :]
    bound = struct.pack("<16sQQ", JOURNAL_ID, 7, SECTOR_BYTES) + changed[16:FRAME_BYTES]
    return checksum_of(bound) + changed[16:]


def test_frame_layout_is_pinned() -> None:
    """The bytes of a known frame never change, and match the docstring."""
    record = prepare_record(chain(1)[0], 9, SECTOR_BYTES, 8)
    bound = struct.pack("<16sQQ", JOURNAL_ID, 7, SECTOR_BYTES) + record[16:80]

    assert record[:FRAME_BYTES] == GOLDEN_FRAME
    assert record[:16] == blake3(bound).digest()[:16]
    assert record[16:24] == b"VSRC\x02\x00\x01\x00"
    assert struct.unpack("<QQQII", record[24:56]) == (9, 8, 1, 128 + 4, 0)
    assert record[56:72] == chain(1)[0].checksum
    assert record[72:80] == bytes(8)
    assert record[80 : 80 + 132] == encode_prepare(chain(1)[0])
    assert record[212:512] == b"\xff" * 300
    assert record[512:] == bytes(SECTOR_BYTES - 512)


def version_1(prepare: SealedPrepare, sequence: int, durable: int) -> bytes:
    """A record as builds before version 2 wrote it at the start of segment 7."""
    content = encode_prepare(prepare)
    checked = struct.pack(
        "<4sHHQQQII16sQ",
        *(b"VSRC", 1, RecordKind.PREPARE, sequence, durable, prepare.op, len(content), 0),
        *(prepare.checksum, 0),
    )
    bound = struct.pack("<16sQQ", JOURNAL_ID, 7, SECTOR_BYTES) + checked
    record = checksum_of(bound) + checked + content
    return record.ljust(padded_bytes(len(record)), b"\0")


def test_a_record_that_names_its_superblock_has_version_3() -> None:
    """Only the version and the last field of the frame differ, and each needs the other."""
    one = chain(1)[0]
    content = encode_prepare(one)
    frame = Frame(
        RecordKind.PREPARE, 9, 8, 1, len(content), one.checksum, superblock_sequence=0x0706
    )
    record = encode_record(frame, content, **PLACE)
    assert record[16:22] == b"VSRC\x03\x00"
    assert record[22:72] == prepare_record(one, 9, SECTOR_BYTES, 8)[22:72]
    assert record[72:80] == b"\x06\x07\0\0\0\0\0\0"
    assert decode_record(record, **PLACE).frame == frame
    with pytest.raises(FormatError, match="names no superblock"):
        decode_record(reframed(record, 72, bytes(8)), **PLACE)
    for version in (b"\x01", b"\x02"):
        with pytest.raises(FormatError, match="reserved"):
            decode_record(reframed(record, 20, version), **PLACE)


def test_records_of_version_1_are_read() -> None:
    """Records of an older build are intact, byte by byte, and no damage to them passes for torn."""
    one, two = chain(2, bodies={2: b"body" * 2000})
    record = version_1(one, 9, 8)
    assert record[:FRAME_BYTES] == GOLDEN_FRAME_VERSION_1
    decoded = decode_record(record, **PLACE)
    assert decoded.content == one
    assert decoded.frame == Frame(RecordKind.PREPARE, 9, 8, 1, 132, one.checksum, None)
    with pytest.raises(FormatError, match="padding"):
        decode_record(record[:-1] + b"\xff", **PLACE)
    with pytest.raises(FormatError, match="reserved"):
        decode_record(reframed(record, 52, b"\x01"), **PLACE)

    halved = version_1(two, 9, 8)[:SECTOR_BYTES] + bytes(SECTOR_BYTES)
    (item,) = scan(encode_segment_header(HEADER) + halved)
    assert isinstance(item, DamagedRecord)
    assert not item.torn


# --- Torn or rotten ---

DENSE = bytes(range(1, 256)) * 10


def damaged(record: bytes) -> DamagedRecord:
    """What a scan says of a damaged record of one or two sectors."""
    item = scan(encode_segment_header(HEADER) + record)[0]
    assert isinstance(item, DamagedRecord)
    return item


@pytest.mark.parametrize(
    ("body", "thin_units"),
    [
        (b"short", 0),
        (DENSE, 0),
        (bytes(2048), 3),
        (b"\1" * 15 + bytes(2048), 3),
        (DENSE[: 512 * 3] + bytes(512) + DENSE[: 512 * 2], 0),
        (DENSE[: 512 * 3] + bytes(1024) + DENSE[: 512 * 2], 1),
        (bytes(512 - 80 - 128) + bytes(512 * 3 - 15), 3),
        (bytes(512 - 80 - 128) + bytes(512 * 3 - 16), 2),
        (bytes(512 - 80 - 128) + (bytes(496) + b"\1" * 16) * 3, 0),
        (bytes(512 - 80 - 128) + (bytes(497) + b"\1" * 15) * 3, 3),
    ],
)
def test_thin_units_are_counted(body: bytes, thin_units: int) -> None:
    """A unit behind the first is thin if fewer than 16 of its bytes, filling included, are set."""
    record = prepare_record(chain(1, bodies={1: body})[0], 1, SECTOR_BYTES)
    assert decode_record(record, **PLACE).frame.thin_units == thin_units
    units = [record[at : at + UNIT_BYTES] for at in range(0, len(record), UNIT_BYTES)]
    used = -(-(FRAME_BYTES + 128 + len(body)) // UNIT_BYTES)
    assert sum(UNIT_BYTES - unit.count(0) < 16 for unit in units[1:used]) == thin_units
    assert UNIT_BYTES - units[0].count(0) >= 16


def lost(record: bytes, units: set[int]) -> bytes:
    """Return the record without these units, which are still zeros."""
    parts = [record[at : at + UNIT_BYTES] for at in range(0, len(record), UNIT_BYTES)]
    return b"".join(bytes(UNIT_BYTES) if n in units else part for n, part in enumerate(parts))


@given(
    st.lists(st.sampled_from([bytes(512), DENSE[:512]]), max_size=6),
    st.sampled_from([b"", b"\1", DENSE[:300], DENSE[:305], DENSE[:512]]),
    st.sets(st.integers(min_value=0, max_value=9)),
)
def test_whatever_units_are_lost_the_tear_is_proved(
    parts: list[bytes], end: bytes, units: set[int]
) -> None:
    """A record that lacks any non-zero units is no longer intact, and certainly torn."""
    record = prepare_record(chain(1, bodies={1: b"".join(parts) + end})[0], 1, SECTOR_BYTES)
    torn = lost(record, units)
    items = scan(encode_segment_header(HEADER) + torn)
    if torn == record:
        assert isinstance(items[0], IntactRecord)
    elif any(torn[:UNIT_BYTES]):
        assert isinstance(items[0], DamagedRecord)
        assert items[0].torn
    else:
        # The frame is gone. The remaining bytes begin with the missing unit.
        first = items[0]
        assert isinstance(first, BlankSectors) or (
            isinstance(first, DamagedRecord) and first.frame is None and first.torn
        )


def test_no_flipped_byte_passes_for_a_tear() -> None:
    """Damage to any byte leaves a record that is damaged and not torn.

    The last unit would be the dangerous one, with a single byte of content, were it not filled up.
    """
    body = DENSE[: 512 - 80 - 128] + bytes(512) + b"\1" + bytes(511) + b"\1"
    record = prepare_record(chain(1, bodies={1: body})[0], 1, SECTOR_BYTES)
    for position in range(len(record)):
        for value in {0, 0xFF, record[position] ^ 1} - {record[position]}:
            rotten = record[:position] + bytes([value]) + record[position + 1 :]
            assert not damaged(rotten).torn, (position, value)


def test_rot_of_fifteen_bytes_does_not_pass_for_a_tear() -> None:
    """A thin unit that decays to zeros is within the frame's count; one byte more would not be."""
    body = DENSE[: 512 - 80 - 128] + b"\1" * 15 + bytes(497) + DENSE[:512]
    record = prepare_record(chain(1, bodies={1: body})[0], 1, SECTOR_BYTES)
    assert not damaged(lost(record, {1})).torn
    assert damaged(lost(record, {1, 2})).torn
    assert damaged(lost(record, {2})).torn is False


def test_segment_header_layout_is_pinned() -> None:
    """The bytes of a known segment header never change, and match the docstring."""
    sector = encode_segment_header(HEADER)

    assert sector[:80] == GOLDEN_SEGMENT
    assert sector[:16] == blake3(sector[16:]).digest()[:16]
    assert sector[16:24] == b"VSSG\x01\x00\x00\x00"
    assert struct.unpack("<II", sector[24:32]) == (2, 0)
    assert sector[32:64] == CLUSTER_ID + JOURNAL_ID
    assert struct.unpack("<QQ", sector[64:80]) == (7, SEGMENT_BYTES)
    assert sector[80:] == bytes(SECTOR_BYTES - 80)
    assert decode_segment_header(sector) == HEADER


@pytest.mark.parametrize(
    ("size", "padded"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192), (8192, 8192)]
)
def test_padding_rounds_up_to_sectors(size: int, padded: int) -> None:
    """Sizes are padded to whole sectors; whole sectors get no padding."""
    assert padded_bytes(size) == padded
    assert record_bytes(4096 - FRAME_BYTES) == 4096


def test_scan_classifies_all_sectors() -> None:
    """A scan gives records, then blank space, touching and covering the whole segment."""
    items = scan(small_segment())

    assert [type(item) for item in items] == [IntactRecord, IntactRecord, BlankSectors]
    assert [item.offset for item in items] == [4096, 8192, 16384]
    assert [item.extent_bytes for item in items] == [4096, 8192, 4096]


def test_every_flipped_byte_is_seen() -> None:
    """The header or exactly one item of the scan reveals each flipped byte of a segment."""
    pristine = small_segment()
    expected = scan(pristine)
    for position in range(len(pristine)):
        damaged = bytearray(pristine)
        damaged[position] ^= 1 << position % 8
        if position < SECTOR_BYTES:
            with pytest.raises(FormatError):
                decode_segment_header(bytes(damaged[:SECTOR_BYTES]))
            continue
        items = scan(bytes(damaged))
        touched = [
            item for item in items if item.offset <= position < item.offset + item.extent_bytes
        ]
        assert [type(item) for item in touched] == [DamagedRecord], position
        assert sum(item.extent_bytes for item in items) == len(pristine) - SECTOR_BYTES
        intact = [item for item in items if isinstance(item, IntactRecord)]
        assert len(intact) == sum(
            isinstance(item, IntactRecord)
            and not item.offset <= position < item.offset + item.extent_bytes
            for item in expected
        )


def test_a_damaged_body_still_tells_its_op() -> None:
    """The frame of a record whose prepare is damaged names op and identity for the repair."""
    data = bytearray(small_segment())
    data[2 * SECTOR_BYTES + FRAME_BYTES + 3] ^= 1

    damaged = [item for item in scan(bytes(data)) if isinstance(item, DamagedRecord)]

    assert len(damaged) == 1
    assert damaged[0].frame is not None
    assert damaged[0].frame.op == 2
    assert damaged[0].extent_bytes == 2 * SECTOR_BYTES
    assert (
        damaged[0].frame.content_checksum
        == chain(2, bodies={2: bytes(range(256)) * 20})[1].checksum
    )


def test_a_misplaced_record_is_damage() -> None:
    """A record at another offset, in another segment or of another journal does not verify."""
    record = prepare_record(chain(1)[0], 1, SECTOR_BYTES)
    header = encode_segment_header(HEADER)
    moved = header + bytes(SECTOR_BYTES) + record

    assert isinstance(scan(header + record)[0], IntactRecord)
    assert isinstance(scan(moved)[1], DamagedRecord)
    assert isinstance(scan(header + record, segment=8)[0], DamagedRecord)
    foreign = list(scan_segment(header + record, journal_id=bytes(16), segment=7))
    assert isinstance(foreign[0], DamagedRecord)


def test_a_frame_hidden_in_a_payload_is_no_record() -> None:
    """A client cannot forge a record: it does not know the random id of the journal."""
    guessed = bytes(16)
    frame = Frame(RecordKind.CUT, 99, 98, 1, 0, EMPTY_CHECKSUM)
    forged = encode_record(frame, b"", journal_id=guessed, segment=7, offset=2 * SECTOR_BYTES)
    filler = bytes(SECTOR_BYTES - FRAME_BYTES - 128)
    data = bytearray(encode_segment_header(HEADER))
    data += prepare_record(chain(1, bodies={1: filler + forged})[0], 1, SECTOR_BYTES)
    assert data[2 * SECTOR_BYTES : 2 * SECTOR_BYTES + 80] == forged[:80]
    data[SECTOR_BYTES + 20] ^= 1

    items = scan(bytes(data))

    assert all(isinstance(item, DamagedRecord) and item.frame is None for item in items)


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (24, struct.pack("<Q", 0), "sequence is 0"),
        (32, struct.pack("<Q", 1), "durable_sequence 1 is not below 1"),
        (40, struct.pack("<Q", 0), "op of a prepare is 0"),
        (48, struct.pack("<I", CONTENT_BYTES_MAX + 1), "length"),
        (52, b"\x01\0\0\0", "1 thin units of 0"),
        (72, b"\x01", "reserved"),
        (16, b"VSRX", "magic"),
    ],
)
def test_impossible_frames_are_refused(offset: int, value: bytes, reason: str) -> None:
    """A frame with a correct checksum is refused if no journal can have written it."""
    record = reframed(prepare_record(chain(1)[0], 1, SECTOR_BYTES), offset, value)
    with pytest.raises(FormatError, match=reason):
        decode_record(record, **PLACE)


@pytest.mark.parametrize(("offset", "value"), [(20, b"\x04\0"), (22, b"\x05\0")])
def test_newer_records_are_not_called_corrupt(offset: int, value: bytes) -> None:
    """An intact record of a later version or kind stops the scan with a clear message."""
    record = reframed(prepare_record(chain(1)[0], 1, SECTOR_BYTES), offset, value)
    with pytest.raises(FormatVersionError, match="unknown"):
        scan(encode_segment_header(HEADER) + record)


def test_a_prepare_of_a_newer_version_is_not_called_corrupt() -> None:
    """A record of this version around a prepare of a later version stops the scan, too."""
    content = encode_prepare(chain(1)[0])
    newer = content[16:68] + b"\x03\0" + content[70:128]
    content = checksum_of(newer) + newer + content[128:]
    frame = Frame(RecordKind.PREPARE, 1, 0, 1, len(content), content[:16])
    record = encode_record(frame, content, **PLACE)
    with pytest.raises(FormatVersionError, match="prepare format version 3"):
        scan(encode_segment_header(HEADER) + record)


@pytest.mark.parametrize(
    ("header", "offset", "value", "error"),
    [
        (HEADER, 20, b"\x02\0", FormatVersionError),
        (HEADER, 22, b"\x01\0", FormatError),
        (HEADER, 28, b"\x01", FormatError),
        (HEADER, 64, bytes(8), FormatError),
        (HEADER, 72, struct.pack("<Q", 4097), FormatError),
        (HEADER, 100, b"\x01", FormatError),
        (HEADER, 16, b"VSSX", FormatError),
    ],
)
def test_impossible_segment_headers_are_refused(
    header: SegmentHeader, offset: int, value: bytes, error: type[FormatError]
) -> None:
    """A segment header with a correct checksum is refused if its content is impossible."""
    sector = encode_segment_header(header)
    checked = sector[16:offset] + value + sector[offset + len(value) :]
    with pytest.raises(error):
        decode_segment_header(checksum_of(checked) + checked)
    with pytest.raises(FormatError, match="must be 4096"):
        decode_segment_header(sector[:-1])


@pytest.mark.parametrize(
    "header",
    [
        SegmentHeader(b"short", 0, JOURNAL_ID, 1, SEGMENT_BYTES),
        SegmentHeader(CLUSTER_ID, 0, b"", 1, SEGMENT_BYTES),
        SegmentHeader(CLUSTER_ID, 0, JOURNAL_ID, 0, SEGMENT_BYTES),
        SegmentHeader(CLUSTER_ID, 0, JOURNAL_ID, 1, SEGMENT_BYTES + 1),
    ],
)
def test_impossible_segment_headers_are_not_written(header: SegmentHeader) -> None:
    """Encoding refuses what decoding would refuse."""
    with pytest.raises(ValueError, match="segment"):
        encode_segment_header(header)


def test_frame_and_content_must_agree() -> None:
    """A content of another length is not written, and one of another identity is not read."""
    one, two = chain(2)
    content = encode_prepare(one)
    wrong_length = Frame(RecordKind.PREPARE, 1, 0, 1, 5, one.checksum)
    with pytest.raises(ValueError, match="frame says 5 bytes"):
        encode_record(wrong_length, content, **PLACE)
    for frame in (
        Frame(RecordKind.PREPARE, 1, 0, 1, len(content), two.checksum),
        Frame(RecordKind.PREPARE, 1, 0, 2, len(content), one.checksum),
    ):
        record = encode_record(frame, content, **PLACE)
        with pytest.raises(FormatError, match="frame announces"):
            decode_record(record, **PLACE)


RANGES = encode_ranges(((1, 2), (5, 5)))


@pytest.mark.parametrize(
    ("frame", "content", "reason"),
    [
        (Frame(RecordKind.CUT, 1, 0, 4, 0, EMPTY_CHECKSUM), b"", None),
        (Frame(RecordKind.CUT, 1, 0, 0, 0, EMPTY_CHECKSUM), b"", None),
        (Frame(RecordKind.CUT, 1, 0, 4, 1, checksum_of(b"x")), b"x", "no content"),
        (Frame(RecordKind.REPAIRED, 1, 0, 0, 32, checksum_of(RANGES)), RANGES, None),
        (Frame(RecordKind.REPAIRED, 1, 0, 4, 32, checksum_of(RANGES)), RANGES, "must be 0"),
        (Frame(RecordKind.REPAIRED, 1, 0, 0, 32, bytes(16)), RANGES, "content checksum"),
        (Frame(RecordKind.REPAIRED, 1, 0, 0, 1, checksum_of(b"x")), b"x", "whole number"),
        (Frame(RecordKind.RESTART, 1, 0, 7, 16, checksum_of(JOURNAL_ID)), JOURNAL_ID, None),
        (Frame(RecordKind.RESTART, 1, 0, 7, 1, checksum_of(b"x")), b"x", "holds 16 bytes"),
        (Frame(RecordKind.RESTART, 1, 0, 0, 16, checksum_of(JOURNAL_ID)), JOURNAL_ID, "op of a"),
    ],
)
def test_marks_are_verified(frame: Frame, content: bytes, reason: str | None) -> None:
    """Cut, repaired and restart records verify their content and their fields."""
    record = encode_record(frame, content, **PLACE)
    if reason is None:
        assert decode_record(record, **PLACE).content == content
    else:
        with pytest.raises(FormatError, match=reason):
            decode_record(record, **PLACE)


def test_ranges_round_trip() -> None:
    """Ranges are read back as written, and a range that ends before it begins is refused."""
    assert decode_ranges(RANGES) == ((1, 2), (5, 5))
    with pytest.raises(FormatError, match=r"3\.\.2 is empty"):
        decode_ranges(encode_ranges(((3, 2),)))


def test_cut_off_records_are_refused() -> None:
    """A record that ends before its frame or before its extent is refused."""
    record = prepare_record(chain(1)[0], 1, SECTOR_BYTES)
    with pytest.raises(FormatError, match="frame is cut off"):
        decode_record(record[:79], **PLACE)
    with pytest.raises(FormatError, match="record is cut off"):
        decode_record(record[:-1], **PLACE)


@given(st.binary(max_size=3 * SECTOR_BYTES), st.integers(min_value=0, max_value=4096))
def test_random_bytes_raise_format_errors_only(junk: bytes, start: int) -> None:
    """No decoder raises anything but FormatError, and a scan of junk covers all of it."""
    data = small_segment()[: SECTOR_BYTES + start] + junk
    for decode in (decode_segment_header, decode_ranges):
        with contextlib.suppress(FormatError):
            decode(junk)
    for buffer in (junk, data[SECTOR_BYTES:]):
        for decode_at in (decode_frame, decode_record):
            with contextlib.suppress(FormatError):
                decode_at(buffer, **PLACE)
    assert sum(item.extent_bytes for item in scan(data)) == max(0, len(data) - SECTOR_BYTES)
