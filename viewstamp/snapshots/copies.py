"""The copy directories of one replica, or one downloaded generation: read, never written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, TypeVar

from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.layer import LayerReader, file_digest
from viewstamp.format.manifest import (
    FRAME_BYTES,
    MANIFEST_BYTES_MAX,
    check_layer_belongs,
    decode_manifest,
    generation_of,
    layer_name,
    manifest_name,
)
from viewstamp.limits import MIB, SNAPSHOT_COPIES
from viewstamp.snapshots.errors import (
    AllCopiesBad,
    NewerFormat,
    NoSuchDirectory,
    NoSuchGeneration,
)

T = TypeVar("T")

LAYERS: Final = "layers"
MANIFESTS: Final = "manifests"
COPY_PATHS: Final = tuple(Path("snapshots", f"copy-{number}") for number in range(SNAPSHOT_COPIES))
INTACT: Final = "intact"
READ_BYTES: Final = 1 * MIB


class BadCopyError(ValueError):
    """One copy of a file cannot be used; the message says why."""


class NewerCopyError(BadCopyError):
    """One copy of a file is intact, and of a format that this build does not know."""


@dataclass(frozen=True, slots=True)
class BadCopy:
    """A copy that could not be used, and why."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def copy_directories(directory: Path) -> list[Path]:
    """Return the copy directories of a data directory, or a downloaded one as its only copy."""
    if (directory / MANIFESTS).is_dir():
        return [directory]
    return [directory / path for path in COPY_PATHS]


@dataclass(slots=True)
class Copies:
    """Copy directories in order of preference. `bad` collects the bad copies, by path."""

    directories: Sequence[Path]
    bad: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(directory.is_dir() for directory in self.directories):
            return
        names = ", ".join(map(str, self.directories))
        raise NoSuchDirectory(
            f"no copy directory is there: {names}",
            "give the data directory of a replica, a downloaded snapshot, or each copy by --copies",
        )

    def generations(self) -> list[int]:
        """Return every generation that has at least one manifest, ascending."""
        found: set[int] = set()
        for directory in self.directories:
            manifests = directory / MANIFESTS
            try:
                found.update(_generations(path.name for path in manifests.iterdir()))
            except OSError as error:
                self._pass_over([BadCopy(manifests, error.strerror or str(error))])
        return sorted(found)

    def resolve(self, generation: int) -> int:
        """Return the number of a generation; 0 stands for the newest. Raises NoSuchGeneration."""
        known = self.generations()
        if generation in known:
            return generation
        if generation == 0 and known:
            return known[-1]
        there = ", ".join(map(str, known)) or "none"
        name = f"generation {generation}" if generation else "any generation"
        raise NoSuchGeneration(
            f"no manifest of {name} in {', '.join(map(str, self.directories))}; there: {there}",
            "see `viewstamp snapshot list`",
        )

    def manifest(self, generation: int) -> SnapshotManifest:
        """Return the manifest from the first good copy. Raises AllCopiesBad, NewerFormat."""
        return self._first_good(
            manifest_file(generation), lambda path: read_manifest(path, generation)
        )

    def layer(self, manifest: SnapshotManifest, stage: int, reference: LayerReference) -> LayerFile:
        """Open the first good copy of a layer, verified whole. Raises AllCopiesBad, NewerFormat."""
        return self._first_good(
            layer_file(reference), lambda path: LayerFile(path, manifest, stage, reference)
        )

    def _first_good(self, name: str, read: Callable[[Path], T]) -> T:
        """Return the result of `read` for the first copy of a file that `read` accepts."""
        bad: list[BadCopy] = []
        is_newer = False
        for path in self.paths(name):
            try:
                found = read(path)
            except BadCopyError as error:
                bad.append(BadCopy(path, str(error)))
                is_newer = is_newer or isinstance(error, NewerCopyError)
            else:
                self._pass_over(bad)
                return found
        raise _none_left(name, bad, is_newer)

    def _pass_over(self, bad: Iterable[BadCopy]) -> None:
        self.bad.update((copy.path, copy.why) for copy in bad)

    def paths(self, name: str) -> Iterator[Path]:
        """Yield where each copy of a file belongs."""
        return (directory / name for directory in self.directories)


