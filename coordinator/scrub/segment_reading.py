"""Reading the records of one segment from the disk, in slices: all of it blocks.

The file is opened here, so that a segment which is dropped meanwhile can be read to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.journal.index import Location
from coordinator.journal.interface import HeldSegment
from coordinator.scrub.pace import SLICE_BYTES
from coordinator.snapshot.local_writer import damage_of
from coordinator.storage import Storage, StorageFile
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import (
    SECTOR_BYTES,
    SegmentHeader,
    decode_record,
    decode_segment_header,
)


@dataclass(frozen=True, slots=True)
class SuspectRecord:
    """What looks wrong in a segment; `record` is None for its header."""

    record: Location | None
    why: str


class SegmentReading:
    """One segment, from its header to its last record. `suspects` is what looks wrong, `unopened`
    why its file cannot be opened."""

    def __init__(self, storage: Storage, held: HeldSegment) -> None:
        self.suspects: list[SuspectRecord] = []
        self.unopened: str | None = None
        self._storage = storage
        self._held = held
        self._groups = _groups(held.records)
        self._file: StorageFile | None = None

    def next_slice(self) -> tuple[int, bool]:
        """Read a slice; return its bytes, and whether there may be more. Raises OSError for want of
        something that this process needs."""
        if self._file is None:
            try:
                self._file = self._storage.open(self._held.path)
            except OSError as error:
                self.unopened = damage_of(error, "cannot be opened")
                return 0, False
            self._check_header(self._file)
            return SECTOR_BYTES, True
        group = next(self._groups, None)
        if group is None:
            self.close()
            return 0, False
        for record in group:
            why = self._damage(self._file, record)
            if why is not None:
                self.suspects.append(SuspectRecord(record, why))
        return sum(record.extent_bytes for record in group), True

    def _check_header(self, file: StorageFile) -> None:
        try:
            found = decode_segment_header(_read_medium(file, 0, SECTOR_BYTES))
            why = None if found == self._held.header else f"is that of segment {found.segment}"
        except (FormatError, FormatVersionError) as error:
            why = str(error)
        except OSError as error:
            why = damage_of(error, "cannot be read")
        if why is not None:
            self.suspects.append(SuspectRecord(None, why))

    def _damage(self, file: StorageFile, record: Location) -> str | None:
        return _damage(file, self._held.header, record)

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def damage_of_record(storage: Storage, held: HeldSegment, record: Location) -> str | None:
    """Read one record again, not in the journal's thread: a bad sector may take a drive seconds.

    None if it is intact, or its segment was dropped.
    """
    try:
        file = storage.open(held.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return damage_of(error, "cannot be opened")
    try:
        return _damage(file, held.header, record)
    finally:
        file.close()


def _damage(file: StorageFile, header: SegmentHeader, record: Location) -> str | None:
    try:
        data = _read_medium(file, record.offset, record.extent_bytes)
        found = decode_record(
            data,
            journal_id=header.journal_id,
            segment=header.segment,
            offset=record.offset,
        ).content
    except (FormatError, FormatVersionError) as error:
        return str(error)
    except OSError as error:
        return damage_of(error, "cannot be read")
    if isinstance(found, SealedPrepare) and found.checksum == record.header.checksum:
        return None
    return "another record lies in its place"


def _read_medium(file: StorageFile, offset: int, size: int) -> bytes:
    file.drop_cached(offset, size)
    data = file.read(offset, size)
    file.drop_cached(offset, size)
    return data


def _groups(records: tuple[Location, ...]) -> Iterator[list[Location]]:
    """Yield the records in groups of about a slice."""
    group: list[Location] = []
    size_bytes = 0
    for record in records:
        group.append(record)
        size_bytes += record.extent_bytes
        if size_bytes >= SLICE_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
