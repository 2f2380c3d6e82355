"""Each file three times: reading all copies, and repairing the bad ones.

**Reading** checks all copies. A missing, damaged or unreadable one is rewritten from an intact one,
and reported. If none is intact, nothing is changed and NoIntactCopy says what is wrong with each.
`local_writer` describes writing; after a failed sync there, nothing is read either.

Everything here blocks. Threads may share `CopyDirectories`; a `CopiesFile` belongs to one thread at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from coordinator.snapshot.errors import CopyNotWritten, NoIntactCopy
from coordinator.snapshot.layout import Check, chunks_of
from coordinator.snapshot.local_writer import (
    TEMPORARY_SUFFIX,
    LocalWriter,
    damage_of,
    folder_of,
)
from coordinator.storage import Storage, StorageFile

# Files that are being read in parts: layers of few generations.
FILES_REMEMBERED_MAX: Final = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CopyVerdict:
    """The state of one copy. `damage` is None if it was intact; `unrepaired` if it is intact
    now."""

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


# Gets the name of each file with a copy that was not intact, and the verdicts on all copies.
Report: TypeAlias = Callable[[str, Sequence[CopyVerdict]], None]


class CopyDirectories:
    """Files by their name below each of the directories, such as `layers/ab.layer`."""

    def __init__(
        self, storage: Storage, directories: Sequence[str], report: Report, tag: str
    ) -> None:
        """`tag` marks this process's temporary files among those of others in these directories."""
        self.directories = tuple(directories)
        self.local = LocalWriter(storage, directories, tag)
        """Writes from this process, as repairs do."""
        self._storage = storage
        self._report = report
        # The copies that were intact when each file was opened last, for those opened lately.
        self._intact: dict[str, Sequence[str]] = {}

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files that any directory has in a folder, without the
        folder."""
        found: set[str] = set()
        for directory in self.directories:
            found.update(self._storage.names(f"{directory}/{folder}"))
        return sorted(name for name in found if not name.endswith(TEMPORARY_SUFFIX))

    def has(self, name: str) -> bool:
        """Return whether any directory has a file of this name, intact or not."""
        paths = (self.local.path(copy, name) for copy in range(len(self.directories)))
        return any(self._storage.exists(path) for path in paths)

    def read_part(self, copy: int, name: str, size: int) -> bytes:
        """Return the first bytes of a copy, not verified. Raises OSError."""
        file = self._storage.open(f"{self.directories[copy]}/{name}")
        try:
            return file.read(0, size)
        finally:
            file.close()

    def scrub(self, name: str, check: Check) -> tuple[CopyVerdict, ...]:
        """Check every copy and repair bad ones. Raises NoIntactCopy, having changed nothing."""
        self.local.check_usable()
        damages = [self.local.damage(copy, name, check) for copy in range(len(self.directories))]
        if None not in damages:
            found = zip(self.directories, map(str, damages), strict=True)
            raise NoIntactCopy(name, list(found))
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
        """Verify and repair a file, and open it for reading. Raises NoIntactCopy."""
        verdicts = self.scrub(name, check)
        paths = [f"{each.directory}/{name}" for each in verdicts if each.is_intact]
        self.forget(name)
        self._intact[name] = paths
        for oldest in list(self._intact)[:-FILES_REMEMBERED_MAX]:
            self.forget(oldest)
        return CopiesFile(self._storage, name, paths)

    def open_again(self, name: str, check: Check) -> CopiesFile:
        """Open those copies of a file that were intact when it was opened last, and read no more of
        them than is wanted; verify it if that is not known. Raises NoIntactCopy."""
        paths = self._intact.get(name)
        if paths is None:
            return self.open(name, check)
        return CopiesFile(self._storage, name, paths)

    def forget(self, name: str) -> None:
        """Verify a file when it is opened again."""
        self._intact.pop(name, None)

    def _repaired(self, source: int, target: int, name: str, check: Check) -> str | None:
        """Rewrite one copy from an intact one; return why that failed, or None."""
        try:
            self._repair(source, target, name, check)
        except CopyNotWritten as error:
            return str(error)
        return None

    def _repair(self, source: int, target: int, name: str, check: Check) -> None:
        path = self.local.path(source, name)
        key = self.local.stage_one(target, name)
        try:
            file = self._storage.open(path)
            try:
                for chunk in chunks_of(file):
                    self.local.append(key, chunk)
            finally:
                file.close()
            self.local.place(key, name, check)
        except OSError as error:
            raise CopyNotWritten(f"cannot read {path}: {error}") from error
        finally:
            self.local.discard(key)


class CopiesFile:
    """A verified file, open for reading. If one copy fails, the next intact one is read."""

    def __init__(self, storage: Storage, name: str, paths: Sequence[str]) -> None:
        """Use `CopyDirectories.open`."""
        self.name = name
        self._storage = storage
        self._paths = list(paths)
        self._failed: list[tuple[str, str]] = []
        self._file: StorageFile | None = None

    @property
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self._attempt(lambda file: file.size())

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset` on. Raises NoIntactCopy once no copy can be
        read."""
        return self._attempt(lambda file: file.read(offset, size))

    def _attempt(self, action: Callable[[StorageFile], T]) -> T:
        while self._paths:
            try:
                if self._file is None:
                    self._file = self._storage.open(self._paths[0])
                return action(self._file)
            except OSError as error:
                self.give_up_copy(damage_of(error, "cannot be read"))
        raise NoIntactCopy(self.name, self._failed)

    def give_up_copy(self, reason: str) -> None:
        """Continue with the next copy, since the present one turned out to be damaged."""
        self.close()
        self._failed.append((folder_of(self._paths.pop(0)), reason))

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
