"""Where new records go, and their bytes: the arithmetic of appending, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from viewstamp.format.prepare import SealedHeader, SealedPrepare, checksum_of, encode_prepare
from viewstamp.format.record import (
    SECTOR_BYTES,
    Frame,
    RecordKind,
    encode_ranges,
    encode_record,
    record_bytes,
)
from viewstamp.limits import FEATURE_LEVEL_NAMED_SUPERBLOCK


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a record to be. Only prepares have a `header`."""

    kind: RecordKind
    op: int
    data: bytes
    checksum: bytes
    header: SealedHeader | None


@dataclass(frozen=True, slots=True)
class Placed:
    """A content and where it will go."""

    content: Content
    segment: int
    offset: int
    extent_bytes: int


def prepare_content(prepare: SealedPrepare) -> Content:
    """Return the record content of a prepare."""
    data = encode_prepare(prepare)
    return Content(RecordKind.PREPARE, prepare.op, data, prepare.checksum, prepare.header)


def lost_content(op: int, checksum: bytes) -> Content:
    """Return what is left of a prepare that is missing: its identity."""
    return Content(RecordKind.PREPARE, op, b"", checksum, None)


def cut_content(op: int) -> Content:
    """Return the record content that takes every op above `op` out of the log."""
    return Content(RecordKind.CUT, op, b"", checksum_of(b""), None)


def repaired_content(ranges: tuple[tuple[int, int], ...]) -> Content:
    """Return the record content that says that these sequences are repaired."""
    data = encode_ranges(ranges)
    return Content(RecordKind.REPAIRED, 0, data, checksum_of(data), None)


def restart_content(op: int, checksum: bytes) -> Content:
    """Return the record content that continues the log behind `op`, which has this checksum."""
    return Content(RecordKind.RESTART, op, checksum, checksum_of(checksum), None)


def place(
    contents: Sequence[Content],
    segment: int,
    offset: int,
    *,
    segment_bytes: int,
    size_of: Callable[[int], int],
) -> list[Placed]:
    """Return each content's place: behind the previous one, or at the start of a later segment.

    `size_of` returns the bytes of a segment, which is `segment_bytes` for one not yet made.
    Raises ValueError for a content that fits into no new segment.
    """
    placed = []
    for content in contents:
        extent_bytes = record_bytes(len(content.data))
        if extent_bytes > segment_bytes - SECTOR_BYTES:
            raise ValueError(
                f"a record of {extent_bytes} bytes does not fit into a segment of "
                f"{segment_bytes} bytes"
            )
        # More than one step only past spares that were made with a smaller setting.
        while offset + extent_bytes > size_of(segment):
            segment, offset = segment + 1, SECTOR_BYTES
        placed.append(Placed(content, segment, offset, extent_bytes))
        offset += extent_bytes
    return placed


def frames_of(
    placed: Sequence[Placed],
    *,
    next_sequence: int,
    head: SealedHeader | None,
    superblock_sequence: int,
) -> list[Frame]:
    """Return the frames of a group of records; all records before the group are durable already.

    A record names the superblock if the feature level allows that: of a prepare its own level, of
    any other record that of the `head` of the log.
    """
    return [
        Frame(
            record.content.kind,
            sequence,
            next_sequence - 1,
            record.content.op,
            len(record.content.data),
            record.content.checksum,
            superblock_sequence=(
                superblock_sequence if names_superblock(record.content.header or head) else 0
            ),
        )
        for sequence, record in enumerate(placed, start=next_sequence)
    ]


def encode(placed: Sequence[Placed], frames: Sequence[Frame], *, journal_id: bytes) -> list[bytes]:
    """Return the bytes of a group of records."""
    return [
        encode_record(
            frame,
            record.content.data,
            journal_id=journal_id,
            segment=record.segment,
            offset=record.offset,
        )
        for record, frame in zip(placed, frames, strict=True)
    ]


def names_superblock(header: SealedHeader | None) -> bool:
    """Return whether all builds that may read records at this header's level know version 3."""
    return header is not None and header.feature_level >= FEATURE_LEVEL_NAMED_SUPERBLOCK
