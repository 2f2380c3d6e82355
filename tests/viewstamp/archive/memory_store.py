"""A store in memory that fails, loses and lists late as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from viewstamp.archive.archive_errors import StoreUnreachable
from viewstamp.archive.object_store import StoredObject


@dataclass(slots=True)
class MemoryStore:
    """Objects by name, each with the time when it was written.

    `fails_at` is the number of the call that fails, counted from 1; `fails_after` says that the
    call is carried out first, as when an answer is lost. `loses` are names that are accepted and
    gone. `unlisted` are names that no listing has yet.
    """

    objects_by_name: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    now_us: int = 1_000_000_000
    calls: int = 0
    fails_at: int = 0
    fails_after: bool = False
    loses: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    overwrites: bool = False
    place: str = "memory"

    def get(self, name: str) -> bytes | None:
        """Return an object's bytes, None if there is none."""
        self._count()
        found = self.objects_by_name.get(name)
        return None if found is None else found[0]

    def get_file(self, name: str, path: Path) -> bool:
        """Write an object's bytes to a file; return whether there is such an object."""
        data = self.get(name)
        if data is not None:
            path.write_bytes(data)
        return data is not None

    def put(self, name: str, data: bytes) -> None:
        """Store an object."""
        is_late = self._count(changes=True)
        if not name.startswith(self.loses or ("no such name",)):
            self.objects_by_name[name] = data, self.now_us
        self._fail(is_late)

    def put_file(self, name: str, path: Path) -> None:
        """Do the same with the bytes of a file."""
        self.put(name, path.read_bytes())

    def create(self, name: str, data: bytes) -> bool:
        """Store an object unless the name is taken."""
        is_late = self._count(changes=True)
        is_free = self.overwrites or name not in self.objects_by_name
        if is_free:
            self.objects_by_name[name] = data, self.now_us
        self._fail(is_late)
        return is_free

    def look(self, name: str) -> StoredObject | None:
        """Return what is known of an object, None if there is none."""
        self._count()
        found = self.objects_by_name.get(name)
        return None if found is None else StoredObject(name, len(found[0]), found[1])

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose names begin with a prefix, by name."""
        self._count()
        for name in sorted(self.objects_by_name):
            if name.startswith(prefix) and name not in self.unlisted:
                data, modified_us = self.objects_by_name[name]
                yield StoredObject(name, len(data), modified_us)

    def delete(self, name: str) -> None:
        """Remove an object."""
        is_late = self._count(changes=True)
        self.objects_by_name.pop(name, None)
        self._fail(is_late)

    def named(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix, for tests."""
        return sorted(name for name in self.objects_by_name if name.startswith(prefix))

    def _count(self, *, changes: bool = False) -> bool:
        """Fail if it is due; return whether that is to be after the call."""
        self.calls += 1
        is_due = self.calls == self.fails_at
        self._fail(is_due and not (self.fails_after and changes))
        return is_due

    def _fail(self, is_due: bool) -> None:
        if is_due:
            raise StoreUnreachable(f"call {self.calls} failed", "try again")
