"""Opening the copy directories: checking whose they are, and clearing what a crash left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

from coordinator.snapshot.copies import CopyDirectories, Report
from coordinator.snapshot.errors import DirectoriesUnused, WrongCopyDirectory
from coordinator.snapshot.identity import (
    IDENTITY_BYTES,
    IDENTITY_FILE,
    CopyIdentity,
    FoundDirectory,
    check_directories,
    decode_identity,
    encode_identity,
    to_be_written,
)
from coordinator.snapshot.layout import FOLDERS, manifest_file
from coordinator.snapshot.local_writer import TEMPORARY_SUFFIX
from coordinator.storage import LOCK_FILE, DirectoryInUse, Storage, StorageLock
from viewstamp.format import FormatError, FormatVersionError

# How long the writer of a killed coordinator may continue: one of its calls takes milliseconds, and
# seconds on a slow disk.
WRITER_END_MS: Final = 20_000
WRITER_LOOK_MS: Final = 20
# What an unused directory may hold: the root of a file system has the second one.
_NOTHING_OF_OURS: Final = frozenset({LOCK_FILE, "lost+found"})


def open_directories(
    storage: Storage,
    directories: Sequence[str],
    cluster_id: bytes,
    replica_id: int,
    report: Report,
    tag: str,
    generation: int,
) -> tuple[CopyDirectories, Sequence[StorageLock]]:
    """Make, lock and check the three directories, and remove temporary files.

    Return the copies, and the locks that keep others out. Raises WrongCopyDirectory,
    DirectoryInUse, and DirectoriesUnused, before anything is written, if all are new although
    `generation` should exist, as when no disk was mounted.
    """
    check_directories(directories)
    locks = _lock(storage, directories)
    try:
        copies = CopyDirectories(storage, directories, report, tag)
        found = [_look(storage, directory) for directory in directories]
        lacking = to_be_written(found, cluster_id, replica_id)
        if generation and len(lacking) == len(directories):
            raise DirectoriesUnused(manifest_file(generation), directories)
        copies.local.remove_temporaries([""])
        for copy in lacking:
            data = encode_identity(CopyIdentity(cluster_id, replica_id, copy))
            copies.local.write_one(copy, IDENTITY_FILE, data)
        for directory in directories:
            for folder in FOLDERS:
                storage.make_directory(f"{directory}/{folder}")
        copies.local.remove_temporaries(FOLDERS)
    except BaseException:
        release(locks)
        raise
    return copies, locks


def release(locks: Sequence[StorageLock]) -> None:
    """Release the locks."""
    for lock in locks:
        lock.release()


def _lock(storage: Storage, directories: Sequence[str]) -> list[StorageLock]:
    locks: list[StorageLock] = []
    try:
        for directory in directories:
            storage.make_directory(directory)
            locks.append(_lock_one(storage, directory, is_first=not locks))
    except BaseException:
        release(locks)
        raise
    return locks


def _lock_one(storage: Storage, directory: str, *, is_first: bool) -> StorageLock:
    try:
        return _lock_after_a_crash(storage, directory)
    except DirectoryInUse as error:
        if is_first or error.holder != os.getpid():
            raise
        raise WrongCopyDirectory(
            f"{directory} is another name of one of the other copy directories, or this process "
            f"has it open already; give three different directories"
        ) from error


def _lock_after_a_crash(storage: Storage, directory: str) -> StorageLock:
    """Lock a directory; if its holder is dead, as soon as its writer has ended, too.

    The writer of a killed coordinator finishes its call, and holds the lock until then
    (`coordinator.snapshot.writer_process`).
    """
    for _ in range(WRITER_END_MS // WRITER_LOOK_MS):
        try:
            return storage.lock(directory)
        except DirectoryInUse as error:
            if error.holder is None or _is_alive(error.holder):
                raise
        time.sleep(WRITER_LOOK_MS / 1000)
    return storage.lock(directory)


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # of another user
    return True


def _look(storage: Storage, directory: str) -> FoundDirectory:
    names = [
        name
        for name in storage.names(directory)
        if name not in _NOTHING_OF_OURS and not name.endswith(TEMPORARY_SUFFIX)
    ]
    if IDENTITY_FILE not in names:
        return FoundDirectory(directory, None, None, is_empty=not names)
    path = f"{directory}/{IDENTITY_FILE}"
    try:
        data = _read(storage, path)
        if not data and _holds_nothing_else(storage, directory, names):
            return FoundDirectory(directory, None, None, is_empty=True)
        identity = decode_identity(data)
    except FormatVersionError as error:
        raise FormatVersionError(f"{path}: {error}") from error
    except (FormatError, OSError) as error:
        return FoundDirectory(directory, None, str(error), is_empty=False)
    return FoundDirectory(directory, identity, None, is_empty=False)


def _read(storage: Storage, path: str) -> bytes:
    file = storage.open(path)
    try:
        return file.read(0, IDENTITY_BYTES + 1)
    finally:
        file.close()


def _holds_nothing_else(storage: Storage, directory: str, names: Sequence[str]) -> bool:
    """Whether a disk lost the content of a new directory's identity, which it had confirmed."""
    folders = [name for name in names if name in FOLDERS]
    return len(folders) + 1 == len(names) and not any(
        storage.names(f"{directory}/{folder}") for folder in folders
    )
