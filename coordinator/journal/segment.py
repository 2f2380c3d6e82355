"""Segment files: their names, how they come to be, and how they are read whole.

A segment gets its final name only once its zeros and its header are durable, so a file of that name
always has a complete header. Segments are numbered without gaps, and the spares ahead already bear
their numbers: moving on to the next one touches no directory.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from mmap import mmap
from typing import Final

from coordinator.journal.errors import JournalExists, NoSpace
from coordinator.storage import Storage, StorageFile
from viewstamp.format.record import SECTOR_BYTES, SegmentHeader, encode_segment_header
from viewstamp.limits import MIB

SEGMENT_NAME: Final = re.compile(r"segment-(\d{16})\.log")
TEMPORARY_SUFFIX: Final = ".tmp"
# Stands for an unreadable sector: it is neither blank nor any record.
UNREADABLE_SECTOR: Final = b"\xff" * SECTOR_BYTES
READ_BYTES: Final = 1 * MIB
_NO_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def segment_path(directory: str, segment: int) -> str:
    """Return the path of the segment with this number."""
    return f"{directory}/segment-{segment:016d}.log"


def segment_numbers(storage: Storage, directory: str) -> list[int]:
    """Return the numbers of the segments in a directory, ascending."""
    matches = (SEGMENT_NAME.fullmatch(name) for name in storage.names(directory))
    return sorted(int(match.group(1)) for match in matches if match)


def remove_temporaries(storage: Storage, directory: str) -> None:
    """Remove unfinished segments that a crash left; none of them was ever part of the log.

    The directory is always synced: a process killed after it renamed a segment left a name that its
    successor sees, but that a loss of power would still take away.
    """
    for name in storage.names(directory):
        if name.endswith(TEMPORARY_SUFFIX):
            storage.unlink(f"{directory}/{name}")
    storage.sync_directory(directory)


def create_segment(storage: Storage, directory: str, header: SegmentHeader) -> StorageFile:
    """Make a segment durable under its final name; raises NoSpace and leaves nothing behind."""
    path = segment_path(directory, header.segment)
    temporary = path + TEMPORARY_SUFFIX
    free_bytes = storage.free_bytes(directory)
    if free_bytes < header.segment_bytes:
        # Checked first, so that a full disk is not filled with zeros again for every append.
        raise NoSpace(
            f"no space for {path}: it takes {header.segment_bytes} bytes, {free_bytes} are free; "
            f"free space on its file system"
        )
    try:
        file = storage.create(temporary)
    except OSError as error:
        raise no_space_or_same(error, path) from error
    try:
        file.preallocate(header.segment_bytes)
        file.write(0, encode_segment_header(header))
        file.sync()
    except OSError as error:
        file.close()
        storage.unlink(temporary)
        raise no_space_or_same(error, path) from error
    file.close()
    storage.rename(temporary, path)
    storage.sync_directory(directory)
    return storage.open(path)


def remove_blank_segments(storage: Storage, directory: str) -> None:
    """Remove the segments of a crashed bootstrap. Raises JournalExists if there is any record."""
    remove_temporaries(storage, directory)
    numbers = segment_numbers(storage, directory)
    for number in numbers:
        file = storage.open(segment_path(directory, number))
        is_blank = all(piece.count(0) == len(piece) for _, piece in _pieces(file, SECTOR_BYTES))
        file.close()
        if not is_blank:
            raise JournalExists(directory)
    for number in reversed(numbers):
        storage.unlink(segment_path(directory, number))
    storage.sync_directory(directory)


def no_space_or_same(error: OSError, path: str) -> NoSpace | OSError:
    """Return NoSpace if the operating system reports that, otherwise the error itself."""
    if error.errno not in _NO_SPACE_ERRORS:
        return error
    return NoSpace(f"no space for {path}: {error.strerror}; free space on its file system")


def read_segment(file: StorageFile) -> mmap:
    """Return a whole segment; sectors that the disk cannot read become UNREADABLE_SECTOR.

    It has a mapping of its own, which goes back to the system at once. The allocator keeps tens of
    megabytes for as long as the process runs, once it has served some requests of that size.
    """
    data = mmap(-1, file.size())
    for offset, piece in _pieces(file, 0):
        data[offset : offset + len(piece)] = piece
    return data


def _pieces(file: StorageFile, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and bytes from `start` to the end of a file."""
    end = file.size()
    for offset in range(start, end, READ_BYTES):
        size_bytes = min(READ_BYTES, end - offset)
        try:
            yield offset, file.read(offset, size_bytes)
        except OSError:
            for sector in range(offset, offset + size_bytes, SECTOR_BYTES):
                yield sector, _read_sector(file, sector, end)


def _read_sector(file: StorageFile, offset: int, end: int) -> bytes:
    wanted_bytes = min(SECTOR_BYTES, end - offset)
    try:
        return file.read(offset, wanted_bytes)
    except OSError:
        return UNREADABLE_SECTOR[:wanted_bytes]
