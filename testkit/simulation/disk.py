"""A simulated disk: the memory storage of the journal's tests, and what else disks do.

Its damage goes by place, not by luck: whoever damages a record asks the atlas first whether the
cluster could still recover from it.
"""

from __future__ import annotations

from random import Random
from typing import Final

from coordinator.journal import JournalFailed, NoSpace, SuperblockFailed
from coordinator.journal.segment import SEGMENT_NAME
from coordinator.snapshot.errors import CopiesFailed
from testkit.memory_storage import (
    Inode,
    Loss,
    MemoryFile,
    MemoryStorage,
)
from viewstamp.format.record import SECTOR_BYTES

# A crash in the middle of a job comes before one of so many I/O steps: of a short job, or of any.
STEPS_BEFORE_CRASH_MAX: Final = (9, 40)
# What ends a process: the disk refused. Everything else that is raised is a finding.
DISK_REFUSES: Final = (OSError, JournalFailed, SuperblockFailed, NoSpace, CopiesFailed)


class SimulatedDisk(MemoryStorage):
    """The disk of one replica. It outlives its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.sectors_misdirected = 0
        """By how many sectors the next write to a segment misses its place."""

    def create(self, path: str) -> SimulatedFile:
        """A new, empty file."""
        return SimulatedFile(self, path, self._inode(super().create(path)))

    def open(self, path: str) -> SimulatedFile:
        """An existing file."""
        return SimulatedFile(self, path, self._inode(super().open(path)))

    def _inode(self, file: MemoryFile) -> Inode:
        return self._visible[file.path]

    def end_process(self) -> None:
        """The process ends and the machine runs on: the page cache keeps what was written."""
        self.crash_at = None
        self.restart_process()

    def lose_power(self, random: Random) -> None:
        """Each unsynced sector reaches the disk or does not."""
        losses = (Loss.PARTLY, Loss.PARTLY, Loss.PARTLY, Loss.DROP, Loss.KEEP)
        self.crash(random.choice(losses), random.randrange(1 << 30))


class SimulatedFile(MemoryFile):
    """A file whose writes may be misdirected, within the file, also over its header."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        super().__init__(disk, path, inode)
        self._disk = disk

    def write(self, offset: int, data: bytes) -> None:
        """Put the data there, or elsewhere."""
        sectors = self._disk.sectors_misdirected
        is_record = SEGMENT_NAME.search(self.path) is not None and offset > 0
        if sectors and is_record:
            self._disk.sectors_misdirected = 0
            places = self.size() // SECTOR_BYTES
            at = (offset // SECTOR_BYTES + sectors) % places
            offset = min(at * SECTOR_BYTES, self.size() - len(data))
        super().write(offset, data)
