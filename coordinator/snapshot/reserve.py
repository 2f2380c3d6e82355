"""Space that is kept so that a snapshot can complete on a full disk.

A snapshot frees the journal, and a snapshot needs space: on a full disk neither could continue. So
each copy directory has a file that only takes space. When a generation cannot be written for lack
of space the file is removed, in that directory only, and the write is repeated. After the journal
was truncated it is made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.snapshot.errors import SnapshotNoSpace
from coordinator.snapshot.layout import RESERVE_FILE
from coordinator.snapshot.local_writer import LocalWriter
from coordinator.storage import Storage, StorageFile
from viewstamp.limits import SNAPSHOT_RESERVE_PERCENT

_PERCENT: Final = 100


class Reserve:
    """The reserve of each copy directory; `LocalWriter.give_up_reserve` gives it up."""

    def __init__(self, storage: Storage, local: LocalWriter, bytes_min: int) -> None:
        """`bytes_min` is kept even if generations are smaller."""
        self._storage = storage
        self._local = local
        self._bytes_min = bytes_min

    def rebuild(self, generation_bytes: int) -> Sequence[str]:
        """Make the missing reserves for a last generation of `generation_bytes`.

        Return the directories that have no room for it yet.
        """
        size_bytes = max(self._bytes_min, generation_bytes * SNAPSHOT_RESERVE_PERCENT // _PERCENT)
        copies = range(len(self._local.directories))
        return [
            self._local.directories[copy] for copy in copies if not self._make(copy, size_bytes)
        ]

    def held_bytes(self, copy: int) -> int:
        """Return the bytes of a directory's reserve."""
        try:
            file = self._storage.open(self._local.path(copy, RESERVE_FILE))
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _make(self, copy: int, size_bytes: int) -> bool:
        """Make or grow a reserve; return False if the disk is too full, which leaves the old
        one."""
        held_bytes = self.held_bytes(copy)
        if held_bytes >= size_bytes:
            return True
        directory = self._local.directories[copy]
        if self._storage.free_bytes(directory) < size_bytes - held_bytes:
            # Checked first, so that retrying does not fill the disk for a moment each time.
            return False
        try:
            self._grow(copy, size_bytes, is_new=held_bytes == 0)
        except SnapshotNoSpace:
            if held_bytes == 0:
                self._local.remove(copy, RESERVE_FILE)
            return False
        self._local.sync_directory(directory)
        return True

    def _grow(self, copy: int, size_bytes: int, *, is_new: bool) -> None:
        path = self._local.path(copy, RESERVE_FILE)
        file = self._new(copy) if is_new else self._storage.open(path)
        try:
            what = f"reserving {size_bytes} bytes in {path}"
            self._local.attempt(copy, what, lambda: file.reserve(size_bytes))
            self._local.sync(file)
        finally:
            file.close()

    def _new(self, copy: int) -> StorageFile:
        # A crash may have left an empty one.
        self._local.remove(copy, RESERVE_FILE)
        return self._local.create(copy, RESERVE_FILE)
