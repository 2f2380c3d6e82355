"""The segments of an open journal: from the oldest that is kept to the spares ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator.journal.errors import JournalFailed
from coordinator.journal.segment import create_segment, segment_path
from coordinator.storage import Storage, StorageFile
from viewstamp.format.record import SegmentHeader

# Makes the error to raise when the disk refused something; the text says what was being done.
Failing = Callable[[str, OSError], JournalFailed]


@dataclass(frozen=True, slots=True)
class JournalSpace:
    """Room for records. `free_bytes` excludes the reserve; appends beyond it need disk space."""

    free_bytes: int
    spare_segments: int
    reserve_intact: bool


class Segments:
    """The files of all segments. Call it from one thread; any thread may call `make`.

    `first` and `last` are the numbers of the oldest segment and of the last spare.
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
        """`kind` is the header of new segments, except its number; `archive` receives old ones."""
        self.first = min(files)
        self.last = max(files)
        self._storage = storage
        self._directory = directory
        self._files = files
        # Cached, because every append asks and they never change.
        self._sizes = {segment: file.size() for segment, file in files.items()}
        self._kind = kind
        self._archive = archive
        self._failing = failing
        self._making = threading.Lock()

    def __getitem__(self, segment: int) -> StorageFile:
        """Return the file of an existing segment."""
        return self._files[segment]

    def path(self, segment: int) -> str:
        """Return the path of a segment, made or not."""
        return segment_path(self._directory, segment)

    def size_of(self, segment: int) -> int:
        """Return the bytes of a segment, also of one not yet made.

        Each has its own size: they may have been made with another setting.
        """
        return self._sizes.get(segment, self._kind.segment_bytes)

    def make(self, last: int) -> int:
        """Make all segments up to `last`; return how many were made.

        Raises JournalFailed, and NoSpace, which keeps the segments made before.
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
        """Remove the oldest segment durably. Raises JournalFailed. If two removals reached the disk
        in the wrong order, a crash between them would leave a hole in the numbers."""
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
