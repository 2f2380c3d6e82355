"""Copy directories of one replica, or one downloaded generation: read in place, never written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from analytics.snapshots.errors import NewerSnapshotError, SnapshotCopyWarning, SnapshotError
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.manifest import (
    FRAME_BYTES,
    MANIFEST_BYTES_MAX,
    decode_manifest,
    generation_of,
    manifest_name,
)
from viewstamp.limits import SNAPSHOT_COPIES

LAYERS: Final = "layers"
MANIFESTS: Final = "manifests"
SNAPSHOTS: Final = "snapshots"
COPY_NAMES: Final = tuple(f"copy-{number}" for number in range(SNAPSHOT_COPIES))

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class UnusableCopy:
    """A copy that could not be used, and why."""

    path: Path
    why: str
    is_newer: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def copy_directories(directory: Path) -> list[Path]:
    """Return the copy directories below `directory`.

    It is a data directory, its `snapshots`, or a single copy such as a downloaded generation.
    Raises SnapshotError if it is none of them.
    """
    if (directory / MANIFESTS).is_dir():
        return [directory]
    for parent in (directory / SNAPSHOTS, directory):
        found = [parent / name for name in COPY_NAMES]
        if any(path.is_dir() for path in found):
            return found
    raise SnapshotError(
        f"{directory} holds no snapshots: give a replica's data directory, whose"
        f" {SNAPSHOTS}/{COPY_NAMES[0]} is there, or a downloaded generation, whose {MANIFESTS} is"
    )


def generations(directories: Sequence[Path]) -> list[int]:
    """Return every generation of which at least one manifest is there, ascending."""
    found: set[int] = set()
    bad = []
    for directory in directories:
        try:
            found.update(_generations(path.name for path in (directory / MANIFESTS).iterdir()))
        except OSError as error:
            bad.append(UnusableCopy(directory / MANIFESTS, error.strerror or str(error), False))
    if not found:
        told = "; ".join(map(str, bad)) or ", ".join(map(str, directories))
        raise SnapshotError(f"no manifest of any generation is there: {told}")
    tell(bad)
    return sorted(found)


def manifest_of(directories: Sequence[Path], generation: int) -> bytes:
    """Return the first good copy of a manifest file. Raises SnapshotError if there is none."""
    name = f"{MANIFESTS}/{manifest_name(generation)}"

    def read(path: Path) -> bytes:
        with path.open("rb") as file:
            data = file.read(FRAME_BYTES + MANIFEST_BYTES_MAX + 1)
        found = decode_manifest(data).generation
        if found != generation:
            raise FormatError(f"it is the manifest of generation {found}")
        return data

    return first_good([directory / name for directory in directories], read, name)


def decoded(manifest: bytes) -> SnapshotManifest:
    """Return the message of a manifest file that was verified before."""
    return decode_manifest(manifest)


def first_good(paths: Iterable[Path], read: Callable[[Path], Result], name: str) -> Result:
    """Return the result of `read` for the first copy it does not refuse; warn of earlier copies.

    `read` refuses by FormatError or OSError. Raises SnapshotError naming each copy and why, if
    none is good: NewerSnapshotError if one of them is intact and of a later version.
    """
    bad: list[UnusableCopy] = []
    for path in paths:
        try:
            result = read(path)
        except FormatError as error:
            bad.append(UnusableCopy(path, str(error), isinstance(error, FormatVersionError)))
        except OSError as error:
            bad.append(UnusableCopy(path, error.strerror or str(error), False))
        else:
            tell(bad)
            return result
    told = "; ".join(map(str, bad))
    if any(copy.is_newer for copy in bad):
        raise NewerSnapshotError(
            f"{name} was written by a newer version: {told}. Upgrade this program"
        )
    raise SnapshotError(
        f"no good copy of {name} is left: {told}. Read another generation, or another replica's"
    )


def tell(bad: Iterable[UnusableCopy]) -> None:
    """Warn of copies that were passed over."""
    for copy in bad:
        warnings.warn(
            SnapshotCopyWarning(f"{copy}; another copy was read in its place"), stacklevel=2
        )


def _generations(names: Iterable[str]) -> Iterator[int]:
    """Yield the generations of the manifests among the files; ignore temporary and other files."""
    for name in names:
        try:
            yield generation_of(name)
        except FormatError:
            continue
