"""Segment files: their names, how they come to be, and how they are read whole.

A segment gets its final name only once its zeros and its header are durable, so a file of that
name always had a complete header. Segments are numbered without gaps, and the spares ahead of the
one being written already bear their numbers: moving on to the next touches no directory.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from coordinator.journal.errors import JournalExists, NoSpace
from coordinator.storage import Storage, StorageFile
from viewstamp.format.record import SECTOR_BYTES, SegmentHeader, encode_segment_header

SEGMENT_NAME: Final = re.compile(r"segment-(\d{16})\.log")
TEMPORARY_SUFFIX: Final = ".tmp"
# What an unreadable sector is taken to hold: neither blank nor any record.
UNREADABLE_SECTOR: Final = b"\xff" * SECTOR_BYTES
_NO_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def segment_path(directory: str, segment: int) -> str:
    """Where the segment of this number lies."""
    return f"{directory}/segment-{segment:016d}.log"


def segment_numbers(storage: Storage, directory: str) -> list[int]:
    """The numbers of the segments in a directory, ascending."""
    matches = (SEGMENT_NAME.fullmatch(name) for name in storage.names(directory))
    return sorted(int(match.group(1)) for match in matches if match)


def remove_temporaries(storage: Storage, directory: str) -> None:
    """Remove what a crash left of segments in the making; none of them was ever part of the log.

    The directory is synced in any case: a process that was killed after it had renamed a segment
    left a name that its successor sees, but that a loss of power would still take away.
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
        # Asked first, so that a full disk is not filled with zeros again for every append.
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
    """Clear away what a crash while bootstrap left; raises JournalExists if there is any record."""
    remove_temporaries(storage, directory)
    numbers = segment_numbers(storage, directory)
    for number in numbers:
        file = storage.open(segment_path(directory, number))
        data = read_segment(file)
        file.close()
        if data.count(0, SECTOR_BYTES) != max(0, len(data) - SECTOR_BYTES):
            raise JournalExists(directory)
    for number in reversed(numbers):
        storage.unlink(segment_path(directory, number))
    storage.sync_directory(directory)


def no_space_or_same(error: OSError, path: str) -> NoSpace | OSError:
    """NoSpace if that is what the operating system says, otherwise the error itself."""
    if error.errno not in _NO_SPACE_ERRORS:
        return error
    return NoSpace(f"no space for {path}: {error.strerror}; free space on its file system")


def read_segment(file: StorageFile) -> bytes:
    """A whole segment; sectors that the disk cannot read come as UNREADABLE_SECTOR."""
    size = file.size()
    try:
        return file.read(0, size)
    except OSError:
        sectors = range(0, size, SECTOR_BYTES)
        return b"".join(_read_sector(file, offset, size) for offset in sectors)


def _read_sector(file: StorageFile, offset: int, size: int) -> bytes:
    wanted_bytes = min(SECTOR_BYTES, size - offset)
    try:
        return file.read(offset, wanted_bytes)
    except OSError:
        return UNREADABLE_SECTOR[:wanted_bytes]
