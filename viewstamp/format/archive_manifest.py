"""Manifests of an archive: what is there, as of one number. Numbers ascend; each is written once.

A manifest is written last, after all that it names. It does not grow with the log: older parts are
in indexes (`archive_parts`). A header of 160 bytes is followed by the records of snapshots, parts,
gaps and drops, in this order. Integers are unsigned and little-endian.

====== ==== ================================================================================
offset size manifest header
====== ==== ================================================================================
0      32   checksum: BLAKE3 (32 bytes) of all other bytes of the file, 32 to its end
32     4    magic, the ASCII letters "VSAM"
36     2    format version, 1
38     2    reserved, zero
40     16   cluster_id
56     8    number, 1, 2, 3 ...
64     8    written: microseconds since 1970, by the clock of the shipper
72     8    replica that shipped
80     32   previous: BLAKE3 of the manifest before, not encrypted; zeros for number 1
112    4    snapshots (S), at most 1,024
116    4    parts (P), at most 4,096
120    4    gaps (G), at most 1,024
124    4    drops (D), at most 64
128    32   reserved, zero
160    96 S snapshots, generations ascending
+0     8    generation
+8     8    op of the cut
+16    8    revision of the cut
+24    8    log time of the cut, microseconds since 1970
+32    8    bytes of the manifest and all layers, not encrypted
+40    8    stored_bytes: size of the object of the manifest, as it is stored
+48    16   checksum of the cut's entry
+64    32   digest: BLAKE3 of the object of the manifest, as it is stored
       128 P parts, ops ascending
       16 G gaps, ascending: first and last op that no part has, and none will have
       16 D drops, numbers ascending: number of the last manifest that names what was given up, and
            when that was, microseconds since 1970
====== ==== ================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from blake3 import blake3

from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.archive_parts import PART_BYTES, LogPart, decode_parts, encode_part
from viewstamp.format.digest import DIGEST_BYTES

ARCHIVE_MAGIC: Final = b"VSAM"
ARCHIVE_VERSION: Final = 1
ARCHIVE_HEADER_BYTES: Final = 160
ARCHIVED_SNAPSHOTS_MAX: Final = 1024
ARCHIVED_PARTS_MAX: Final = 4096
ARCHIVED_GAPS_MAX: Final = 1024
ARCHIVED_DROPS_MAX: Final = 64
NO_PREVIOUS: Final = bytes(DIGEST_BYTES)

_HEADER: Final = struct.Struct("<32s4sHH16sQQQ32sIIII32s")
_SNAPSHOT: Final = struct.Struct("<QQQQQQ16s32s")
_PAIR: Final = struct.Struct("<QQ")
_RESERVED: Final = bytes(32)
assert _HEADER.size == ARCHIVE_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class ArchivedSnapshot:
    """A snapshot that is in an archive. Its own manifest names the layers."""

    generation: int
    cut_op: int
    cut_revision: int
    timestamp: int
    total_bytes: int
    stored_bytes: int
    cut_checksum: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """What an archive holds. Gaps are ranges of ops; drops are a number and a time each."""

    cluster_id: bytes
    number: int
    written_us: int
    replica: int
    previous: bytes = NO_PREVIOUS
    snapshots: tuple[ArchivedSnapshot, ...] = ()
    parts: tuple[LogPart, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    drops: tuple[tuple[int, int], ...] = ()

    @property
    def last_op(self) -> int:
        """The last op of the log, 0 if there is none."""
        return self.parts[-1].last_op if self.parts else 0

    @property
    def last_checksum(self) -> bytes | None:
        """The checksum of the last entry of the log, None if there is none."""
        return self.parts[-1].last_checksum if self.parts else None


def encode_archive(manifest: ArchiveManifest) -> bytes:
    """Return the bytes of a manifest. Raises FormatError for one that nobody may write."""
    _check(manifest)
    packed = _HEADER.pack(
        b"",
        ARCHIVE_MAGIC,
        ARCHIVE_VERSION,
        0,
        manifest.cluster_id,
        manifest.number,
        manifest.written_us,
        manifest.replica,
        manifest.previous,
        len(manifest.snapshots),
        len(manifest.parts),
        len(manifest.gaps),
        len(manifest.drops),
        _RESERVED,
    )
    checked = b"".join(
        [
            packed[DIGEST_BYTES:],
            *map(_encode_snapshot, manifest.snapshots),
            *map(encode_part, manifest.parts),
            *(_PAIR.pack(*pair) for pair in (*manifest.gaps, *manifest.drops)),
        ]
    )
    return blake3(checked).digest() + checked


def decode_archive(data: bytes) -> ArchiveManifest:
    """Read and verify a whole manifest; raises FormatError saying what is wrong."""
    if len(data) < ARCHIVE_HEADER_BYTES:
        raise FormatError(f"manifest is cut off: {len(data)} of {ARCHIVE_HEADER_BYTES} bytes")
    header = _HEADER.unpack_from(data)
    checksum, magic, version, reserved = header[:4]
    snapshots, parts, gaps, drops, end = header[9:]
    if magic != ARCHIVE_MAGIC:
        raise FormatError(f"manifest magic is {magic!r}, must be {ARCHIVE_MAGIC!r}")
    if checksum != blake3(data[DIGEST_BYTES:]).digest():
        raise FormatError(f"manifest checksum {checksum.hex()} does not match its bytes")
    if version != ARCHIVE_VERSION:
        raise FormatVersionError(
            f"archive format version {version} is unknown, this build reads {ARCHIVE_VERSION}"
        )
    if reserved or end != _RESERVED:
        raise FormatError("reserved bytes of the manifest are not zero")
    extents = (snapshots * _SNAPSHOT.size, parts * PART_BYTES, gaps * _PAIR.size)
    pairs_bytes = drops * _PAIR.size
    if len(data) != ARCHIVE_HEADER_BYTES + sum(extents) + pairs_bytes:
        raise FormatError(f"manifest of {len(data)} bytes states more or fewer records")
    at = ARCHIVE_HEADER_BYTES
    pieces = []
    for extent in (*extents, pairs_bytes):
        pieces.append(data[at : at + extent])
        at += extent
    found_gaps = tuple(_PAIR.iter_unpack(pieces[2]))
    cluster_id, number, written_us, replica, previous = header[4:9]
    manifest = ArchiveManifest(
        cluster_id=cluster_id,
        number=number,
        written_us=written_us,
        replica=replica,
        previous=previous,
        snapshots=tuple(ArchivedSnapshot(*each) for each in _SNAPSHOT.iter_unpack(pieces[0])),
        parts=decode_parts(pieces[1], found_gaps),
        gaps=found_gaps,
        drops=tuple(_PAIR.iter_unpack(pieces[3])),
    )
    _check(manifest)
    return manifest


def _encode_snapshot(snapshot: ArchivedSnapshot) -> bytes:
    return _SNAPSHOT.pack(
        snapshot.generation,
        snapshot.cut_op,
        snapshot.cut_revision,
        snapshot.timestamp,
        snapshot.total_bytes,
        snapshot.stored_bytes,
        snapshot.cut_checksum,
        snapshot.digest,
    )


def _check(manifest: ArchiveManifest) -> None:
    """Raise FormatError for numbers that no shipper writes."""
    if not manifest.number:
        raise FormatError("number of a manifest is 0, the first one is 1")
    if (manifest.number == 1) != (manifest.previous == NO_PREVIOUS):
        raise FormatError(f"manifest {manifest.number} names {manifest.previous.hex()} before it")
    for name, found, most in (
        ("snapshots", len(manifest.snapshots), ARCHIVED_SNAPSHOTS_MAX),
        ("parts", len(manifest.parts), ARCHIVED_PARTS_MAX),
        ("gaps", len(manifest.gaps), ARCHIVED_GAPS_MAX),
        ("drops", len(manifest.drops), ARCHIVED_DROPS_MAX),
    ):
        if found > most:
            raise FormatError(f"manifest has {found} {name}, at most {most} allowed")
    _check_ascending("generations", [each.generation for each in manifest.snapshots])
    _check_ascending("ops of gaps", [op for gap in manifest.gaps for op in gap], strictly=False)
    _check_ascending("numbers of drops", [number for number, _ in manifest.drops])


def _check_ascending(name: str, numbers: Sequence[int], *, strictly: bool = True) -> None:
    for before, after in pairwise([0, *numbers]):
        if after < before + strictly:
            raise FormatError(f"{name} do not ascend: {after} comes after {before}")
