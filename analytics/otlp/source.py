"""A streaming source of the lines that are appended to files, for Spark's Structured Streaming.

Spark's own file source reads a file once, as it is when first seen. A file that a process is
writing, and that rotation renames, needs a source that knows how far it read each file. An offset
names a file by its identity (`identify`), not by its path, so reading of a rotated file continues
where it was.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from analytics.otlp import files, foreign_files, lines
from analytics.otlp.forms import OtlpForm

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

FORMAT: Final = "viewstamp-otlp"

# The first line identifies a file, because it holds ids of spans. At most this much of it counts.
IDENTITY_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 64 * 1024
# A last line without its end is still being written, unless the file did not change for so long.
SETTLED_MS_DEFAULT: Final = 60_000
BATCH_BYTES_DEFAULT: Final = 1024 * 1024 * 1024
UNREADABLE: Final = "unreadable"
LOOKS_MAX: Final = 10


@dataclass
class Piece(InputPartition):
    """The splits that one task reads."""

    splits: tuple[files.Split, ...]


class LinesSource(DataSource):
    """The data source; its options are strings, as Spark has it.

    `inputs` is a JSON list of files and directories, `settled_ms` and `batch_bytes` are numbers.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a line."""
        return lines.COLUMNS

    def streamReader(self, schema: StructType) -> LinesReader:  # noqa: N802
        """Return the reader."""
        inputs = [Path(name) for name in json.loads(self.options["inputs"])]
        settled_ms = int(self.options.get("settled_ms", SETTLED_MS_DEFAULT))
        return LinesReader(
            inputs, settled_ms, int(self.options.get("batch_bytes", BATCH_BYTES_DEFAULT))
        )


class LinesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"files": {identity: {"path": …, "end": bytes read}}}."""

    def __init__(self, inputs: Sequence[Path], settled_ms: int, batch_bytes: int) -> None:
        """Read these files and directories, in batches of at most about so many bytes."""
        self._inputs = inputs
        self._named = frozenset(inputs)
        self._settled_ms = settled_ms
        self._batch_bytes = batch_bytes
        self._frozen: dict[str, dict[str, Any]] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before anything was read."""
        return {"files": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch may read."""
        return ReadMaxBytes(self._batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the present ends of files: a later run reads what comes after them."""
        self._frozen = self._present()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far each file can be read, up to the limit. Forgets files that are gone."""
        present = self._frozen if self._frozen is not None else self._present()
        left = None if isinstance(limit, ReadAllAvailable) else self._batch_bytes
        reached: dict[str, Any] = {}
        for identity, file in present.items():
            begin = _end(start, identity)
            end = max(file["end"], begin)
            if left is not None:
                # A line may continue past this point; the split in which it begins reads it to its
                # end.
                part = begin + left if not file["whole"] else end if left > 0 else begin
                end = min(end, part)
                left = max(0, left - (end - begin))
            if end > 0:
                reached[identity] = {"path": file["path"], "end": end}
        return {"files": reached}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits between two offsets, in groups for tasks."""
        splits: list[files.Split] = []
        for identity, file in end["files"].items():
            begin = _end(start, identity)
            if begin < file["end"]:
                path = self._locate(identity, file["path"])
                found = self._probed(path)
                splits += files.split(
                    str(path), found.compression, begin, file["end"], form=found.form
                )
        return [Piece(group) for group in files.tasks(splits)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the lines of a piece."""
        assert isinstance(partition, Piece), f"{partition} is not of this reader"
        yield from foreign_files.read_all(partition.splits)

    def _present(self) -> dict[str, dict[str, Any]]:
        """Return path, readable end and whether it is read as a whole, for each identity.

        A file that is renamed between listing and opening must not be taken for gone, so it looks
        again. Raises FileNotFoundError if files vanish each time.
        """
        for _ in range(LOOKS_MAX - 1):
            try:
                return self._look()
            except FileNotFoundError:
                continue
        return self._look()

    def _look(self) -> dict[str, dict[str, Any]]:
        """Return the present files. Raises FileNotFoundError if a file vanished meanwhile."""
        present: dict[str, dict[str, Any]] = {}
        for path in files.find(self._inputs):
            try:
                end, whole = self._readable(path)
                identity = identify(path) if path.is_file() else f"{UNREADABLE}:{path}"
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not path.is_symlink():
                    raise
                # The task that reads it reports the error in one row.
                identity, end, whole = f"{UNREADABLE}:{path}", 1, True
            present[identity] = {"path": str(path), "end": end, "whole": whole}
        return present

    def _readable(self, path: Path) -> tuple[int, bool]:
        """Return how far the file holds whole lines, and whether it can only be read as a whole."""
        found = files.probe(path, self._named)
        if found.form is OtlpForm.FOREIGN and not path.is_file():
            return 1, True
        status = path.stat()
        size = status.st_size
        settled = time.time() * 1000 - status.st_mtime * 1000 >= self._settled_ms
        if found.compression != files.PLAIN or found.form is not OtlpForm.LINES:
            # Such a file is complete once it stops changing; its form may be unknown before.
            return (size if settled else 0), True
        return (size if settled else _after_last_newline(path, size)), False

    def _probed(self, path: Path) -> files.Probe:
        """Return what a file tells; for an unreadable one, values that let its task fail."""
        try:
            return files.probe(path, self._named)
        except OSError:
            return files.Probe(files.PLAIN, 0, OtlpForm.LINES)

    def _locate(self, identity: str, path: str) -> Path:
        """Return the file's current path: rotation may have renamed it after the offset."""
        if identity.startswith(UNREADABLE) or _is(identity, Path(path)):
            return Path(path)
        found = (other for other in files.find(self._inputs) if _is(identity, other))
        # If it is gone for good, its task reports that in one row.
        return next(found, Path(path))


def identify(path: Path) -> str:
    """Return what stays the same while the file grows and is renamed. Raises OSError."""
    with files.open_regular(path) as file:
        head = file.readline(IDENTITY_BYTES)
    inode = path.stat().st_ino
    return f"{inode}:{hashlib.blake2b(head, digest_size=8).hexdigest()}"


def _is(identity: str, path: Path) -> bool:
    """Return whether this is the file."""
    try:
        return identify(path) == identity
    except OSError:
        return False


def _end(offset: dict[str, Any], identity: str) -> int:
    """Return how far a file was read."""
    file = offset["files"].get(identity)
    return int(file["end"]) if file else 0


def _after_last_newline(path: Path, size: int) -> int:
    """Return the position after the last newline in the first `size` bytes, or 0."""
    with files.open_regular(path) as file:
        end = size
        while end > 0:
            begin = max(0, end - TAIL_BYTES)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return 0
