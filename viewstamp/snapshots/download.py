"""A download of a generation: chunks become a directory like a copy directory.

A file gets its name when it is whole, verified and durable. The manifest comes last. After a
failure, a new download into the same directory keeps the files that are there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Final

from blake3 import blake3

from viewstamp.api.snapshots.v1.snapshots_service_pb2 import DownloadSnapshotResponse
from viewstamp.format import FormatError
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import digest_of, generation_of
from viewstamp.limits import MIB
from viewstamp.snapshots.copies import LAYERS, MANIFESTS, BadCopyError, read_manifest
from viewstamp.snapshots.durable import publish, sync_directory, temporary_of
from viewstamp.snapshots.errors import BadDownload

# The files hold the hashes of passwords and tokens.
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
READ_BYTES: Final = 1 * MIB
AGAIN: Final = "download again; files that are whole are kept"


class Download:
    """Writes the received files below `directory`. Use it as a context, which closes open files."""

    def __init__(self, directory: Path) -> None:
        """Make the directories. Raises OSError."""
        self._directory = directory
        for path in (directory, directory / LAYERS, directory / MANIFESTS):
            path.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        self._file: _File | None = None
        self.generation = 0
        self.files = 0
        self.files_kept = 0

    def __enter__(self) -> Download:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close an unfinished file, which keeps its temporary name."""
        if self._file is not None:
            self._file.abandon()

    def receive(self, chunk: DownloadSnapshotResponse) -> None:
        """Write a chunk. Raises BadDownload if it is not the next one, or a file is not valid.

        Raises OSError if it cannot be written.
        """
        if self._file is None:
            self._begin(chunk)
        assert self._file is not None
        self._file.add(chunk)
        if self._file.is_whole:
            self._end(self._file)

    def finish(self) -> int:
        """Return the generation at the end. Raises BadDownload if a file is missing.

        It does not check that all layers of the manifest are there; `verify` does.
        """
        if self._file is not None:
            raise BadDownload(f"the download ends within {self._file.name}", AGAIN)
        if not self.generation:
            raise BadDownload("the download ends without a manifest", AGAIN)
        return self.generation

    def _begin(self, chunk: DownloadSnapshotResponse) -> None:
        if self.generation:
            raise BadDownload(f"{chunk.file!r} comes after the manifest, which is the last", AGAIN)
        path = self._directory / _checked_name(chunk.file)
        self._file = _Kept(path, chunk) if _is_there(path, chunk) else _Written(path, chunk)

    def _end(self, file: _File) -> None:
        file.end()
        self._file = None
        self.files += 1
        self.files_kept += isinstance(file, _Kept)
        if file.path.parent.name == MANIFESTS:
            self.generation = generation_of(file.path.name)


class _File:
    """An unfinished file; chunks must follow without a gap."""

    def __init__(self, path: Path, chunk: DownloadSnapshotResponse) -> None:
        self.path = path
        self.name = chunk.file
        self._file_bytes = chunk.file_bytes
        self._offset = 0

    @property
    def is_whole(self) -> bool:
        return self._offset == self._file_bytes

    def add(self, chunk: DownloadSnapshotResponse) -> None:
        expected = (self.name, self._offset, self._file_bytes)
        if (chunk.file, chunk.offset, chunk.file_bytes) != expected:
            raise BadDownload(
                f"a chunk of {chunk.file!r} at {chunk.offset} of {chunk.file_bytes} bytes came"
                f" instead of {self.name!r} at {self._offset} of {self._file_bytes}",
                AGAIN,
            )
        if not chunk.data or self._offset + len(chunk.data) > self._file_bytes:
            raise BadDownload(f"a chunk of {self.name} has {len(chunk.data)} bytes", AGAIN)
        self._offset += len(chunk.data)

    def end(self) -> None:
        """Give the file its name, if it has none."""

    def abandon(self) -> None:
        """Close it."""


class _Kept(_File):
    """A file that is there already. Its chunks are skipped."""


class _Written(_File):
    """A file that is written and verified."""

    def __init__(self, path: Path, chunk: DownloadSnapshotResponse) -> None:
        super().__init__(path, chunk)
        self._digest = blake3()
        descriptor = os.open(
            temporary_of(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE
        )
        self._stream: IO[bytes] = os.fdopen(descriptor, "wb")

    def add(self, chunk: DownloadSnapshotResponse) -> None:
        super().add(chunk)
        self._digest.update(chunk.data)
        self._stream.write(chunk.data)

    def end(self) -> None:
        self._stream.flush()
        self._check()
        publish(self._stream, self.path)
        self._stream.close()
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        self._stream.close()
        temporary_of(self.path).unlink(missing_ok=True)

    def _check(self) -> None:
        if self.path.parent.name == MANIFESTS:
            _check_manifest(self.path, self.name)
        elif self._digest.digest() != digest_of(self.path.name):
            raise BadDownload(f"{self.name} has the digest {self._digest.hexdigest()}", AGAIN)


def _check_manifest(path: Path, name: str) -> None:
    """Raise BadDownload if a manifest is damaged, or would replace that of another snapshot."""
    generation = generation_of(path.name)
    try:
        manifest = read_manifest(temporary_of(path), generation)
    except BadCopyError as error:
        raise BadDownload(f"{name}: {error}", AGAIN) from error
    try:
        there = read_manifest(path, generation)
    except BadCopyError:
        return  # there is none, or a bad one, which may be replaced
    if there.root != manifest.root:
        text = f"{path} is of another snapshot of this number, with root {there.root.hex()}"
        raise BadDownload(text, "choose another directory")


def _checked_name(name: str) -> Path:
    """Return a file's name as a path below the directory. Raises BadDownload for any other."""
    parent, separator, last = name.partition("/")
    checks = {LAYERS: digest_of, MANIFESTS: generation_of}
    if separator and parent in checks:
        try:
            checks[parent](last)
        except FormatError as error:
            raise BadDownload(f"{name!r} is no file of a snapshot: {error}", AGAIN) from error
        return Path(parent, last)
    raise BadDownload(f"{name!r} is no file of a snapshot", AGAIN)


def _is_there(path: Path, chunk: DownloadSnapshotResponse) -> bool:
    """Whether a layer is there whole. A manifest is always written: its name has no digest."""
    if path.parent.name != LAYERS or not path.is_file():
        return False
    if path.stat().st_size != chunk.file_bytes:
        return False
    with path.open("rb") as file:
        return file_digest(iter(lambda: file.read(READ_BYTES), b"")) == digest_of(path.name)