def manifest_file(generation: int) -> str:
    """Return the name of a manifest below a copy directory."""
    return f"{MANIFESTS}/{manifest_name(generation)}"


def layer_file(reference: LayerReference) -> str:
    """Return the name of a layer below a copy directory."""
    return f"{LAYERS}/{layer_name(reference.digest)}"


def read_manifest(path: Path, generation: int) -> SnapshotManifest:
    """Return one copy of a manifest, checked. Raises BadCopyError, NewerCopyError."""
    data = read_file(path, FRAME_BYTES + MANIFEST_BYTES_MAX)
    try:
        manifest = decode_manifest(data)
    except FormatVersionError as error:
        raise NewerCopyError(str(error)) from error
    except FormatError as error:
        raise BadCopyError(str(error)) from error
    if manifest.generation != generation:
        raise BadCopyError(f"it is the manifest of generation {manifest.generation}")
    return manifest


def read_file(path: Path, size_bytes_max: int) -> bytes:
    """Return the bytes of one copy. Raises BadCopyError."""
    try:
        with path.open("rb") as file:
            data = file.read(size_bytes_max + 1)
    except OSError as error:
        raise BadCopyError(error.strerror or str(error)) from error
    if len(data) > size_bytes_max:
        raise BadCopyError(f"it is larger than {size_bytes_max} bytes")
    return data


class LayerFile:
    """One copy of a layer, open and verified against the digest that is its name."""

    def __init__(
        self, path: Path, manifest: SnapshotManifest, stage: int, reference: LayerReference
    ) -> None:
        """Open and verify what a manifest names in a section. Raises BadCopyError, NewerCopyError.

        Blocks are decoded when they are read; their bytes are verified before.
        """
        self.path = path
        self.size_bytes = reference.size_bytes
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BadCopyError(error.strerror or str(error)) from error
        try:
            self._check_digest(reference.digest)
            self.reader = LayerReader(self._read, self.size_bytes)
            check_layer_belongs(manifest, stage, reference, self.reader)
        except FormatVersionError as error:
            self.close()
            raise NewerCopyError(str(error)) from error
        except FormatError as error:
            self.close()
            raise BadCopyError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @contextmanager
    def content(self) -> Iterator[IO[bytes]]:
        """Open its bytes from the beginning, also after the file has lost its name."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            yield file

    def _check_digest(self, expected: bytes) -> None:
        size_bytes = os.fstat(self._descriptor).st_size
        if size_bytes != self.size_bytes:
            raise BadCopyError(f"it has {size_bytes} bytes instead of {self.size_bytes}")
        digest = file_digest(
            self._read(offset, min(READ_BYTES, size_bytes - offset))
            for offset in range(0, size_bytes, READ_BYTES)
        )
        if digest != expected:
            raise BadCopyError(f"its digest is {digest.hex()}: bytes of it were changed")

    def _read(self, offset: int, size_bytes: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size_bytes, offset)
        except OSError as error:
            raise BadCopyError(f"cannot be read at {offset}: {error.strerror}") from error
        if len(data) != size_bytes:
            raise BadCopyError(f"it ends at {offset + len(data)}, while it was read")
        return data


def _generations(names: Iterable[str]) -> Iterator[int]:
    """Yield the generations of the manifests among files; ignore temporary and other files."""
    for name in names:
        try:
            yield generation_of(name)
        except FormatError:
            continue


def _none_left(name: str, bad: Sequence[BadCopy], is_newer: bool) -> AllCopiesBad | NewerFormat:
    told = "; ".join(map(str, bad))
    if is_newer:
        return NewerFormat(f"{name} cannot be read by this version: {told}", "upgrade viewstamp")
    return AllCopiesBad(
        f"no good copy of {name} is left: {told}",
        "use another generation, or the copies of another replica",
    )
