"""Each file three times, in three directories that operators can put on three disks.

**Writing** a file goes, in each directory: temporary file, fsync, rename, fsync of the directory,
read back and verify. A file of a final name was therefore complete and durable before it got its
name. One that is there already and intact is not written again; its directory is synced all the
same, since a process that ended in between may have left an entry that is not durable.

**Reading** looks at all copies. A missing, damaged or unreadable one is written anew from an intact
one, which is reported. If none is intact, nothing is changed and AllCopiesBad says what is wrong
with each.

**Errors.** A failed fsync is never tried again: whatever is called afterwards raises CopiesFailed.
A full disk raises SnapshotNoSpace after `make_room` had nothing to give; any other error of a write
raises CopyNotWritten. Both leave temporary files behind, which `StagedFile.discard` and the next
`open` remove, and never a file of a final name.

Everything here blocks. Threads may share `Copies`; a `StagedFile` and a `CopiesFile` belong to one
thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TypeAlias, TypeVar

from coordinator.snapshot.errors import (
    AllCopiesBad,
    CopiesFailed,
    CopyNotWritten,
    SnapshotNoSpace,
)
from coordinator.storage import Storage, StorageFile
from viewstamp.limits import MIB

TEMPORARY_SUFFIX: Final = ".tmp"
READ_CHUNK_BYTES: Final = 1 * MIB
NO_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
MISSING: Final = "missing"
# These say something about this process, not about a copy.
_OWN_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

# Says what is wrong with an open file, or None. May raise OSError: then it is unreadable.
Check: TypeAlias = Callable[[StorageFile], str | None]
# Frees what space it can in the directory of that index.
MakeRoom: TypeAlias = Callable[[int], None]
T = TypeVar("T")


def no_room(copy: int) -> None:
    """A MakeRoom for writes that are not worth the reserve."""


class Staged(Protocol):
    """A file in the making, in every directory. All methods block."""

    def append(self, data: bytes) -> None:
        """Put bytes behind those before; raises SnapshotNoSpace, CopyNotWritten, CopiesFailed."""
        ...

    def place(self, name: str, check: Check) -> None:
        """Return once the file has its final name everywhere, durable and read back."""
        ...

    def discard(self) -> None:
        """Remove what has not got its final name."""
        ...


@dataclass(frozen=True, slots=True)
class CopyVerdict:
    """What was found of one copy. `damage` is None if it was intact; `unrepaired` if it is now."""

    directory: str
    damage: str | None
    unrepaired: str | None

    @property
    def is_intact(self) -> bool:
        """Whether the copy is intact now."""
        return self.unrepaired is None

    def __str__(self) -> str:
        if self.damage is None:
            return "intact"
        if self.unrepaired is None:
            return f"{self.damage}; repaired"
        return f"{self.damage}; not repaired: {self.unrepaired}"


# Told of each file of which a copy was not intact: its name, and the verdicts on all copies.
Report: TypeAlias = Callable[[str, Sequence[CopyVerdict]], None]


def chunks_of(file: StorageFile) -> Iterator[bytes]:
    """The bytes of a file, up to READ_CHUNK_BYTES at a time."""
    for offset in range(0, file.size(), READ_CHUNK_BYTES):
        yield file.read(offset, READ_CHUNK_BYTES)


class Copies:
    """Files by their name below each of the directories, such as `layers/ab.layer`."""

    def __init__(
        self, storage: Storage, directories: Sequence[str], report: Report, tag: str
    ) -> None:
        """`tag` tells this process's temporary files from those of others in these directories."""
        self.directories = tuple(directories)
        self._storage = storage
        self._report = report
        self._tag = tag
        self._failure: str | None = None
        self._numbers = itertools.count(1)

    # --- Writing ---

    def stage(self, label: str, make_room: MakeRoom) -> Staged:
        """Begin a file whose name is not known yet; `label` begins with its final folder."""
        return self._stage(label, range(len(self.directories)), make_room)

    def _stage(self, label: str, copies: Iterable[int], make_room: MakeRoom) -> StagedFile:
        self.check_usable()
        # A file may be written and repaired at the same time: each has temporary files of its own.
        name = f"{label}.{self._tag}-{next(self._numbers)}{TEMPORARY_SUFFIX}"
        staged = StagedFile(self, name, make_room)
        try:
            for copy in copies:
                staged.create(copy)
        except CopyNotWritten:
            staged.discard()
            raise
        return staged

    def write(self, name: str, data: bytes, check: Check, make_room: MakeRoom) -> None:
        """Return once a small file is durable and verified in every directory."""
        self._write(name, range(len(self.directories)), data, check, make_room)

    def write_one(self, copy: int, name: str, data: bytes, check: Check) -> None:
        """Return once a small file is durable and verified in one directory."""
        self._write(name, [copy], data, check, no_room)

    def _write(
        self, name: str, copies: Iterable[int], data: bytes, check: Check, make_room: MakeRoom
    ) -> None:
        staged = self._stage(name, copies, make_room)
        try:
            staged.append(data)
            staged.place(name, check)
        finally:
            staged.discard()

    def delete(self, names: Sequence[str]) -> None:
        """Return once no directory has any of these files, durably."""
        self.check_usable()
        folders = sorted({_folder(name) for name in names})
        for copy in range(len(self.directories)):
            for name in names:
                self.remove(copy, name)
        # Where they share a file system, its first sync makes all of it durable.
        for directory in self.directories:
            for folder in folders:
                self.sync_directory(f"{directory}/{folder}" if folder else directory)

    def remove_temporaries(self, folders: Sequence[str]) -> None:
        """Remove what was left of files in the making, and make every name that is there durable.

        Only the process that holds the directories may, before it writes anything itself.
        """
        for copy, directory in enumerate(self.directories):
            for folder in folders:
                path = f"{directory}/{folder}" if folder else directory
                for name in self._storage.names(path):
                    if name.endswith(TEMPORARY_SUFFIX):
                        self.remove(copy, f"{folder}/{name}" if folder else name)
                self.sync_directory(path)

    def remove(self, copy: int, name: str) -> None:
        """Remove one copy of a file, if it is there; not durable before its directory is synced."""
        path = self.path(copy, name)

        def unlink() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._storage.unlink(path)

        self.attempt(copy, f"removing {path}", unlink, no_room)

    # --- Reading ---

    def names(self, folder: str) -> list[str]:
        """The names of the files that any directory has in a folder, sorted, without folder."""
        found: set[str] = set()
        for directory in self.directories:
            found.update(self._storage.names(f"{directory}/{folder}"))
        return sorted(name for name in found if not name.endswith(TEMPORARY_SUFFIX))

    def has(self, name: str) -> bool:
        """Whether any directory has a file of this name, intact or not."""
        paths = (self.path(copy, name) for copy in range(len(self.directories)))
        return any(self._storage.exists(path) for path in paths)

    def read_part(self, copy: int, name: str, size: int) -> bytes:
        """Return the first bytes of a copy, not verified. Raises OSError."""
        file = self._storage.open(f"{self.directories[copy]}/{name}")
        try:
            return file.read(0, size)
        finally:
            file.close()

    def scrub(self, name: str, check: Check) -> tuple[CopyVerdict, ...]:
        """Look at every copy and repair bad ones; raises AllCopiesBad, having changed nothing."""
        self.check_usable()
        damages = [self.damage(copy, name, check) for copy in range(len(self.directories))]
        if None not in damages:
            found = zip(self.directories, map(str, damages), strict=True)
            raise AllCopiesBad(name, list(found))
        source = damages.index(None)
        verdicts = tuple(
            CopyVerdict(self.directories[copy], damage, self._repaired(source, copy, name, check))
            if damage is not None
            else CopyVerdict(self.directories[copy], None, None)
            for copy, damage in enumerate(damages)
        )
        if any(damages):
            self._report(name, verdicts)
        return verdicts

    def open(self, name: str, check: Check) -> CopiesFile:
        """Verify and repair a file, and open it for reading; raises AllCopiesBad."""
        verdicts = self.scrub(name, check)
        paths = [f"{each.directory}/{name}" for each in verdicts if each.is_intact]
        return CopiesFile(self._storage, name, paths)

    def damage(self, copy: int, name: str, check: Check) -> str | None:
        """What is wrong with one copy, or None."""
        try:
            file = self._storage.open(self.path(copy, name))
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            return _damage_of(error, "cannot be opened")
        try:
            return check(file)
        except OSError as error:
            return _damage_of(error, "cannot be read")
        finally:
            file.close()

    def _repaired(self, source: int, target: int, name: str, check: Check) -> str | None:
        """Write one copy anew from an intact one; why that was not possible, or None."""
        try:
            self._repair(source, target, name, check)
        except CopyNotWritten as error:
            return str(error)
        return None

    def _repair(self, source: int, target: int, name: str, check: Check) -> None:
        staged = self._stage(name, [target], no_room)
        try:
            file = self._storage.open(self.path(source, name))
            try:
                for chunk in chunks_of(file):
                    staged.append(chunk)
            finally:
                file.close()
            staged.place(name, check)
        except OSError as error:
            raise CopyNotWritten(f"cannot read {self.path(source, name)}: {error}") from error
        finally:
            staged.discard()

    # --- The disk ---

    def path(self, copy: int, name: str) -> str:
        """Where one copy of a file lies."""
        return f"{self.directories[copy]}/{name}"

    def check_usable(self) -> None:
        """Raise CopiesFailed if a sync has failed before."""
        if self._failure is not None:
            raise CopiesFailed(self._failure)

    def sync(self, file: StorageFile) -> None:
        """Sync a file; raises CopiesFailed, now and from now on."""
        self._sync(file.path, file.sync)

    def sync_directory(self, path: str) -> None:
        """Sync a directory; raises CopiesFailed, now and from now on."""
        self._sync(path, lambda: self._storage.sync_directory(path))

    def _sync(self, path: str, action: Callable[[], None]) -> None:
        self.check_usable()
        try:
            action()
        except OSError as error:
            self.fail(f"syncing {path} failed: {error}")

    def fail(self, what: str) -> NoReturn:
        """Refuse all work from now on; raises CopiesFailed."""
        self._failure = f"snapshot files: {what}. What is durable is unknown; this process must end"
        raise CopiesFailed(self._failure)

    def attempt(self, copy: int, what: str, action: Callable[[], T], make_room: MakeRoom) -> T:
        """Do it; on a full disk make room and do it once more. Never for a sync."""
        self.check_usable()
        try:
            return action()
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise _not_written(what, error) from error
        # Also if nothing was given up just now: another thread may have done so.
        make_room(copy)
        try:
            return action()
        except OSError as error:
            raise _not_written(what, error) from error

    def create_file(self, copy: int, name: str, make_room: MakeRoom) -> StorageFile:
        """A new, empty file."""
        path = self.path(copy, name)
        return self.attempt(copy, f"creating {path}", lambda: self._storage.create(path), make_room)

    def rename(self, copy: int, source: str, target: str, make_room: MakeRoom) -> None:
        """Give a synced file its final name; not durable before its directory is synced."""
        here, there = self.path(copy, source), self.path(copy, target)
        self.attempt(copy, f"renaming {here}", lambda: self._storage.rename(here, there), make_room)


