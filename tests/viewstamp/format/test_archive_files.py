"""Pieces, indexes and manifests of an archive: what is written is read, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from blake3 import blake3

from testkit.journal_builders import CLUSTER_ID, OTHER_CLUSTER_ID, chain, prepare
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.archive_manifest import (
    ARCHIVED_SNAPSHOTS_MAX,
    ArchivedSnapshot,
    ArchiveManifest,
    decode_archive,
    encode_archive,
)
from viewstamp.format.archive_parts import (
    INDEX_PARTS_MAX,
    LogPart,
    decode_index,
    decode_parts,
    encode_index,
    encode_part,
    index_part,
)
from viewstamp.format.archive_piece import (
    PIECE_HEADER_BYTES,
    decode_piece,
    encode_piece,
    piece_of,
)
from viewstamp.format.prepare import checksum_of
from viewstamp.format.sealed_object import (
    SealedObjectHeader,
    decode_sealed_header,
    encode_sealed_header,
    is_sealed,
    sealed_bytes,
)

PART: Final = LogPart(0, 1, 4, 1, 4, 10, 40, 900, bytes(16), b"d" * 16, b"p" * 32)
NEXT: Final = LogPart(0, 5, 6, 5, 6, 50, 60, 700, b"d" * 16, b"f" * 16, b"q" * 32)
FAR: Final = LogPart(1, 9, 12, 9, 12, 90, 99, 300, b"h" * 16, b"l" * 16, b"r" * 32)
SNAPSHOT: Final = ArchivedSnapshot(3, 6, 6, 60, 5_000, 400, b"f" * 16, b"s" * 32)
MANIFEST: Final = ArchiveManifest(
    CLUSTER_ID, 2, 77, 1, b"m" * 32, (SNAPSHOT,), (PART, NEXT, FAR), ((7, 8),), ((1, 70),)
)
PIECE: Final = encode_piece(piece_of(chain(3)))
INDEX: Final = encode_index([PART, NEXT])
ARCHIVE: Final = encode_archive(MANIFEST)


def with_checksum(data: bytes, size: int) -> bytes:
    """Return bytes whose leading checksum is right."""
    return blake3(data[size:]).digest(length=size) + data[size:]


def with_header_checksum(data: bytes) -> bytes:
    """Return a piece whose header has the right checksum."""
    return checksum_of(data[16:PIECE_HEADER_BYTES]) + data[16:]


def changed(data: bytes, offset: int, value: bytes) -> bytes:
    """Return bytes of which some are others."""
    return data[:offset] + value + data[offset + len(value) :]


def test_what_is_written_is_read() -> None:
    """Pieces, indexes and manifests come back as they were, and say what they stand for."""
    piece = decode_piece(PIECE)
    assert piece.entries == tuple(chain(3))
    assert encode_piece(piece) == PIECE
    assert decode_index(INDEX) == (PART, NEXT)
    assert decode_archive(ARCHIVE) == MANIFEST
    assert (MANIFEST.last_op, MANIFEST.last_checksum) == (12, b"l" * 16)
    empty = ArchiveManifest(CLUSTER_ID, 1, 77, 1)
    assert decode_archive(encode_archive(empty)) == empty
    assert (empty.last_op, empty.last_checksum) == (0, None)
    assert index_part([PART, NEXT], b"i" * 32, 304) == LogPart(
        1, 1, 6, 1, 6, 10, 60, 304, bytes(16), b"f" * 16, b"i" * 32
    )
    assert PART.is_piece and not FAR.is_piece


@pytest.mark.parametrize(
    ("data", "decode"), [(PIECE, decode_piece), (INDEX, decode_index), (ARCHIVE, decode_archive)]
)
def test_every_flipped_and_lost_byte_is_found(
    data: bytes, decode: Callable[[bytes], object]
) -> None:
    """No byte can be changed, lost or added without an error."""
    for offset in range(len(data)):
        with pytest.raises(FormatError):
            decode(changed(data, offset, bytes([data[offset] ^ 0x20])))
    for size in range(0, len(data), 7):
        with pytest.raises(FormatError):
            decode(data[:size])
    with pytest.raises(FormatError):
        decode(data + b"\0")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (with_header_checksum(changed(PIECE, 36, b"\x02")), "this build reads 1"),
        (with_checksum(changed(INDEX, 36, b"\x02"), 32), "this build reads 1"),
        (with_checksum(changed(ARCHIVE, 36, b"\x02"), 32), "this build reads 1"),
    ],
)
def test_a_newer_version_is_no_damage(data: bytes, says: str) -> None:
    """Intact bytes of a later version are told apart from rot."""
    decode: Any = {b"VSAI": decode_index, b"VSAM": decode_archive}.get(data[32:36], decode_piece)
    with pytest.raises(FormatVersionError, match=says):
        decode(data)


@pytest.mark.parametrize(
    ("decode", "data", "says"),
    [
        (decode_piece, with_header_checksum(changed(PIECE, 38, b"\x01")), "reserved"),
        (decode_piece, with_header_checksum(changed(PIECE, 72, b"\x09")), "header of the piece"),
        (decode_piece, with_header_checksum(changed(PIECE, 112, b"\x09")), "does not follow"),
        (decode_piece, with_header_checksum(changed(PIECE, 40, b"\x09")), "of cluster"),
        (decode_piece, with_header_checksum(changed(PIECE, 128, b"\x09")), "header of the piece"),
        (decode_index, with_checksum(changed(INDEX, 38, b"\x01"), 32), "reserved"),
        (decode_index, with_checksum(changed(INDEX, 40, b"\x02"), 32), "of level 2"),
        (decode_index, with_checksum(changed(INDEX, 44, b"\x03"), 32), "states 3 parts"),
        (decode_index, with_checksum(changed(INDEX, 52, b"\x01"), 32), "part 0 .* reserved"),
        (decode_archive, with_checksum(changed(ARCHIVE, 38, b"\x01"), 32), "reserved"),
        (decode_archive, with_checksum(changed(ARCHIVE, 150, b"\x01"), 32), "reserved"),
        (decode_archive, with_checksum(changed(ARCHIVE, 112, b"\x02"), 32), "more or fewer"),
        (decode_archive, with_checksum(changed(ARCHIVE, 56, b"\0"), 32), "number .* is 0"),
    ],
)
def test_impossible_files_are_refused(
    decode: Callable[[bytes], object], data: bytes, says: str
) -> None:
    """Right checksums over wrong contents are refused, with what is wrong."""
    with pytest.raises(FormatError, match=says):
        decode(data)


def test_an_empty_piece_is_refused() -> None:
    """A header without entries is no piece."""
    header = PIECE[:PIECE_HEADER_BYTES]
    header = changed(header, 16, checksum_of(b""))
    header = changed(header, 104, bytes(8))
    with pytest.raises(FormatError, match="without an entry"):
        decode_piece(with_header_checksum(header))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], "at least one"),
        ([*chain(1), *chain(3)[2:]], "op 3 does not follow op 1"),
        ([*chain(1), prepare(2, b"x" * 16)], "op 2 does not follow"),
        (
            [*chain(1), prepare(2, chain(1)[0].checksum, cluster_id=OTHER_CLUSTER_ID)],
            "is of cluster",
        ),
    ],
)
def test_a_piece_is_one_chain(entries: list[Any], says: str) -> None:
    """Entries that do not follow each other make no piece."""
    with pytest.raises(FormatError, match=says):
        piece_of(entries)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"level": 9}, "level 9"),
        ({"first_op": 0}, "ops 0 to 4"),
        ({"first_op": 5}, "ops 5 to 4"),
        ({"first_revision": 6}, "revisions 6 to 4"),
        ({"first_revision": 0}, "revisions 0 to 4"),
        ({"stored_bytes": 0}, "empty"),
    ],
)
def test_an_impossible_part_is_refused(fields: dict[str, int], says: str) -> None:
    """A part that no shipper makes is neither written nor read."""
    with pytest.raises(FormatError, match=says):
        encode_part(replace(PART, **fields))  # type: ignore[arg-type]  # numbers alone


@pytest.mark.parametrize(
    ("parts", "gaps", "says"),
    [
        ([NEXT, PART], None, "begins before"),
        ([PART, replace(NEXT, parent=b"x" * 16)], None, "does not follow"),
        ([PART, FAR], [(6, 8)], "5 to 8 are missing"),
        ([PART, FAR], [(5, 7)], "5 to 8 are missing"),
    ],
)
def test_parts_follow_each_other_or_a_gap(
    parts: list[LogPart], gaps: list[tuple[int, int]] | None, says: str
) -> None:
    """Parts overlap nowhere, join where they meet, and a hole is named."""
    with pytest.raises(FormatError, match=says):
        decode_parts(b"".join(map(encode_part, parts)), gaps)


def test_holes_are_known_to_gaps() -> None:
    """A hole within a gap is fine, and in an index its manifest judges."""
    data = encode_part(PART) + encode_part(FAR)
    assert decode_parts(data) == decode_parts(data, [(4, 9)]) == (PART, FAR)


@pytest.mark.parametrize("count", [0, INDEX_PARTS_MAX + 1])
def test_an_index_has_its_bounds(count: int) -> None:
    """Neither no part nor too many are an index."""
    with pytest.raises(FormatError, match="an index has 1 to"):
        encode_index([PART] * count)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"number": 0}, "is 0"),
        ({"number": 1}, "manifest 1 names"),
        ({"previous": bytes(32)}, "manifest 2 names"),
        ({"snapshots": (SNAPSHOT, SNAPSHOT)}, "generations do not ascend"),
        ({"snapshots": (SNAPSHOT,) * (ARCHIVED_SNAPSHOTS_MAX + 1)}, "1025 snapshots"),
        ({"gaps": ((7, 8), (3, 4))}, "ops of gaps do not ascend"),
        ({"drops": ((2, 1), (2, 2))}, "numbers of drops do not ascend"),
    ],
)
def test_an_impossible_manifest_is_not_written(fields: dict[str, Any], says: str) -> None:
    """What a reader would refuse is refused before it is written."""
    with pytest.raises(FormatError, match=says):
        encode_archive(replace(MANIFEST, **fields))


def test_encrypted_objects_are_told_apart() -> None:
    """The header of an encrypted object is read back, and other bytes are none."""
    header = SealedObjectHeader(b"k" * 16, b"s" * 32)
    data = encode_sealed_header(header)
    assert is_sealed(data) and not is_sealed(PIECE)
    assert decode_sealed_header(data) == header
    assert (sealed_bytes(0), sealed_bytes(65536), sealed_bytes(65537)) == (80, 65616, 65633)
    with pytest.raises(FormatError, match="cut off"):
        decode_sealed_header(data[:63])
    with pytest.raises(FormatError, match="magic"):
        decode_sealed_header(b"X" + data[1:])
    with pytest.raises(FormatVersionError, match="this build reads 1"):
        decode_sealed_header(changed(data, 4, b"\x02"))
    for offset in (6, 8, 12):
        with pytest.raises(FormatError, match="none that this version writes"):
            decode_sealed_header(changed(data, offset, b"\x05"))
