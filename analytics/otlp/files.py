"""Which files hold OTLP JSON lines, and the pieces of them that tasks read.

A file is read if its name has an ending of JSON lines in letters of either case (`traces.jsonl` or
`.ndjson`, rotated `traces-<time>.jsonl` or `traces.jsonl.1`, compressed `.gz` or `.zst`), or if the
request names the file itself. Its first bytes, not its name, tell the compression. What is no
regular file, such as a pipe, could keep a reader waiting for ever: it counts as unreadable.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from analytics.session import AnalyticsError

NAME: Final = re.compile(r"\.(jsonl|ndjson)(\.\d+)?(\.gz|\.zst)?$", re.IGNORECASE)
MAGIC: Final = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
MAGIC_BYTES_MAX: Final = 4
PLAIN: Final = "plain"

# One task reads this much of a plain file (about 100,000 spans), so that cores end together.
SPLIT_BYTES: Final = 64 * 1024 * 1024
# A small input is divided among the cores, but not into tiny pieces that end at once.
SPLIT_BYTES_MIN: Final = 1024 * 1024
TASK_SPLITS_MAX: Final = 1000


class NoInputError(AnalyticsError):
    """There is nothing to analyse. The message says which places were searched, and for what."""


@dataclass(frozen=True, slots=True)
class Split:
    """The lines of a file that begin in [start, end), in bytes; compressed files are one split."""

    path: str
    compression: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What will be read: splits for each task, the number of files, and the unreadable files.

    A file that cannot be opened is planned too: its task reports it in one row.
    """

    files: int
    tasks: tuple[tuple[Split, ...], ...]
    unreadable: tuple[str, ...]


def plan(inputs: Sequence[Path], cores: int = 1) -> ReadPlan:
    """Return what so many cores read of files and directories. Raises NoInputError if no file."""
    probed: list[tuple[Path, str, int]] = []
    unreadable: list[str] = []
    splits: list[Split] = []
    for path in find(inputs):
        try:
            probed.append((path, *probe(path)))
        except OSError as error:
            unreadable.append(f"{path} ({error.strerror or type(error).__name__})")
            splits.append(Split(str(path), PLAIN, 0, 0))
    if not probed:
        raise NoInputError(_nothing(inputs, unreadable))
    size_bytes = sum(size for *_, size in probed)
    step_bytes = max(SPLIT_BYTES_MIN, min(SPLIT_BYTES, -(-size_bytes // cores)))
    for path, compression, size in probed:
        splits += split(str(path), compression, 0, size, step_bytes)
    return ReadPlan(
        len(probed) + len(unreadable), tuple(tasks(splits, step_bytes)), tuple(unreadable)
    )


def tasks(splits: Iterable[Split], task_bytes: int = SPLIT_BYTES) -> list[tuple[Split, ...]]:
    """Return the splits in groups of about `task_bytes`: ten thousand small files are few tasks.

    The largest come first, so that no core waits for a large one at the end.
    """
    groups: list[tuple[Split, ...]] = []
    group: list[Split] = []
    for piece in sorted(splits, key=lambda piece: (piece.start - piece.end, piece.path)):
        group.append(piece)
        if sum(one.end - one.start for one in group) >= task_bytes or len(group) >= TASK_SPLITS_MAX:
            groups.append(tuple(group))
            group = []
    return [*groups, tuple(group)] if group else groups


def find(inputs: Iterable[Path]) -> list[Path]:
    """Return the files named and those of JSON lines below the directories, sorted, each once."""
    found: set[Path] = set()
    for path in inputs:
        if not path.is_dir():
            found.add(path)
            continue
        for directory, folders, names in os.walk(path):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            found.update(Path(directory, name) for name in names if _is_wanted(name))
    return sorted(found)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a file without waiting for it. Raises OSError, also if it is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def probe(path: Path) -> tuple[str, int]:
    """Return how a file is compressed, and its size in bytes. Raises OSError."""
    with open_regular(path) as file:
        head = file.read(MAGIC_BYTES_MAX)
        size = os.fstat(file.fileno()).st_size
    names = (name for magic, name in MAGIC.items() if head.startswith(magic))
    return next(names, PLAIN), size


def split(
    path: str, compression: str, start: int, end: int, step_bytes: int = SPLIT_BYTES
) -> list[Split]:
    """Return the pieces of [start, end) that tasks read; none if it is empty."""
    step = step_bytes if compression == PLAIN else max(end - start, 1)
    return [
        Split(path, compression, first, min(first + step, end)) for first in range(start, end, step)
    ]


def _is_wanted(name: str) -> bool:
    """Return whether a file's name says that it holds JSON lines."""
    return NAME.search(name) is not None and not name.startswith(".")


def _nothing(inputs: Sequence[Path], unreadable: Sequence[str]) -> str:
    """Return the line that says why there is nothing to read."""
    places = ", ".join(map(str, inputs))
    if not unreadable:
        return (
            f"no OTLP JSON lines (*.jsonl or *.ndjson, also with .gz or .zst) in {places}: name the"
            " directory that traces are written to, or switch sampling on and run the load again"
        )
    return (
        f"none of the {len(unreadable)} files in {places} can be read; the first is"
        f" {unreadable[0]}: mend its path or its permissions"
    )