class StagedFile:
    """A file in the making: the same bytes in a temporary file of each directory."""

    def __init__(self, copies: Copies, name: str, make_room: MakeRoom) -> None:
        """Use `Copies.stage`."""
        self._copies = copies
        self._name = name
        self._make_room = make_room
        self._files: dict[int, StorageFile] = {}
        self.size_bytes = 0

    def create(self, copy: int) -> None:
        """Add the temporary file of one directory."""
        self._files[copy] = self._copies.create_file(copy, self._name, self._make_room)

    def append(self, data: bytes) -> None:
        """Put bytes behind those before; raises SnapshotNoSpace, CopyNotWritten."""
        self._copies.check_usable()
        for copy, file in self._files.items():
            self._write(copy, file, data)
        self.size_bytes += len(data)

    def _write(self, copy: int, file: StorageFile, data: bytes) -> None:
        offset = self.size_bytes
        what = f"writing {file.path}"
        self._copies.attempt(copy, what, lambda: file.write(offset, data), self._make_room)

    def place(self, name: str, check: Check) -> None:
        """Return once the file has its final name everywhere, durable and read back.

        Each step is taken in every directory before the next one: where they share a file system,
        its first sync of a directory makes the other names durable, too.
        """
        copies = list(self._files)
        placed = [copy for copy in copies if self._copies.damage(copy, name, check) is not None]
        for copy in placed:
            self._copies.sync(self._files[copy])
        for copy in placed:
            self._files[copy].close()
            self._copies.rename(copy, self._name, name, self._make_room)
            del self._files[copy]
        for copy in copies:
            self._copies.sync_directory(_folder(self._copies.path(copy, name)))
        for copy in placed:
            self._check_read_back(copy, name, check)

    def _check_read_back(self, copy: int, name: str, check: Check) -> None:
        damage = self._copies.damage(copy, name, check)
        if damage is not None:
            path = self._copies.path(copy, name)
            raise CopyNotWritten(f"{path} does not read back as it was written: {damage}")

    def discard(self) -> None:
        """Remove what has not got its final name. What cannot be removed goes at the next open."""
        while self._files:
            copy, file = self._files.popitem()
            file.close()
            with contextlib.suppress(CopyNotWritten, CopiesFailed):
                self._copies.remove(copy, self._name)


