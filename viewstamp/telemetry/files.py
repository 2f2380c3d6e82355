"""Rotated files of OTLP JSON lines.

The newest is `traces.jsonl`. When it would grow beyond its limit it becomes
`traces-<UTC timestamp>.jsonl` and is never written again; the oldest of those are removed. An
unfinished line of a killed process stays as a line of its own, and readers ignore it. On request
rotated files are compressed, each as a whole: `traces-<UTC timestamp>.jsonl.zst`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import zstandard

from viewstamp.limits import MIB
from viewstamp.telemetry.otlp import Lines
from viewstamp.telemetry.spans import Notes, texts_of

FILE_BYTES_MAX: Final = 64 * MIB
# Files beside the newest: half a gigabyte for each process.
ROTATED_FILES_MAX: Final = 7
CURRENT_NAME: Final = "traces.jsonl"
ROTATED_GLOB: Final = "traces-*.jsonl"
COMPRESSED_SUFFIX: Final = ".zst"
# Readers of traces ignore this name.
_PART_SUFFIX: Final = ".part"
COMPRESSION_LEVEL: Final = 3
LOCK_NAME: Final = ".lock"
_TIMESTAMP: Final = "%Y-%m-%dT%H-%M-%S.%f"
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_END_OF_LINE: Final = b"\n"


class DirectoryTakenError(OSError):
    """Another process writes its telemetry there."""


class TraceFiles:
    """A sink that writes lines into a directory that no other process uses."""

    def __init__(
        self,
        directory: Path,
        resource: Callable[[], Mapping[str, Any]],
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        rotated_files_max: int = ROTATED_FILES_MAX,
        compresses: bool = False,
    ) -> None:
        """Make the directory and lock it. Raises DirectoryTakenError, OSError.

        `compresses` concerns files that are rotated from now on.
        """
        self._directory = directory
        self._resource = resource
        self._lines = Lines()
        self._file_bytes_max = file_bytes_max
        self._rotated_files_max = rotated_files_max
        self._compresses = compresses
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        self._lock = _locked(directory)
        self._descriptor = -1
        self._size = 0
        self._is_cut = False  # the last line has no end
        try:
            self._open()
        except OSError:
            os.close(self._lock)
            raise

    def write(self, notes: Sequence[Notes]) -> None:
        """Append a line. Raises OSError."""
        with self._lines.line_of(self._resource(), texts_of(notes)) as line:
            if self._size and self._size + len(line) > self._file_bytes_max:
                self._rotate()
            self._append(line)

    def close(self) -> None:
        """Close the file and unlock the directory."""
        os.close(self._descriptor)
        os.close(self._lock)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(self._directory / CURRENT_NAME, flags, _FILE_MODE)
        self._size = os.fstat(self._descriptor).st_size
        last = os.pread(self._descriptor, 1, self._size - 1) if self._size else _END_OF_LINE
        self._is_cut = last != _END_OF_LINE

    def _append(self, line: memoryview) -> None:
        data: bytes | memoryview = _END_OF_LINE + line if self._is_cut else line
        written = os.write(self._descriptor, data)
        self._size += written
        self._is_cut = written < len(data)
        if written < len(data):
            raise OSError(f"{CURRENT_NAME}: only {written} of {len(data)} bytes could be written")

    def _rotate(self) -> None:
        current = self._directory / CURRENT_NAME
        rotated = self._rotated_path()
        if current.exists():  # missing if the last rotation failed
            current.rename(rotated)
        former = self._descriptor
        self._open()
        os.close(former)
        if self._compresses and rotated.exists():
            compress(rotated)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        by_moment: dict[str, list[Path]] = {}
        for path in self._directory.glob(ROTATED_GLOB + "*"):
            by_moment.setdefault(path.name.partition(".jsonl")[0], []).append(path)
        for moment in sorted(by_moment)[: max(0, len(by_moment) - self._rotated_files_max)]:
            for path in by_moment[moment]:
                path.unlink()

    def _rotated_path(self) -> Path:
        moment = datetime.now(UTC)
        while any(self._directory.glob(f"traces-{moment:{_TIMESTAMP}}.jsonl*")):
            moment += timedelta(microseconds=1)
        return self._directory / f"traces-{moment:{_TIMESTAMP}}.jsonl"


def compress(path: Path) -> None:
    """Replace a file by a compressed one, which readers see once it is whole. Raises OSError.

    If the process is killed meanwhile, the plain file is still there.
    """
    compressed = path.with_name(path.name + COMPRESSED_SUFFIX)
    part = compressed.with_name(compressed.name + _PART_SUFFIX)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE)
    with path.open("rb") as plain, os.fdopen(descriptor, "wb") as packed:
        zstandard.ZstdCompressor(COMPRESSION_LEVEL, write_checksum=True).copy_stream(plain, packed)
    part.rename(compressed)
    path.unlink()


def _locked(directory: Path) -> int:
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DirectoryTakenError(
            f"{directory}: another process writes its telemetry there; give each process a"
            " directory of its own"
        ) from None
    return descriptor
