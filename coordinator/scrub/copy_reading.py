"""Reading one copy of a snapshot file from the disk, in slices: all of it blocks."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from coordinator.scrub.pace import SLICE_BYTES
from coordinator.snapshot.local_writer import MISSING, damage_of
from coordinator.storage import Storage, StorageFile

_ENDED: Final = 0


class CopyReading:
    """One copy of a file, from its first byte to its last. `damage` says what is wrong with it."""

    def __init__(self, storage: Storage, path: str, size_bytes: int, digest: bytes) -> None:
        """The copy is intact if it has this size and this BLAKE3."""
        self.damage: str | None = None
        self._storage = storage
        self.path = path
        self._size_bytes = size_bytes
        self._digest = digest
        self._hasher = blake3()
        self._offset = 0
        self._file: StorageFile | None = None
        self._is_over = False

    def next_slice(self) -> tuple[int, bool]:
        """Read a slice; return its bytes, and whether there is more. Raises OSError for want of
        something that this process needs."""
        if self._is_over:
            return _ENDED, False
        try:
            read_bytes = self._read()
        except FileNotFoundError:
            read_bytes = self._end(MISSING)
        except OSError as error:
            read_bytes = self._end(damage_of(error, "cannot be read"))
        return read_bytes, not self._is_over

    def _read(self) -> int:
        if self._file is None:
            self._file = self._storage.open(self.path)
            found_bytes = self._file.size()
            if found_bytes != self._size_bytes:
                return self._end(f"has {found_bytes} bytes, must have {self._size_bytes}")
        self._file.drop_cached(self._offset, SLICE_BYTES)
        data = self._file.read(self._offset, min(SLICE_BYTES, self._size_bytes - self._offset))
        self._file.drop_cached(self._offset, SLICE_BYTES)
        self._hasher.update(data)
        self._offset += len(data)
        if self._offset == self._size_bytes or not data:
            self._end(self._difference())
        return len(data)

    def _difference(self) -> str | None:
        found = self._hasher.digest()
        if found == self._digest:
            return None
        return f"has digest {found.hex()}, must be {self._digest.hex()}"

    def _end(self, damage: str | None) -> int:
        self.damage, self._is_over = damage, True
        self.close()
        return _ENDED

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
