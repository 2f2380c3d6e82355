"""The port to a store of objects: named bytes, written whole or not at all.

Names are relative, with forward slashes and of a few plain characters. What a caller relies on:

* an object that `put` or `put_file` has returned for survives, and is read back whole;
* `create` succeeds for one caller of a name alone, whatever others do at the same time;
* a listing may lack objects that were written a moment ago. Nobody decides by it that something is
  not there without asking for the name.

Methods block, and raise StoreUnreachable when a store does not answer within its timeouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from viewstamp.archive.archive_errors import StoreUnfit

S3_SCHEME: Final = "s3://"
DIRECTORY_SCHEME: Final = "archive:"
# Of an object that is read into memory: a piece with its last entry, a manifest, an index.
OBJECT_BYTES_MAX: Final = 64 * 1024 * 1024
STORE_TIMEOUT_MS: Final = 10_000
STORE_ATTEMPTS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing has it: its name, its size, and when the store says it was written."""

    name: str
    stored_bytes: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class StoreTimeouts:
    """How long one attempt of a request may take, and how many attempts there are."""

    timeout_ms: int = STORE_TIMEOUT_MS
    attempts: int = STORE_ATTEMPTS_MAX


class ObjectStore(Protocol):
    """A store of objects below one place."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return an object's bytes, None if there is none. Raises PieceDamaged for a huge one."""
        ...

    def get_file(self, name: str, path: Path) -> bool:
        """Write an object's bytes to a file; return whether there is such an object."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Return once an object is stored, in place of any earlier one."""
        ...

    def put_file(self, name: str, path: Path) -> None:
        """Do the same with the bytes of a file."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Store an object; return False, and change nothing, if the name is taken."""
        ...

    def look(self, name: str) -> StoredObject | None:
        """Return what is known of an object, None if there is none."""
        ...

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose names begin with a prefix that ends in a slash, by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is harmless."""
        ...


def open_store(place: str, timeouts: StoreTimeouts | None = None) -> ObjectStore:
    """Return the store of `s3://BUCKET/PREFIX`, `archive:DIRECTORY` or a directory.

    Raises StoreUnfit. Nothing is asked of the store yet.
    """
    if place.startswith(S3_SCHEME):
        # Imported late: it takes half a second, and few archives are there.
        try:
            from viewstamp.archive.s3_store import S3Store
        except ModuleNotFoundError as error:
            raise StoreUnfit(
                f"{place} needs the library {error.name}", "pip install viewstamp[archive]"
            ) from error
        return S3Store(place, timeouts or StoreTimeouts())
    from viewstamp.archive.directory_store import DirectoryStore

    if "://" in place:
        raise StoreUnfit(
            f"{place} is no place of an archive", "give s3://BUCKET/PREFIX, or a directory"
        )
    return DirectoryStore(Path(place.removeprefix(DIRECTORY_SCHEME)))


def is_store_address(place: str) -> bool:
    """Return whether a text can only be the place of an archive."""
    return place.startswith((S3_SCHEME, DIRECTORY_SCHEME))
