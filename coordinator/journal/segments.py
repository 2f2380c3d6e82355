"""The segments of an open journal: from the oldest that is kept to the spares ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from coordinator.journal.errors import JournalFailed
from coordinator.journal.segment import create_segment, segment_path
from coordinator.storage import Storage, StorageFile
from viewstamp.format.record import SegmentHeader

# What to raise when the disk refused something: says what was being done.
Failing = Callable[[str, OSError], JournalFailed]


class Segments:
    """Their files. Call it from one thread; `make` alone may be called in any.

    `first` and `last` are the numbers of the oldest and of the last spare.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        files: dict[int, StorageFile],
        kind: SegmentHeader,
        archive: str | None,
        failing: Failing,
    ) -> None:
        """`kind` is the header of new ones, but for their number; `archive` receives old ones."""
        self.first = min(files)
        self.last = max(files)
        self._storage = storage
        self._directory = directory
        self._files = files
        # Asked for at every turn, and they never change.
        self._sizes = {segment: file.size() for segment, file in files.items()}
        self._kind = kind
        self._archive = archive
        self._failing = failing
        self._making = threading.Lock()

    def __getitem__(self, segment: int) -> StorageFile:
        """The file of a segment that is there."""
        return self._files[segment]

    def path(self, segment: int) -> str:
        """Where a segment lies, or would."""
        return segment_path(self._directory, segment)

    def size_of(self, segment: int) -> int:
        """The bytes of a segment, also of one that is still to be made.

        Each has its own size: they may have been made under another setting.
        """
        return self._sizes.get(segment, self._kind.segment_bytes)

    def make(self, last: int) -> int:
        """Have all segments up to `last`; return how many were made.

        Raises NoSpace, with whatever fitted kept, and JournalFailed.
        """
        made = 0
        if self.last >= last:
            return made
        with self._making:
            while self.last < last:
                self._make(self.last + 1)
                made += 1
        return made

    def _make(self, segment: int) -> None:
        header = replace(self._kind, segment=segment)
        try:
            self._files[segment] = create_segment(self._storage, self._directory, header)
        except OSError as error:
            raise self._failing(f"making segment {segment}", error) from error
        self._sizes[segment] = header.segment_bytes
        self.last = segment

    def drop_first(self) -> None:
        """Remove the oldest durably: were two removals to reach the disk in the wrong order, a
        crash between them would leave a hole in the numbers. Raises JournalFailed."""
        segment = self.first
        path = self.path(segment)
        self._files.pop(segment).close()
        del self._sizes[segment]
        self.first = segment + 1
        try:
            if self._archive is None:
                self._storage.unlink(path)
            else:
                self._storage.rename(path, f"{self._archive}/{path.rpartition('/')[2]}")
                self._storage.sync_directory(self._archive)
            self._storage.sync_directory(self._directory)
        except OSError as error:
            raise self._failing(f"dropping segment {segment}", error) from error

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
