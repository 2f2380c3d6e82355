"""Writes each file three times, in three directories that operators can put on three disks.

In each directory a file takes these steps: temporary file, fsync, rename, fsync of the directory,
read back and verify. So a file was complete and durable before it got its final name. An existing
intact file is not rewritten, but its directory is synced, since a process that ended in between may
have left an entry that is not durable.

The coordinator has another process write new files (`writer_process.WriterProcess`), which calls
the same methods there. `LocalWriter` works in that process and in others that call it: where a
directory is opened or a copy repaired, in the process that merges large chains, and wherever the
storage is simulated.

**Errors.** A failed fsync is never retried: every later call raises CopiesFailed. A full disk
raises SnapshotNoSpace once the reserve, if the file may use it, is given up; any other error of a
write raises CopyNotWritten. Both leave temporary files behind, which `discard` and the next `open`
remove, and never a file with a final name.

Everything here blocks. Threads may share a writer; a file being made belongs to one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn, TypeVar

from coordinator.snapshot.errors import CopiesFailed, CopyNotWritten, SnapshotNoSpace
from coordinator.snapshot.layout import RESERVE_FILE, Check, equality_check
from coordinator.storage import ERRORS_OF_THE_PROCESS, Storage, StorageFile

TEMPORARY_SUFFIX: Final = ".tmp"
NO_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
MISSING: Final = "missing"
# These concern this process, not a copy.

T = TypeVar("T")


@dataclass(slots=True)
class _Staged:
    """A file being made: the same bytes in a temporary file of each directory."""

    name: str
    use_reserve: bool
    files: dict[int, StorageFile] = field(default_factory=dict)
    size_bytes: int = 0


class LocalWriter:
    """Writes from this process: files by their name below each of the directories.

    Methods raise SnapshotNoSpace, CopyNotWritten, CopiesFailed; `discard` does not.
    """

    def __init__(self, storage: Storage, directories: Sequence[str], tag: str) -> None:
        """`tag` marks this process's temporary files among those of others in these directories."""
        self.directories = tuple(directories)
        self._storage = storage
        self._tag = tag
        self._failure: str | None = None
        self._numbers = itertools.count(1)
        self._staged: dict[str, _Staged] = {}
        # A thread that finds the disk full meanwhile waits until the space is really free.
        self._giving_up = threading.Lock()

    # --- Small files ---

    def write(self, name: str, data: bytes, use_reserve: bool) -> None:
        """Return once a file is durable and reads back as `data` in every directory."""
        self._write(name, range(len(self.directories)), data, use_reserve)

    def write_one(self, copy: int, name: str, data: bytes) -> None:
        """Return once a small file is durable and verified in one directory."""
        self._write(name, [copy], data, use_reserve=False)

    def _write(self, name: str, copies: Iterable[int], data: bytes, use_reserve: bool) -> None:
        key = self._stage(name, copies, use_reserve)
        try:
            self.append(key, data)
            self.place(key, name, equality_check(data))
        finally:
            self.discard(key)

    # --- Large files, in pieces ---

    def stage(self, label: str, use_reserve: bool) -> str:
        """Begin a file whose name is not known yet, and return its key; `label` begins with its
        final folder."""
        return self._stage(label, range(len(self.directories)), use_reserve)

    def stage_one(self, copy: int, label: str) -> str:
        """Begin a file in one directory, for a repair."""
        return self._stage(label, [copy], use_reserve=False)

    def _stage(self, label: str, copies: Iterable[int], use_reserve: bool) -> str:
        self.check_usable()
        # A file may be written and repaired at the same time: each has its own temporary files.
        name = f"{label}.{self._tag}-{next(self._numbers)}{TEMPORARY_SUFFIX}"
        staged = self._staged[name] = _Staged(name, use_reserve)
        try:
            for copy in copies:
                staged.files[copy] = self.create(copy, name, use_reserve)
        except CopyNotWritten:
            self.discard(name)
            raise
        return name

    def append(self, key: str, data: bytes) -> None:
        """Append bytes."""
        staged = self._of(key)
        self.check_usable()
        for copy, file in staged.files.items():
            write = partial(file.write, staged.size_bytes, data)
            self.attempt(copy, f"writing {file.path}", write, staged.use_reserve)
        staged.size_bytes += len(data)

    def place(self, key: str, name: str, check: Check) -> None:
        """Return once the file has its final name everywhere, durable and read back.

        Each step is taken in every directory before the next step: on a shared file system, the
        first sync of a directory makes the other names durable, too.
        """
        staged = self._of(key)
        copies = list(staged.files)
        placed = [copy for copy in copies if self.damage(copy, name, check) is not None]
        for copy in placed:
            self.sync(staged.files[copy])
        for copy in placed:
            staged.files[copy].close()
            self._rename(copy, staged, name)
            del staged.files[copy]
        for copy in copies:
            self.sync_directory(folder_of(self.path(copy, name)))
        for copy in placed:
            self._check_read_back(copy, name, check)

    def discard(self, key: str) -> None:
        """Forget a file, and remove it where it has no final name. The next open removes what
        cannot be removed now."""
        staged = self._staged.pop(key, None)
        while staged is not None and staged.files:
            copy, file = staged.files.popitem()
            file.close()
            with contextlib.suppress(CopyNotWritten, CopiesFailed):
                self.remove(copy, staged.name)

    def _of(self, key: str) -> _Staged:
        staged = self._staged.get(key)
        if staged is None:
            raise CopyNotWritten(f"file {key} was in the making in a process that has ended")
        return staged

    def _rename(self, copy: int, staged: _Staged, name: str) -> None:
        here, there = self.path(copy, staged.name), self.path(copy, name)
        rename = partial(self._storage.rename, here, there)
        self.attempt(copy, f"renaming {here}", rename, staged.use_reserve)

    def _check_read_back(self, copy: int, name: str, check: Check) -> None:
        damage = self.damage(copy, name, check)
        if damage is not None:
            path = self.path(copy, name)
            raise CopyNotWritten(f"{path} does not read back as it was written: {damage}")

    # --- Removing ---

    def delete(self, names: Sequence[str]) -> None:
        """Return once no directory has any of these files, durably."""
        self.check_usable()
        folders = sorted({folder_of(name) for name in names})
        for copy in range(len(self.directories)):
            for name in names:
                self.remove(copy, name)
        # On a shared file system, the first sync makes all of it durable.
        for directory in self.directories:
            for folder in folders:
                self.sync_directory(f"{directory}/{folder}" if folder else directory)

    def remove(self, copy: int, name: str) -> None:
        """Remove one copy of a file, if it is there; not durable before its directory is synced."""
        path = self.path(copy, name)

        def unlink() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._storage.unlink(path)

        self.attempt(copy, f"removing {path}", unlink)

    def remove_temporaries(self, folders: Sequence[str]) -> None:
        """Remove leftover temporary files, and make every existing name durable.

        Only the process that holds the directories may call it, before it writes anything itself.
        """
        for copy, directory in enumerate(self.directories):
            for folder in folders:
                path = f"{directory}/{folder}" if folder else directory
                for name in self._storage.names(path):
                    if name.endswith(TEMPORARY_SUFFIX):
                        self.remove(copy, f"{folder}/{name}" if folder else name)
                self.sync_directory(path)

    def give_up_reserve(self, copy: int) -> None:
        """Remove the reserve of a directory, if it exists; its space is free at return."""
        with self._giving_up:
            if self._storage.exists(self.path(copy, RESERVE_FILE)):
                self.remove(copy, RESERVE_FILE)
                self.sync_directory(self.directories[copy])

    # --- The disk ---

    def path(self, copy: int, name: str) -> str:
        """Return the path of one copy of a file."""
        return f"{self.directories[copy]}/{name}"

    def damage(self, copy: int, name: str, check: Check) -> str | None:
        """Return what is wrong with one copy, or None."""
        try:
            file = self._storage.open(self.path(copy, name))
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            return damage_of(error, "cannot be opened")
        try:
            return check(file)
        except OSError as error:
            return damage_of(error, "cannot be read")
        finally:
            file.close()

    def create(self, copy: int, name: str, use_reserve: bool = False) -> StorageFile:
        """Return a new, empty file."""
        path = self.path(copy, name)
        return self.attempt(
            copy, f"creating {path}", partial(self._storage.create, path), use_reserve
        )

    def attempt(
        self, copy: int, what: str, action: Callable[[], T], use_reserve: bool = False
    ) -> T:
        """Run `action`; on a full disk give up the reserve and repeat it. Never for a sync."""
        self.check_usable()
        try:
            return action()
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise _not_written(what, error) from error
        # Repeat even if nothing was given up just now: another thread may have done so.
        if use_reserve:
            self.give_up_reserve(copy)
        try:
            return action()
        except OSError as error:
            raise _not_written(what, error) from error

    def sync(self, file: StorageFile) -> None:
        """Sync a file; raises CopiesFailed, now and from now on."""
        self._sync(file.path, file.sync)

    def sync_directory(self, path: str) -> None:
        """Sync a directory; raises CopiesFailed, now and from now on."""
        self._sync(path, partial(self._storage.sync_directory, path))

    def _sync(self, path: str, action: Callable[[], None]) -> None:
        self.check_usable()
        try:
            action()
        except OSError as error:
            self.fail(f"syncing {path} failed: {error}")

    def check_usable(self) -> None:
        """Raise CopiesFailed if a sync has failed before."""
        if self._failure is not None:
            raise CopiesFailed(self._failure)

    def fail(self, what: str) -> NoReturn:
        """Refuse all later work. Raises CopiesFailed."""
        self._failure = f"snapshot files: {what}. What is durable is unknown; this process must end"
        raise CopiesFailed(self._failure)


def folder_of(path: str) -> str:
    """Return the part of a path before its last slash."""
    return path.rpartition("/")[0]


def damage_of(error: OSError, what: str) -> str:
    """Return what an error says of a copy; raise it again if it concerns this process."""
    if error.errno in ERRORS_OF_THE_PROCESS:
        raise error
    return f"{what}: {error.strerror or error}"


def _not_written(what: str, error: OSError) -> CopyNotWritten:
    if error.errno in NO_SPACE_ERRORS:
        return SnapshotNoSpace(
            f"{what}: {error.strerror}; free space on its file system: what frees the journal is "
            f"a snapshot that completes"
        )
    return CopyNotWritten(f"{what}: {error}")
