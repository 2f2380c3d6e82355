"""A store in a directory: a file for each object, which gets its name when it is durable."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from viewstamp.archive.archive_errors import PieceDamaged, StoreUnreachable
from viewstamp.archive.object_store import OBJECT_BYTES_MAX, StoredObject
from viewstamp.snapshots.durable import sync_directory

# A name that is being written. A crash leaves it, and `retention` collects it.
UNFINISHED_PREFIX: Final = ".unfinished-"
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_NS_PER_US: Final = 1_000
_SUFFIX_BYTES: Final = 8


class DirectoryStore:
    """Objects below a directory, which the first one makes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._root)

    def get(self, name: str) -> bytes | None:
        """Return an object's bytes, None if there is none."""
        with self._told():
            try:
                with self._path(name).open("rb") as file:
                    data = file.read(OBJECT_BYTES_MAX + 1)
            except FileNotFoundError:
                return None
        if len(data) > OBJECT_BYTES_MAX:
            raise PieceDamaged(f"{self._path(name)} is larger than {OBJECT_BYTES_MAX} bytes")
        return data

    def get_file(self, name: str, path: Path) -> bool:
        """Copy an object to a file; return whether there is such an object."""
        with self._told():
            try:
                source = self._path(name).open("rb")
            except FileNotFoundError:
                return False
            with source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        return True

    def put(self, name: str, data: bytes) -> None:
        """Store an object durably, in place of any earlier one."""
        self._write(name, lambda file: file.write(data), _replace)

    def put_file(self, name: str, path: Path) -> None:
        """Do the same with the bytes of a file."""
        with path.open("rb") as source:
            self._write(name, lambda file: shutil.copyfileobj(source, file), _replace)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object unless the name is taken; return whether it was free."""
        return self._write(name, lambda file: file.write(data), _link)

    def look(self, name: str) -> StoredObject | None:
        """Return what is known of an object, None if there is none."""
        with self._told():
            try:
                status = self._path(name).stat()
            except FileNotFoundError:
                return None
        return StoredObject(name, status.st_size, status.st_mtime_ns // _NS_PER_US)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of a directory, also unfinished ones, by name."""
        with self._told():
            try:
                names = sorted(entry.name for entry in os.scandir(self._root / prefix))
            except FileNotFoundError:
                return
        for name in names:
            found = self.look(prefix + name)
            if found is not None:
                yield found

    def delete(self, name: str) -> None:
        """Remove an object durably."""
        path = self._path(name)
        with self._told():
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                sync_directory(path.parent)

    def _path(self, name: str) -> Path:
        return self._root / name

    def _write(
        self, name: str, fill: Callable[[IO[bytes]], object], publish: Callable[[Path, Path], bool]
    ) -> bool:
        """Write under another name, and publish it once it is durable; return whether it was."""
        path = self._path(name)
        with self._told():
            self._make(path.parent)
            unfinished = path.with_name(UNFINISHED_PREFIX + secrets.token_hex(_SUFFIX_BYTES))
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    fill(file)
                    file.flush()
                    os.fsync(file.fileno())
                is_published = publish(unfinished, path)
            finally:
                unfinished.unlink(missing_ok=True)
            sync_directory(path.parent)
        return is_published

    def _make(self, directory: Path) -> None:
        """Make a directory and its parents, each durably."""
        if not directory.is_dir():
            self._make(directory.parent)
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            sync_directory(directory.parent)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnreachable(
                f"{error.filename or self._root}: {error.strerror or error}",
                "check the directory, its file system and its permissions",
            ) from error


def _replace(unfinished: Path, path: Path) -> bool:
    unfinished.replace(path)
    return True


def _link(unfinished: Path, path: Path) -> bool:
    """Give a second name, which fails if it is taken: the first one goes afterwards."""
    try:
        path.hardlink_to(unfinished)
    except FileExistsError:
        return False
    return True