class CopiesFile:
    """A verified file, open for reading. Where one copy fails, the next intact one is read."""

    def __init__(self, storage: Storage, name: str, paths: Sequence[str]) -> None:
        """Use `Copies.open`."""
        self.name = name
        self._storage = storage
        self._paths = list(paths)
        self._failed: list[tuple[str, str]] = []
        self._file: StorageFile | None = None

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self._attempt(lambda file: file.size())

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; raises AllCopiesBad once no copy can be read."""
        return self._attempt(lambda file: file.read(offset, size))

    def _attempt(self, action: Callable[[StorageFile], T]) -> T:
        while self._paths:
            try:
                if self._file is None:
                    self._file = self._storage.open(self._paths[0])
                return action(self._file)
            except OSError as error:
                self.give_up_copy(_damage_of(error, "cannot be read"))
        raise AllCopiesBad(self.name, self._failed)

    def give_up_copy(self, reason: str) -> None:
        """Go on with the next copy, since the one that is being read turned out to be damaged."""
        self.close()
        self._failed.append((_folder(self._paths.pop(0)), reason))

    def close(self) -> None:
        """Give the file back. Closing twice is harmless."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _damage_of(error: OSError, what: str) -> str:
    if error.errno in _OWN_ERRORS:
        raise error
    return f"{what}: {error.strerror or error}"


def _not_written(what: str, error: OSError) -> CopyNotWritten:
    if error.errno in NO_SPACE_ERRORS:
        return SnapshotNoSpace(
            f"{what}: {error.strerror}; free space on its file system: what frees the journal is "
            f"a snapshot that completes"
        )
    return CopyNotWritten(f"{what}: {error}")
