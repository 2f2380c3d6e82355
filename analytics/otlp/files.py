"""Which files hold OTLP, and the pieces of them that tasks read.

The first bytes of a file tell its compression and its form, not its name (`forms`). A file is
skipped, and named, if it holds no OTLP. One whose name has an ending of JSON lines in letters of
either case (`traces.jsonl` or `.ndjson`, rotated `traces-<time>.jsonl` or `traces.jsonl.1`,
compressed `.gz` or `.zst`), or that the request names itself, is read even then, so that all of it
is in quarantine. What is no regular file, such as a pipe, could keep a reader waiting for ever: it
is not opened.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from analytics.otlp.compressed import compression_of, decompressed
from analytics.otlp.forms import HEAD_BYTES, OtlpForm, recognize
from analytics.session import AnalyticsError

NO_FILE: Final = "it is no regular file"
NAME: Final = re.compile(r"\.(jsonl|ndjson)(\.\d+)?(\.gz|\.zst)?$", re.IGNORECASE)
MAGIC_BYTES_MAX: Final = 4
PLAIN: Final = "plain"
# A file under such a name is half of one: its process still writes it, or was killed.
UNFINISHED_SUFFIXES: Final = (".tmp", ".part", ".partial")

# One task reads this much of a plain file (about 100,000 spans), so that cores end together.
SPLIT_BYTES: Final = 64 * 1024 * 1024
# A small input is divided among the cores, but not into tiny pieces that end at once.
SPLIT_BYTES_MIN: Final = 1024 * 1024
TASK_SPLITS_MAX: Final = 1000


class NoInputError(AnalyticsError):
    """There is nothing to analyse. The message says which places were searched, and for what."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How a file is compressed, its size in bytes, and its form."""

    compression: str
    size: int
    form: OtlpForm


@dataclass(frozen=True, slots=True)
class Split:
    """The lines of a file that begin in [start, end), in bytes; all other forms are one split."""

    path: str
    compression: str
    start: int
    end: int
    form: OtlpForm = OtlpForm.LINES


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What will be read: splits for each task, the number of files, and the unreadable files.

    A file that cannot be opened or is skipped is planned too: its task reports it in one row.
    """

    files: int
    tasks: tuple[tuple[Split, ...], ...]
    unreadable: tuple[str, ...]


def plan(inputs: Sequence[Path], cores: int = 1) -> ReadPlan:
    """Return what so many cores read of files and directories. Raises NoInputError if no file."""
    probed: list[tuple[Path, Probe]] = []
    unreadable: list[str] = []
    skipped: list[str] = []
    splits: list[Split] = []
    named = frozenset(inputs)
    for path in find(inputs):
        try:
            found = probe(path, named)
            if found.form is OtlpForm.FOREIGN:
                skipped.append(str(path))
                splits.append(Split(str(path), PLAIN, 0, 0, found.form))
            else:
                probed.append((path, found))
        except OSError as error:
            unreadable.append(f"{path} ({error.strerror or type(error).__name__})")
            splits.append(Split(str(path), PLAIN, 0, 0))
    if not probed:
        raise NoInputError(_nothing(inputs, unreadable, skipped))
    size_bytes = sum(found.size for _, found in probed)
    step_bytes = max(SPLIT_BYTES_MIN, min(SPLIT_BYTES, -(-size_bytes // cores)))
    for path, found in probed:
        splits += split(str(path), found.compression, 0, found.size, step_bytes, found.form)
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
    """Return the files named and those below the directories, sorted, each once; no hidden ones."""
    found: set[Path] = set()
    for path in inputs:
        if not path.is_dir():
            found.add(path)
            continue
        for directory, folders, names in os.walk(path):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            found.update(Path(directory, name) for name in names if name[0] != ".")
    return sorted(found)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a file to read. Raises OSError, also if it is no regular file: that is not opened."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    # Another one may have taken its place meanwhile: opening must not wait for it.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    return file


def probe(path: Path, named: Set[Path]) -> Probe:
    """Return what the beginning of a file tells. Raises OSError.

    A file that is `named`, or has a name of JSON lines, is read as lines if it has no form, and
    raises if it is no regular file; any other of these is foreign.
    """
    is_named = path in named or NAME.search(path.name) is not None
    if not is_named and (
        path.suffix in UNFINISHED_SUFFIXES or not stat.S_ISREG(path.stat().st_mode)
    ):
        return Probe(PLAIN, 0, OtlpForm.FOREIGN)
    with open_regular(path) as file:
        compression = compression_of(file.read(MAGIC_BYTES_MAX)) or PLAIN
        size = os.fstat(file.fileno()).st_size
        file.seek(0)
        head = _head(file, compression, size)
    form = OtlpForm.FOREIGN if head is None else recognize(head, len(head) < HEAD_BYTES)
    if is_named and form is OtlpForm.FOREIGN:
        form = OtlpForm.LINES
    return Probe(compression, size, form)


def why_foreign(path: str) -> str:
    """Return the sentence that says why a file is skipped."""
    try:
        status = Path(path).stat()
    except OSError as error:
        return f"it is skipped: it is gone by now ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return "it is skipped: it is a pipe, a socket or a device, and no file"
    if Path(path).suffix in UNFINISHED_SUFFIXES:
        return "it is skipped: its name says that it is half a file; name the file to read it"
    if status.st_size == 0:
        return "it is skipped: it is empty"
    return "it is skipped: it holds no OTLP, neither JSON nor protobuf; name the file to read it"


def _head(file: BinaryIO, compression: str, size: int) -> bytes | None:
    """Return the first bytes of a file without its compression; None if they are damaged."""
    if compression == PLAIN:
        return file.read(HEAD_BYTES)
    try:
        return decompressed(file, compression, size).read(HEAD_BYTES)
    except OSError:
        return None


def split(
    path: str,
    compression: str,
    start: int,
    end: int,
    step_bytes: int = SPLIT_BYTES,
    form: OtlpForm = OtlpForm.LINES,
) -> list[Split]:
    """Return the pieces of [start, end) that tasks read; none if it is empty."""
    if form is not OtlpForm.LINES:
        # The beginnings of its messages cannot be found from the middle.
        return [Split(path, compression, 0, end, form)] if end > start else []
    step = step_bytes if compression == PLAIN else max(end - start, 1)
    return [
        Split(path, compression, first, min(first + step, end)) for first in range(start, end, step)
    ]


def _nothing(inputs: Sequence[Path], unreadable: Sequence[str], skipped: Sequence[str]) -> str:
    """Return the line that says why there is nothing to read."""
    places = ", ".join(map(str, inputs))
    if not unreadable:
        others = f" ({len(skipped)} other files, the first is {skipped[0]})" if skipped else ""
        return (
            f"no OTLP JSON lines, documents or protobuf in {places}{others}: name the directory"
            " that traces are written to, or switch sampling on and run the load again"
        )
    return (
        f"none of the {len(unreadable)} files in {places} can be read; the first is"
        f" {unreadable[0]}: mend its path or its permissions"
    )
