"""The file of a ring journal: how it comes to be, and what is written into it in which order.

`viewstamp.format.ring` has the bytes. The slots are also in memory as they are on the disk, and are
written in whole sectors: so the kernel need not first read a sector that the disk cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Final

from coordinator.journal.errors import (
    CorruptJournal,
    JournalExists,
    JournalNotFound,
    NoSpace,
    WrongCluster,
    WrongReplica,
)
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.segment import TEMPORARY_SUFFIX, no_space_or_same, read_segment
from coordinator.storage import Storage, StorageFile
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.record import (
    SECTOR_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    is_zero,
)
from viewstamp.format.ring import (
    FLOOR_COPIES,
    RING_FILE,
    SLOT_BYTES,
    RingFloor,
    RingLayout,
    decode_floor,
    encode_floor,
    floor_offset,
)

FIRST_FLOOR: Final = 1


def ring_path(directory: str) -> str:
    """Return the path of the ring in a journal's directory."""
    return f"{directory}/{RING_FILE}"


@dataclass(frozen=True, slots=True)
class RingParts:
    """What the parts say that exist several times. `damaged` names those that say nothing."""

    floor: RingFloor
    damaged: tuple[str, ...]


class RingFile:
    """An open ring. `image` are all slots of the side in use, as the disk has them, or is to have
    them. `other_sequence` is the highest sequence that the other side names, 0 for none that
    matters: what is written there has higher ones."""

    def __init__(
        self, file: StorageFile, floor: RingFloor, image: bytearray, other_sequence: int = 0
    ) -> None:
        self.file = file
        self.floor = floor
        self.layout = floor.layout
        self.image = image
        self.other_sequence = other_sequence

    def write_records(self, records: Iterable[tuple[int, bytes]]) -> None:
        """Write records, each at its offset, and sync them once. Raises OSError."""
        for offset, data in _joined(records):
            self.file.write(offset, data)
        self.file.sync()

    def write_slots(self, slots: Mapping[int, bytes]) -> None:
        """Write slots by number, in whole sectors, and sync them once. Raises OSError."""
        for number, raw in slots.items():
            self.image[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] = raw
        sectors = sorted({number * SLOT_BYTES // SECTOR_BYTES for number in slots})
        starts = (sector * SECTOR_BYTES for sector in sectors)
        pieces = ((at, bytes(self.image[at : at + SECTOR_BYTES])) for at in starts)
        start = self.layout.slots_start
        self.write_records((start + at, piece.ljust(SECTOR_BYTES, b"\0")) for at, piece in pieces)

    def raise_floor(self, floor: int) -> None:
        """Let no record below this sequence be needed any more, durably in both copies. Raises
        OSError."""
        self.floor = replace(self.floor, floor=floor)
        self.write_floor()

    def turn(self, floor: int, image: bytearray) -> None:
        """Let the other side be the one in use, durably in both copies. Raises OSError.

        `image` are the slots that are synced there, as all its records from `floor` on.
        """
        self.layout, self.image = self.layout.other, image
        self.floor = replace(self.floor, floor=floor, side=self.layout.side)
        self.write_floor()

    def write_floor(self) -> None:
        """Write both copies of the floor, one after the other. Raises OSError."""
        for copy in range(FLOOR_COPIES):
            self.file.write(self.layout.floor_offset(copy), encode_floor(self.floor, copy))
            self.file.sync()

    def write_header(self) -> None:
        """Write the first sector anew. Raises OSError."""
        self.file.write(0, encode_segment_header(self.floor.header))
        self.file.sync()


def _joined(records: Iterable[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
    """Join what touches: a group that does not wrap is one write."""
    start, pieces, end = 0, list[bytes](), -1
    for offset, data in records:
        if offset != end and pieces:
            yield start, b"".join(pieces)
            pieces = []
        if not pieces:
            start = offset
        pieces.append(data)
        end = offset + len(data)
    if pieces:
        yield start, b"".join(pieces)


def create_ring(storage: Storage, directory: str, floor: RingFloor) -> None:
    """Make a blank ring, durably. Raises NoSpace, and JournalExists if one holds any record."""
    path = ring_path(directory)
    temporary = path + TEMPORARY_SUFFIX
    if storage.exists(temporary):
        storage.unlink(temporary)
    if storage.exists(path):
        if not _is_blank(storage, path):
            raise JournalExists(directory)
        storage.unlink(path)
        storage.sync_directory(directory)
    free_bytes, file_bytes = storage.free_bytes(directory), floor.layout.file_bytes
    if free_bytes < file_bytes:
        raise NoSpace(
            f"no space for {path}: it takes {file_bytes} bytes, {free_bytes} are free; free"
            " space on its file system"
        )
    try:
        _fill(storage, temporary, floor)
    except OSError as error:
        if storage.exists(temporary):
            storage.unlink(temporary)
        raise no_space_or_same(error, path) from error
    storage.rename(temporary, path)
    storage.sync_directory(directory)


def _fill(storage: Storage, temporary: str, floor: RingFloor) -> None:
    file = storage.create(temporary)
    try:
        file.preallocate(floor.layout.file_bytes)
        ring = RingFile(file, floor, bytearray())
        ring.write_header()
        ring.write_floor()
    finally:
        file.close()


def _is_blank(storage: Storage, path: str) -> bool:
    """Return whether no slot and no record was ever written."""
    file = storage.open(path)
    try:
        with read_segment(file) as data:
            starts = range(2 * SECTOR_BYTES, len(data) - SECTOR_BYTES, SECTOR_BYTES)
            return all(is_zero(data[at : at + SECTOR_BYTES]) for at in starts)
    finally:
        file.close()


def open_ring_file(storage: Storage, directory: str) -> StorageFile:
    """Open the file. Raises JournalNotFound, and CorruptJournal if it is too short for any ring."""
    path = ring_path(directory)
    if not storage.exists(path):
        raise JournalNotFound(directory)
    file = storage.open(path)
    size_bytes = file.size()
    if RingLayout.of_file(size_bytes).slots < 1:
        file.close()
        reason = f"a file of {size_bytes} bytes is too short for a ring: it was cut off"
        raise CorruptJournal(path, size_bytes, None, reason)
    return file


def ring_header(storage: Storage, directory: str) -> SegmentHeader | None:
    """Return whose ring lies in a directory; None without one, or if no part of it says that."""
    if not storage.exists(ring_path(directory)):
        return None
    file = storage.open(ring_path(directory))
    try:
        said, _ = _said(file, lambda at: file.read(at, SECTOR_BYTES))
    finally:
        file.close()
    return next((header for header, _ in said), None)


def read_parts(file: StorageFile, data: mmap, identity: JournalIdentity) -> RingParts:
    """Return what the header and the copies of the floor say, which must be one thing.

    Raises CorruptJournal, WrongCluster, WrongReplica, FormatVersionError.
    """
    said, damaged = _said(file, lambda at: data[at : at + SECTOR_BYTES])
    floors = [floor for _, floor in said if floor is not None]
    if not floors:
        raise CorruptJournal(file.path, SECTOR_BYTES, None, "no copy of the floor is intact")
    floor = max(floors, key=lambda each: each.floor)
    for header, _ in said:
        if header.cluster_id != identity.cluster_id:
            raise WrongCluster(file.path, header.cluster_id, identity.cluster_id)
        if header.replica_id != identity.replica_id:
            raise WrongReplica(file.path, header.replica_id, identity.replica_id)
        if header != floor.header or floor.layout.file_bytes != file.size():
            reason = (
                f"a file of {file.size()} bytes says that it is segment {header.segment} of journal"
                f" {header.journal_id.hex()}, a ring of {header.segment_bytes} bytes, and elsewhere"
                f" that it is journal {floor.journal_id.hex()}, a ring of {floor.ring_bytes} bytes"
                f" with {floor.layout.file_bytes} in all"
            )
            raise CorruptJournal(file.path, 0, None, reason)
    return RingParts(floor, damaged)


def _said(
    file: StorageFile, sector_at: Callable[[int], bytes]
) -> tuple[list[tuple[SegmentHeader, RingFloor | None]], tuple[str, ...]]:
    """Return what each part says, and the parts that say nothing. Raises FormatVersionError."""
    said: list[tuple[SegmentHeader, RingFloor | None]] = []
    damaged: list[str] = []
    file_bytes = file.size()
    for copy in (None, *range(FLOOR_COPIES)):
        try:
            if copy is None:
                said.append((decode_segment_header(sector_at(0)), None))
            else:
                floor = decode_floor(sector_at(floor_offset(copy, file_bytes)), copy)
                said.append((floor.header, floor))
        except FormatVersionError as error:
            raise FormatVersionError(f"{file.path}: {error}") from error
        except (OSError, FormatError):
            damaged.append("header" if copy is None else f"copy {copy} of the floor")
    return said, tuple(damaged)
