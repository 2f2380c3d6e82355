"""The one door to the disk.

Everything durable that a replica does, journal, superblock and snapshots alike, goes through
`Storage` and `StorageFile`. Tests put an implementation in their place that loses, tears and rots
what was not synced; so nothing else in the coordinator may open, write, rename or unlink files.

What a caller may rely on, and must not go beyond:

* `write` puts bytes into the file as its readers see it; they survive a crash only once `sync`
  returned. A crash keeps any subset of the unsynced sectors, in any order.
* creating, renaming and unlinking survive a crash only once `sync_directory` returned for each
  directory concerned.
* an error of `sync` or `sync_directory` says that nothing is known about the data since the last
  success. A second try may report success for pages that the kernel has dropped; so nobody tries
  again: the process ends and recovery looks at what is there.
* `preallocate` writes zeros rather than reserving extents, so that later writes change no
  metadata: a sync of overwritten zeros costs a tenth of one that grows the file, and cannot fail
  for lack of space.
* `reserve` takes space without writing it, for files that exist only to be given up: quick, and
  the file system hands the space out again once the file is removed and its directory synced.

Methods raise OSError as the operating system does. All of them block: call them from a thread that
may wait.
"""

# The plain calls of the operating system are this module's whole purpose.
# ruff: noqa: PTH100, PTH102, PTH104, PTH108, PTH112, PTH120, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Final, Protocol

LOCK_FILE: Final = "LOCK"
ZERO_CHUNK_BYTES: Final = 1024 * 1024
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_LOCK_BYTES_MAX: Final = 32
# Of an OSError: this process lacks something for the moment, and nothing is said of the disk.
ERRORS_OF_THE_PROCESS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class DirectoryInUse(Exception):  # noqa: N818  A state of the directory, named as operators say it.
    """Another process holds the directory. `holder` is its process id, if it left one."""

    def __init__(self, directory: str, holder: int | None) -> None:
        self.directory = directory
        self.holder = holder
        who = "another process" if holder is None else f"process {holder}"
        super().__init__(
            f"directory {directory} is in use by {who} (lock file {directory}/{LOCK_FILE}); "
            f"stop that process, or give this one a directory of its own"
        )


class StorageFile(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """Where it was when it was opened."""
        ...

    def size(self) -> int:
        """Its size in bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only at the end of the file."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Put all of `data` at `offset`."""
        ...

    def preallocate(self, size: int) -> None:
        """Fill the file with zeros from its end up to `size` bytes."""
        ...

    def reserve(self, size: int) -> None:
        """Take the disk space of `size` bytes; what was not written reads as zeros."""
        ...

    def sync(self) -> None:
        """Return once every byte written before is durable, and the size with it."""
        ...

    def drop_cached(self, offset: int, size: int) -> None:
        """Forget what memory holds of these bytes and the disk has, too: the next read asks the
        disk for them."""
        ...

    def close(self) -> None:
        """Give the file back. Closing twice is harmless."""
        ...


class StorageLock(Protocol):
    """A held directory."""

    def descriptors(self) -> tuple[int, ...]:
        """What a child process must inherit to hold the directory, too; none in a simulation."""
        ...

    def release(self) -> None:
        """Let others in. Releasing twice is harmless."""
        ...


class Storage(Protocol):
    """Files in directories. Paths are strings with forward slashes."""

    def create(self, path: str) -> StorageFile:
        """A new, empty file for reading and writing; FileExistsError if there is one."""
        ...

    def open(self, path: str) -> StorageFile:
        """An existing file for reading and writing; FileNotFoundError, it is never created."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        ...

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and durably enter it in its parent; harmless if it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file, replacing `target` atomically."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once every entry made or removed before is durable."""
        ...

    def free_bytes(self, directory: str) -> int:
        """How much more this process could write on the directory's file system."""
        ...

    def lock(self, directory: str) -> StorageLock:
        """Hold a directory against other processes; raises DirectoryInUse."""
        ...


class FileStorage:
    """Storage in the file system of this machine."""

    def create(self, path: str) -> DescriptorFile:
        """A new, empty file, readable by its owner alone."""
        return DescriptorFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))

    def open(self, path: str) -> DescriptorFile:
        """An existing file."""
        return DescriptorFile(path, os.open(path, os.O_RDWR))

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return os.path.lexists(path)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        """Make a directory and sync its parent; the parent must exist."""
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            # A crash may have come between making and syncing: sync all the same.
            if not os.path.isdir(path):
                raise
        self.sync_directory(os.path.dirname(os.path.abspath(path)))

    def rename(self, source: str, target: str) -> None:
        """Move a file, replacing `target` atomically."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """fsync the directory itself."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: str) -> int:
        """What the file system has left for users other than root."""
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def lock(self, directory: str) -> DescriptorLock:
        """flock the file LOCK in the directory and leave our process id in it."""
        path = f"{directory}/{LOCK_FILE}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, _LOCK_BYTES_MAX, 0)
            os.close(descriptor)
            raise DirectoryInUse(directory, _process_id(holder)) from None
        except OSError:
            os.close(descriptor)
            raise
        return DescriptorLock(descriptor)


class DescriptorFile:
    """A file by its descriptor. All I/O is positional, so threads may share it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def path(self) -> str:
        """Where it was when it was opened."""
        return self._path

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._path} is closed")
        return self._descriptor

    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self._open_descriptor()).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; one system call may give fewer than the file has, so ask again."""
        parts: list[bytes] = []
        remaining_bytes = size
        while remaining_bytes:
            position = offset + size - remaining_bytes
            part = os.pread(self._open_descriptor(), remaining_bytes, position)
            if not part:
                break
            parts.append(part)
            remaining_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, data: bytes) -> None:
        """Put all of `data` at `offset`; one system call may take less, so go on."""
        view = memoryview(data)
        while view:
            written_bytes = os.pwrite(self._open_descriptor(), view, offset)
            view = view[written_bytes:]
            offset += written_bytes

    def preallocate(self, size: int) -> None:
        """Fill the file with zeros up to `size`."""
        zeros = bytes(min(size, ZERO_CHUNK_BYTES))
        for offset in range(self.size(), size, ZERO_CHUNK_BYTES):
            self.write(offset, zeros[: size - offset])

    def reserve(self, size: int) -> None:
        """posix_fallocate: extents where the file system has them, written blocks elsewhere."""
        os.posix_fallocate(self._open_descriptor(), 0, size)

    def sync(self) -> None:
        """fdatasync: data, and the metadata that reading it back needs."""
        os.fdatasync(self._open_descriptor())

    def drop_cached(self, offset: int, size: int) -> None:
        """posix_fadvise: clean pages leave the page cache; those not yet written stay."""
        # Advice: a system that does not take it says nothing of the disk.
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._open_descriptor(), offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Give the descriptor back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class DescriptorLock:
    """A held flock. The kernel lets go of it, too, when the process ends in whatever way."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def descriptors(self) -> tuple[int, ...]:
        """The one of the lock file: whoever inherits it holds the same flock."""
        return () if self._descriptor is None else (self._descriptor,)

    def release(self) -> None:
        """Close the descriptor, which drops the lock. The file stays, or two could be made."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _process_id(content: bytes) -> int | None:
    return int(content) if content.isdigit() else None
