"""What a state transfer has fetched so far, in its own directory; it may be lost at any time.

Nothing depends on it, so nothing is synced; content that is read back is verified like content from
a peer. It is written through `coordinator.storage` like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.storage import FileStorage, Storage
from viewstamp.limits import MIB

CHUNK_BYTES = 1 * MIB


class PartialFiles:
    """Files of one transfer. All methods block, and raise OSError."""

    def __init__(self, directory: str, storage: Storage | None = None) -> None:
        """Use `directory`, whose parent exists; it is made with the first file."""
        self._directory = directory
        self._storage = storage or FileStorage()

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self._directory}/{name}"

    def replace(self, name: str, data: bytes) -> None:
        """Write a file as a whole."""
        self.remove(name)
        self._append(name, 0, data)

    def append(self, name: str, data: bytes) -> None:
        """Append to a file, which is made if it does not exist."""
        self._append(name, self.size(name), data)

    def _append(self, name: str, offset: int, data: bytes) -> None:
        self._storage.make_directory(self._directory)
        path = self.path(name)
        is_there = self._storage.exists(path)
        file = self._storage.open(path) if is_there else self._storage.create(path)
        try:
            file.write(offset, data)
        finally:
            file.close()

    def size(self, name: str) -> int:
        """Return the bytes of a file, 0 if there is none."""
        if not self._storage.exists(self.path(name)):
            return 0
        file = self._storage.open(self.path(name))
        try:
            return file.size()
        finally:
            file.close()

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return up to `size` bytes. Raises FileNotFoundError."""
        file = self._storage.open(self.path(name))
        try:
            return file.read(offset, size)
        finally:
            file.close()

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield all of a file."""
        offset = 0
        while chunk := self.read(name, offset, CHUNK_BYTES):
            yield chunk
            offset += len(chunk)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        if self._storage.exists(self.path(name)):
            self._storage.unlink(self.path(name))

    def remove_all(self) -> None:
        """Remove every file; the directory stays."""
        if self._storage.exists(self._directory):
            for name in self._storage.names(self._directory):
                self._storage.unlink(self.path(name))
