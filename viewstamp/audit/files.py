"""Files of the audit log: the newest is `audit.jsonl`, older ones have numbers and are bounded."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

DIRECTORY: Final = "audit"
# The folder of separate files for refusals of callers without a name.
STRANGERS: Final = "strangers"
CURRENT: Final = "audit.jsonl"
# Number of files that share the log's bytes.
FILES: Final = 8
FOLLOW_INTERVAL_S: Final = 0.5
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class AuditFiles:
    """Appends lines, and removes the oldest file when the log would grow beyond its limit."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        """Make the directory. Raises OSError."""
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        self._directory = directory
        self._file_bytes_max = max(1, bytes_max // FILES)
        self._descriptor = -1
        self._size = 0
        # Whether the file ends in half a line. The next append ends this line; readers ignore it.
        self._is_torn = False
        self._open()

    def append(self, lines: bytes) -> None:
        """Append whole lines. Raises OSError; the next call tries again what failed."""
        if self._size and self._size + len(lines) > self._file_bytes_max:
            self._rotate()
        if self._is_torn:
            lines = b"\n" + lines
        written = os.write(self._descriptor, lines)
        self._size += written
        if written:
            self._is_torn = lines[written - 1 : written] != b"\n"
        if written < len(lines):
            raise OSError(f"{CURRENT}: only {written} of {len(lines)} bytes could be written")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(self._directory / CURRENT, flags, _FILE_MODE)
        self._size = os.fstat(self._descriptor).st_size
        # A killed process may have left half a line.
        end = os.pread(self._descriptor, 1, self._size - 1) if self._size else b"\n"
        self._is_torn = end != b"\n"

    def _rotate(self) -> None:
        rotated = rotated_files(self._directory)
        number = 1 + (_number(rotated[-1]) if rotated else 0)
        current = self._directory / CURRENT
        if current.exists():  # missing if a former rotation could not open a new file
            current.rename(self._directory / f"audit-{number:08}.jsonl")
        former = self._descriptor
        self._open()
        os.close(former)
        kept = rotated_files(self._directory)
        for path in kept[: max(0, len(kept) - (FILES - 1))]:
            path.unlink()


def rotated_files(directory: Path) -> list[Path]:
    """Return the full files, oldest first."""
    return sorted(directory.glob("audit-*.jsonl"))


def read(directory: Path, *, follows: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the records, oldest first. With `follows` go on with later ones without an end."""
    waiting = [_records(each, follows=follows) for each in (directory, directory / STRANGERS)]
    heads: dict[int, dict[str, Any]] = {}
    while True:
        for number, records in enumerate(waiting):
            if number not in heads and (head := next(records, None)) is not None:
                heads[number] = head
        if heads:
            yield heads.pop(min(heads, key=lambda number: _moment(heads[number])))
        elif follows:
            time.sleep(FOLLOW_INTERVAL_S)
        else:
            return


def _records(directory: Path, *, follows: bool) -> Iterator[dict[str, Any] | None]:
    """Yield the records of one directory; with `follows` also None where more may come."""
    for path in rotated_files(directory):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                yield from _parsed(line)
    current = directory / CURRENT
    while current.exists() or follows:
        try:
            file = current.open(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            yield None  # not there yet, or just being rotated
            continue
        with file:
            yield from _tail(current, file, follows=follows)
        if not follows:
            return


def _tail(path: Path, file: IO[str], *, follows: bool) -> Iterator[dict[str, Any] | None]:
    """Yield the records of the newest file; with `follows` None at its end, until it is another."""
    inode = os.fstat(file.fileno()).st_ino
    part, is_over = "", False
    while True:
        line = file.readline()
        part += line
        if part.endswith("\n"):
            yield from _parsed(part)
            part = ""
        elif not line:
            if not follows or is_over:
                return
            # Read once more: lines may have been appended just before the rotation.
            is_over = _inode(path) != inode
            if not is_over:
                yield None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _parsed(line: str) -> Iterator[dict[str, Any]]:
    try:
        record = json.loads(line)
    except ValueError:
        return  # half a line of a process that was killed
    if isinstance(record, dict):
        yield record


def _moment(record: dict[str, Any]) -> int:
    at = record.get("at", 0)
    return at if isinstance(at, int) else 0


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("audit-")
    return int(digits) if digits.isdecimal() else 0
