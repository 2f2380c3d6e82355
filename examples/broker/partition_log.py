"""The messages of one partition in a local file: for each a line of JSON, [leader epoch, text]."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path


class PartitionLog:
    """Messages by offset, each with the leader epoch in which it was written first.

    Two logs that have the same epoch at an offset are the same up to there, since only one broker
    leads in an epoch, and writes an offset once in it.
    """

    def __init__(self, path: Path) -> None:
        """Read what the file has; a line that was not written to its end is dropped."""
        self.entries: list[tuple[int, str]] = []
        self._ends = [0]  # byte positions: where each message ends
        self._file = open(path, "a+b")  # noqa: SIM115 - open as long as the process
        self._file.seek(0)
        for line in self._file.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                epoch, text = json.loads(line)
                self._add(epoch, text, len(line))
        self._file.truncate(self._ends[-1])

    @property
    def last_epoch(self) -> int:
        """The epoch of the last message; 0 without any."""
        return self.entries[-1][0] if self.entries else 0

    def append(self, epoch: int, text: str) -> None:
        """Write a message; it is on the disk afterwards."""
        line = json.dumps([epoch, text]).encode() + b"\n"
        self._file.write(line)
        self._sync()
        self._add(epoch, text, len(line))

    def cut(self, count: int) -> None:
        """Keep the first messages alone."""
        self._file.truncate(self._ends[count])
        self._sync()
        del self.entries[count:], self._ends[count + 1 :]

    def _add(self, epoch: int, text: str, size_bytes: int) -> None:
        self.entries.append((epoch, text))
        self._ends.append(self._ends[-1] + size_bytes)

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


def storage_id(directory: Path) -> str:
    """Return what names this storage: made once, and kept with the data."""
    path = directory / "storage_id"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()
