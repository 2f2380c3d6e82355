"""The file system of this machine as the disk of a replica, for runs in which no disk fails.

The run is in a directory of its own, and all paths are relative to it: they are the same in every
run. What a disk has left is not, so that a replica is told of one amount.
"""

from __future__ import annotations

from typing import Final

from coordinator.storage import DescriptorFile, DescriptorLock, FileStorage

# More than any run takes.
_FREE_BYTES: Final = 1 << 40


class FileDisk(FileStorage):
    """The files of one replica. They outlive its processes, whose descriptors do not."""

    def __init__(self) -> None:
        self._opened: list[DescriptorFile] = []
        self._locks: list[DescriptorLock] = []

    def create(self, path: str) -> DescriptorFile:
        """A new, empty file."""
        return self._kept(super().create(path))

    def open(self, path: str) -> DescriptorFile:
        """An existing file."""
        return self._kept(super().open(path))

    def free_bytes(self, directory: str) -> int:
        """One amount, as long as the file system tells any."""
        return min(_FREE_BYTES, super().free_bytes(directory) + _FREE_BYTES)

    def lock(self, directory: str) -> DescriptorLock:
        """Hold a directory."""
        self._locks.append(super().lock(directory))
        return self._locks[-1]

    def restart_process(self) -> None:
        """Close all descriptors, as the system does after the end of a process."""
        for file in self._opened:
            file.close()
        for lock in self._locks:
            lock.release()
        self._opened.clear()
        self._locks.clear()

    def _kept(self, file: DescriptorFile) -> DescriptorFile:
        self._opened.append(file)
        return file
