"""What a shipper keeps of a journal whose replica goes on: second names of segments, up to a bound.

A replica drops segments that its snapshot covers, whoever still reads them. A shipper gives each
segment a second name in a directory of its own, on the same file system. So the bytes stay until
they are shipped, and nothing has to be agreed with the replica. Beyond the bound the oldest go.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from viewstamp.archive.archive_errors import ShipperInUse
from viewstamp.archive.shipping_defaults import SPOOL_BYTES_MAX
from viewstamp.format import FormatError
from viewstamp.format.record import SECTOR_BYTES, decode_segment_header
from viewstamp.journals.segment_window import opened_segment, segments_of

SPOOL_DIRECTORY: Final = "archive-spool"
DIRECTORY_MODE: Final = 0o700
_LOCK_FILE: Final = "LOCK"
# A file system that has no second names, or journals on another one.
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})

_log = logging.getLogger(__name__)


class SegmentSpool:
    """The segments of a data directory, those that the replica has dropped among them."""

    def __init__(self, data: Path, spool_bytes_max: int = SPOOL_BYTES_MAX) -> None:
        """Hold the directory of second names. Raises ShipperInUse, OSError.

        With a bound of 0 no segment is kept, but the directory shows who ships.
        """
        self._data = data
        self._bytes_max = spool_bytes_max
        self._directory = data / SPOOL_DIRECTORY
        self._directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self._lock = _locked(self._directory)
        self._journal_id = b""
        self._headers: dict[int, tuple[int, bytes]] = {}
        self._can_link = spool_bytes_max > 0
        self._first = 0

    def close(self) -> None:
        """Let others ship. What is kept stays."""
        os.close(self._lock)

    @property
    def journal_id(self) -> bytes:
        """The journal that the segments are of, 16 bytes; empty before the first look."""
        return self._journal_id

    def look(self) -> dict[int, Path]:
        """Return the segments by number, ascending, and keep those that are new.

        Raises NoJournal, OSError. Where another journal took the place, what was kept is dropped.
        """
        current = segments_of(self._data)
        self._follow_journal(current)
        kept = self._kept()
        for number, path in current.items():
            is_wanted = number >= self._first and number not in kept
            if is_wanted and self._is_ours(number, path) and self._link(number, path):
                kept[number] = self._path(number)
        self._drop_beyond_bound(kept, current)
        ours = {n: path for n, path in current.items() if self._is_ours(n, path)}
        return dict(sorted((ours | kept).items()))

    def release_below(self, segment: int) -> None:
        """Drop what was kept of segments below a number: all of it was shipped."""
        self._first = segment
        for number, path in self._kept().items():
            if number < segment:
                path.unlink(missing_ok=True)

    def _follow_journal(self, current: dict[int, Path]) -> None:
        """Find out which journal this is. A replica that lost its disk makes another one."""
        newest = max(current)
        found = self._header_of(newest, current[newest])
        if found and found != self._journal_id:
            self._journal_id, self._first = found, 0
            for number, path in self._kept().items():
                if self._header_of(number, path) != found:
                    path.unlink(missing_ok=True)

    def _is_ours(self, number: int, path: Path) -> bool:
        return self._header_of(number, path) == self._journal_id

    def _header_of(self, number: int, path: Path) -> bytes:
        """Return the journal that a segment names, empty for a damaged header."""
        try:
            inode = path.stat().st_ino
            if number in self._headers and self._headers[number][0] == inode:
                return self._headers[number][1]
            with opened_segment(path) as window:
                journal_id = decode_segment_header(window[0:SECTOR_BYTES]).journal_id
        except (FileNotFoundError, FormatError):
            return b""
        self._headers[number] = inode, journal_id
        return journal_id

    def _kept(self) -> dict[int, Path]:
        numbers = (entry.name for entry in os.scandir(self._directory) if entry.name.isdigit())
        return {int(name): self._directory / name for name in sorted(numbers)}

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:016d}"

    def _link(self, number: int, path: Path) -> bool:
        if not self._can_link:
            return False
        try:
            self._path(number).hardlink_to(path)
        except FileNotFoundError:
            return False  # dropped just now
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._can_link = False
            _log.warning("segments cannot be kept for the archive: %s", error)
            return False
        return True

    def _drop_beyond_bound(self, kept: dict[int, Path], current: dict[int, Path]) -> None:
        """Drop the oldest segments that only this directory still has, until the bound holds."""
        sizes = {n: path.stat().st_size for n, path in kept.items() if n not in current}
        total = sum(sizes.values())
        for number, size_bytes in sorted(sizes.items()):
            if total <= self._bytes_max:
                return
            kept.pop(number).unlink(missing_ok=True)
            total -= size_bytes
            _log.error(
                "segment %d is dropped before it was archived: more than %d bytes wait",
                number,
                self._bytes_max,
            )


def _locked(directory: Path) -> int:
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ShipperInUse(
            f"another process ships from {directory.parent}",
            "one shipper of a data directory is enough: stop the other one first",
        ) from error
    return descriptor
