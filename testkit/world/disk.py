"""The disk of a machine in a world: memory storage whose writes may go astray or vanish, and whose
sectors may become unreadable.

A write that vanishes is one that its disk has confirmed. A loss of power shows it, and only where a
later record of the same segment is durable: a journal whose end has vanished looks like a shorter
one, and no replica could tell alone.

An unreadable sector fails each read that touches it, until somebody writes it again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.journal.segment import SEGMENT_NAME
from testkit.memory_storage import Inode, Loss, MemoryFile, MemoryStorage, SimulatedCrash
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.ring import RING_FILE, SIDES, RingLayout


@dataclass(slots=True)
class _Vanished:
    """A write to a segment that readers see until the next loss of power."""

    inode: Inode
    offset: int
    data: bytes
    is_followed: bool = False


class WorldDisk(MemoryStorage):
    """The disk of one replica. It outlives its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.sectors_misdirected = 0
        """By how many sectors the next record misses its place in its segment; 0 for none."""
        self.next_record_vanishes = False
        """Whether the next record that is synced is not on the disk."""
        self.stops_in_record = False
        """Whether the machine stops between the next write of a record and its sync."""
        self.syncs_that_lie = 0
        """How many of the next syncs leave everything to chance."""
        self.has_lied = False
        """Whether such a sync has been: whatever it should have kept may be gone since."""
        self.vanished = 0
        """How many records losses of power have shown to be gone."""
        self._vanishing: list[_Vanished] = []
        self._unreadable: list[tuple[Inode, int]] = []

    def make_unreadable(self, path: str, offset: int, size: int) -> None:
        """Let reads of the sectors of this extent fail, until each is written again."""
        inode = self._visible[path]
        self._unreadable += [(inode, sector) for sector in _sectors(offset, size)]

    def is_readable(self, path: str) -> bool:
        """Whether no sector of a file is unreadable."""
        inode = self._visible[path]
        return not any(each is inode for each, _ in self._unreadable)

    def check_sectors(self, inode: Inode, offset: int, size: int) -> None:
        """Raise EIO if a read touches an unreadable sector."""
        touched = _sectors(offset, size)
        if any(each is inode and sector in touched for each, sector in self._unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def forget_unreadable(self, inode: Inode, offset: int, size: int) -> None:
        """Have these sectors readable again: somebody wrote them."""
        written = _sectors(offset, size)
        self._unreadable = [
            (each, sector)
            for each, sector in self._unreadable
            if each is not inode or sector not in written
        ]

    def heal(self) -> None:
        """Let no later write go wrong."""
        self.sectors_misdirected = self.syncs_that_lie = 0
        self.next_record_vanishes = self.stops_in_record = False
        for each in self._vanishing:
            each.inode.apply(each.offset, each.data)
        self._vanishing.clear()

    def crash(self, loss: Loss, seed: int = 0) -> None:
        """Lose power, and with it what has vanished before a record that is there."""
        for each in self._vanishing:
            if each.is_followed:
                self.vanished += 1
            else:
                each.inode.apply(each.offset, each.data)
        self._vanishing.clear()
        self.stops_in_record = False
        super().crash(loss, seed)

    def create(self, path: str) -> WorldFile:
        """A new, empty file."""
        return WorldFile(self, path, self._inode(super().create(path)))

    def open(self, path: str) -> WorldFile:
        """An existing file."""
        return WorldFile(self, path, self._inode(super().open(path)))

    def sync_inode(self, path: str, inode: Inode) -> None:
        """Sync one file, or say so."""
        if self.syncs_that_lie:
            self.syncs_that_lie -= 1
            self.has_lied = True
            self.step(f"sync {path}")
            self.syncs += 1
            return
        records = [each for each in inode.pending if is_record(path, each[0], len(inode.visible))]
        if records and self.stops_in_record:
            raise SimulatedCrash(f"sync {path}")
        super().sync_inode(path, inode)
        for each in self._vanishing:
            each.is_followed |= inode is each.inode and bool(records)
        if records and self.next_record_vanishes:
            self.next_record_vanishes = False
            self._vanish(inode, *records[0])

    def _vanish(self, inode: Inode, offset: int, data: bytes) -> None:
        """Leave zeros on the disk where the record was written."""
        inode.apply(offset, bytes(len(data)))
        self._vanishing.append(_Vanished(inode, offset, data))

    def _inode(self, file: MemoryFile) -> Inode:
        return self._visible[file.path]


class WorldFile(MemoryFile):
    """A file in which a record, or slots, may be written elsewhere, also over a header."""

    def __init__(self, disk: WorldDisk, path: str, inode: Inode) -> None:
        super().__init__(disk, path, inode)
        self._disk = disk

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, unless one of their sectors is unreadable."""
        data = super().read(offset, size)
        self._disk.check_sectors(self._inode, offset, len(data))
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Put the data there, or elsewhere."""
        sectors = self._disk.sectors_misdirected
        if sectors and is_misdirected(self.path, offset, self.size()):
            self._disk.sectors_misdirected = 0
            at = (offset // SECTOR_BYTES + sectors) % (self.size() // SECTOR_BYTES)
            offset = min(at * SECTOR_BYTES, self.size() - len(data))
        super().write(offset, data)
        self._disk.forget_unreadable(self._inode, offset, len(data))


def is_record(path: str, offset: int, file_bytes: int) -> bool:
    """Whether a write is that of a record, not of a header, a slot, a floor or another file."""
    if path.endswith(f"/{RING_FILE}"):
        return any(side.start <= offset < side.end for side in _sides(file_bytes))
    return SEGMENT_NAME.search(path) is not None and offset > 0


def is_misdirected(path: str, offset: int, file_bytes: int) -> bool:
    """Whether a write is one that may land elsewhere: that of a record or of slots."""
    if path.endswith(f"/{RING_FILE}"):
        return any(side.slots_start <= offset < side.end for side in _sides(file_bytes))
    return is_record(path, offset, file_bytes)


def _sides(file_bytes: int) -> Iterator[RingLayout]:
    """Yield the layouts of both sides of a ring."""
    return (RingLayout.of_file(file_bytes, side) for side in range(SIDES))


def _sectors(offset: int, size: int) -> range:
    """Return the numbers of the sectors that an extent touches."""
    return range(offset // SECTOR_BYTES, -(-(offset + size) // SECTOR_BYTES))
