"""The files of one generation as files: for downloads and checks, while garbage is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coordinator.snapshot.copies import CopyDirectories
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.layout import (
    Check,
    equality_check,
    layer_check,
    layer_file,
    manifest_file,
)
from coordinator.snapshot.verify import LocalFileVerdict, scrub_file
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.manifest import encode_manifest, sections


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file by its name below each copy directory."""

    name: str
    size_bytes: int


class PinnedGeneration:
    """A generation whose manifest and layers stay in place until `close`."""

    def __init__(
        self, copies: CopyDirectories, manifest: SnapshotManifest, release: Callable[[], None]
    ) -> None:
        """Use `SnapshotFiles.pinned`."""
        self.manifest = manifest
        self._copies = copies
        self._release = release
        self._checks, self.files = _files_of(manifest)
        """Every file once, the manifest last."""

    def chunks(
        self, file: StoredFile, chunk_bytes: int, begin: int = 0, *, is_verified: bool = False
    ) -> Iterator[bytes]:
        """Yield a file from `begin` on, from a copy that was just verified whole, or before.

        Raises NoIntactCopy.
        """
        copies = self._copies
        opening = copies.open_again if is_verified else copies.open
        opened = opening(file.name, self._checks[file.name])
        try:
            for offset in range(begin, file.size_bytes, chunk_bytes):
                yield opened.read(offset, chunk_bytes)
        except NoIntactCopy:
            copies.forget(file.name)
            raise
        finally:
            opened.close()

    def scrub(self) -> Iterator[LocalFileVerdict]:
        """Check every copy of every file and repair what can be, file by file."""
        for number, file in enumerate(self.files, start=1):
            check = self._checks[file.name]
            yield scrub_file(self._copies, file.name, check, len(self.files) - number)

    def close(self) -> None:
        """Release the files. Closing twice is harmless."""
        self._release()

    def __enter__(self) -> PinnedGeneration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _files_of(manifest: SnapshotManifest) -> tuple[dict[str, Check], tuple[StoredFile, ...]]:
    checks: dict[str, Check] = {}
    sizes: dict[str, int] = {}
    for _, section in sections(manifest):
        for reference in section.layers:
            name = layer_file(reference.digest)
            checks[name], sizes[name] = layer_check(reference), reference.size_bytes
    data = encode_manifest(manifest)
    name = manifest_file(manifest.generation)
    checks[name], sizes[name] = equality_check(data), len(data)
    return checks, tuple(StoredFile(name, size_bytes) for name, size_bytes in sizes.items())
