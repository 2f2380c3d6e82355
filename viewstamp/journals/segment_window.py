"""The segments of a journal as they are read: in pieces, beside a writer, and never changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.ring import RING_FILE
from viewstamp.journals.journal_errors import NoJournal, RingNotRead
from viewstamp.limits import MIB

JOURNAL_DIRECTORY: Final = "journal"
SEGMENT_NAME: Final = re.compile(r"segment-(\d{16})\.log")
READ_BYTES: Final = 1 * MIB
# Stands for a sector that the disk cannot read: it is neither blank nor any record.
UNREADABLE_SECTOR: Final = b"\xff" * SECTOR_BYTES


def segments_of(data: Path, archive: Path | None = None) -> dict[int, Path]:
    """Return the segments of a data directory by number, ascending. Raises NoJournal, RingNotRead,
    OSError.

    The replica has moved older ones into an archive, if it has one (`--journal-archive`).
    """
    directory = data / JOURNAL_DIRECTORY
    if not directory.is_dir():
        raise NoJournal(
            f"there is no journal in {directory}",
            "give --data the data directory of one replica; those of `viewstamp up --replicas 3`"
            " are replica-0 to replica-2 below its directory",
        )
    if (directory / RING_FILE).exists():
        raise RingNotRead(
            f"the journal in {directory} is a ring (--journal ring), which only its replica reads",
            "start the replica, and ask it for its history; or give the directory of a downloaded"
            " snapshot (`viewstamp snapshot download`), without the log behind it",
        )
    found = _segments_in(directory)
    if not found:
        raise NoJournal(f"{directory} holds no segment", "give --data another directory")
    archived = {} if archive is None else _segments_in(archive)
    return dict(sorted((archived | found).items()))


def _segments_in(directory: Path) -> dict[int, Path]:
    matches = ((SEGMENT_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return {int(match.group(1)): path for match, path in matches if match}


class SegmentWindow:
    """The bytes of a segment, of which one window is in memory.

    Its size is what the file had when it was opened.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = os.fstat(descriptor).st_size
        self._start = 0
        self._piece = b""

    def __len__(self) -> int:
        """Return the bytes of the segment."""
        return self._size_bytes

    def __getitem__(self, place: slice) -> bytes:
        """Return the bytes of a place; fewer at the end of the segment."""
        start, end, _ = place.indices(self._size_bytes)
        within = start - self._start
        if within < 0 or end > self._start + len(self._piece):
            size_bytes = min(max(READ_BYTES, end - start), self._size_bytes - start)
            self._start, self._piece = start, self._read(start, size_bytes)
            within = 0
        return self._piece[within : within + end - start]

    def _read(self, offset: int, size_bytes: int) -> bytes:
        try:
            return _whole(self._descriptor, offset, size_bytes)
        except OSError:
            sectors = range(offset, offset + size_bytes, SECTOR_BYTES)
            end = offset + size_bytes
            return b"".join(
                _sector(self._descriptor, at, min(SECTOR_BYTES, end - at)) for at in sectors
            )


@contextmanager
def opened_segment(path: Path) -> Iterator[SegmentWindow]:
    """Open a segment for reading. Raises FileNotFoundError if a writer has dropped it, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield SegmentWindow(descriptor)
    finally:
        os.close(descriptor)


def _sector(descriptor: int, offset: int, size_bytes: int) -> bytes:
    try:
        return _whole(descriptor, offset, size_bytes)
    except OSError:
        return UNREADABLE_SECTOR[:size_bytes]


def _whole(descriptor: int, offset: int, size_bytes: int) -> bytes:
    """Return the bytes from an offset on; what a file has lost since reads as zeros."""
    parts: list[bytes] = []
    left = size_bytes
    while left and (part := os.pread(descriptor, left, offset + size_bytes - left)):
        parts.append(part)
        left -= len(part)
    return b"".join([*parts, bytes(left)])
