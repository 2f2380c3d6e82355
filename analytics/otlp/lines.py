"""Reads splits into Arrow batches of lines, without copying them one by one. Runs in tasks.

Spark's own text source knows no line numbers, and reads zstd only where Hadoop's native library is
installed. A batch has one row per line, its newline included: JSON treats the newline as white
space.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from analytics.otlp.compressed import decompressed
from analytics.otlp.files import PLAIN, Split, open_regular

if TYPE_CHECKING:
    import pyarrow

# Rows that leave a task: where the line is, and its text or the problem. `split_start` is where the
# first line of the split begins, in bytes; `line` counts from 0 from there.
COLUMNS: Final = "source STRING, split_start BIGINT, line BIGINT, text STRING, problem STRING"

NAMES: Final = ("source", "split_start", "line", "text", "problem")
PLACE: Final = ("source", "split_start", "line")

# A row of COLUMNS; the text need not be UTF-8.
Row: TypeAlias = "tuple[str, int, int, bytes, str | None]"

BLOCK_BYTES: Final = 4 * 1024 * 1024
# In a damaged compressed file, this much before the damage is lost too.
COMPRESSED_BLOCK_BYTES: Final = 256 * 1024
# A line is one export of at most some thousand spans; more than this is not a line.
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
# Stands in place of a line number where the problem is the file's.
WHOLE_FILE: Final = -1
EXCERPT_BYTES: Final = 200
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

TOO_LONG: Final = "line_too_long"
UNREADABLE: Final = "unreadable_file"
# A file that holds no OTLP; it is no problem of the data, only named.
SKIPPED_FILE: Final = "skipped_file"


def read(split: Split) -> Iterator[pyarrow.RecordBatch]:
    """Yield the lines of a split. An unreadable part becomes a row with a problem, not an error."""
    line = 0
    blocks = Blocks(split)
    begin = split.start
    try:
        for block in blocks:
            begin = blocks.begin
            batch = _batch(split.path, begin, line, block)
            line += batch.num_rows
            yield batch
            if blocks.overlong is not None:
                yield problem_of(split.path, begin, line, TOO_LONG, blocks.overlong)
                line += 1
    except OSError as error:
        # The file is damaged from here on; the lines before are still good.
        yield problem_of(split.path, begin, line or WHOLE_FILE, UNREADABLE, str(error).encode())


class Blocks:
    """The bytes of a split in blocks of whole lines. Iterating raises OSError for a damaged file.

    `overlong` is the beginning of a line that is too long; it is set with the block before that
    line.
    """

    def __init__(self, split: Split, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        """Read the lines that begin in the split."""
        self._split = split
        self._line_bytes_max = line_bytes_max
        is_plain = split.compression == PLAIN
        self._block_bytes = BLOCK_BYTES if is_plain else COMPRESSED_BLOCK_BYTES
        # The decompressed length is unknown until the file has been read.
        self._end = split.end if is_plain else None
        self.overlong: bytes | None = None
        # Where the first line begins; known with the first block.
        self.begin = split.start

    def __iter__(self) -> Iterator[bytes]:
        """Yield the blocks; only the last one of a file may lack its newline."""
        with open_regular(self._split.path) as raw:
            stream = opened(raw, self._split)
            self.begin = self._first_line(stream)
            blocks = self._lines_from(stream, self.begin)
            if self._split.start > 0:
                yield from blocks
            else:
                for number, block in enumerate(blocks):
                    yield block.removeprefix(BYTE_ORDER_MARK) if number == 0 else block

    def _first_line(self, stream: BinaryIO) -> int:
        """Move to the first line that begins in the split; return its position in bytes."""
        before = self._split.start - 1
        if before < 0:
            return 0
        stream.seek(before)
        return before + _skip_line(stream)

    def _lines_from(self, stream: BinaryIO, position: int) -> Iterator[bytes]:
        """Yield the lines from the position on that begin before the split's end."""
        carry = b""
        while self._end is None or position < self._end:
            chunk = stream.read(self._block_bytes)
            data = carry + chunk
            whole, is_last = self._whole_lines(data, position)
            if is_last or not chunk:
                yield data[:whole] if is_last else data
                return
            carry = data[whole:]
            position += whole
            if len(carry) > self._line_bytes_max:
                self.overlong = carry[:EXCERPT_BYTES]
                position += len(carry) + _skip_line(stream)
                carry = b""
            yield data[:whole]
            self.overlong = None

    def _whole_lines(self, data: bytes, position: int) -> tuple[int, bool]:
        """Return how many bytes of `data` are whole lines, and whether the last one ends there."""
        if self._end is not None and self._end - position <= len(data):
            # The last line begins before the end, so it ends at or after the byte before it.
            newline = data.find(b"\n", max(0, self._end - position - 1))
            if newline >= 0:
                return newline + 1, True
        return data.rfind(b"\n") + 1, False


def opened(raw: BinaryIO, split: Split) -> BinaryIO:
    """Return the file's own bytes, without compression. Reading raises OSError where damaged."""
    if split.compression == PLAIN:
        return raw
    return decompressed(raw, split.compression, os.fstat(raw.fileno()).st_size)


def _skip_line(stream: BinaryIO) -> int:
    """Read on to the next line; return the number of bytes skipped."""
    skipped = 0
    while piece := stream.readline(BLOCK_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _batch(source: str, begin: int, line: int, block: bytes) -> pyarrow.RecordBatch:
    """Return the block's lines as rows; the text is the block itself, cut by offsets."""
    import numpy
    import pyarrow

    ends = numpy.flatnonzero(numpy.frombuffer(block, numpy.uint8) == ord("\n")) + 1
    if block and not block.endswith(b"\n"):
        ends = numpy.append(ends, len(block))
    offsets = numpy.concatenate(([0], ends)).astype(numpy.int32)
    count = len(offsets) - 1
    text = pyarrow.Array.from_buffers(
        pyarrow.string(), count, [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(block)]
    )
    lines = pyarrow.array(numpy.arange(line, line + count, dtype=numpy.int64))
    return _rows(source, begin, lines, text, pyarrow.nulls(count, pyarrow.string()))


def problem_of(
    source: str, begin: int, line: int, problem: str, excerpt: bytes
) -> pyarrow.RecordBatch:
    """Return one row that says why there is no text; the excerpt stands in its place."""
    import pyarrow

    text = pyarrow.array([excerpt.decode(errors="replace")], pyarrow.string())
    return _rows(
        source, begin, pyarrow.array([line], pyarrow.int64()), text, pyarrow.array([problem])
    )


def _rows(source: str, begin: int, lines: Any, text: Any, problems: Any) -> pyarrow.RecordBatch:
    """Return rows of COLUMNS."""
    import pyarrow

    count = len(lines)
    arrays = [
        pyarrow.repeat(pyarrow.scalar(source), count),
        pyarrow.repeat(pyarrow.scalar(begin, pyarrow.int64()), count),
        lines,
        text,
        problems,
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(NAMES))


def rows_of(batch: pyarrow.RecordBatch) -> Iterator[Row]:
    """Yield the rows of a batch of COLUMNS."""
    import pyarrow

    text = batch.column("text").cast(pyarrow.binary())
    columns = [text if name == "text" else batch.column(name) for name in NAMES]
    yield from zip(*(column.to_pylist() for column in columns), strict=True)


def batch_of(rows: Iterable[Row]) -> pyarrow.RecordBatch:
    """Return rows as a batch of COLUMNS."""
    import pyarrow

    types = [pyarrow.string(), pyarrow.int64(), pyarrow.int64(), pyarrow.binary(), pyarrow.string()]
    values = list(zip(*rows, strict=True)) or [()] * len(NAMES)
    arrays = [pyarrow.array(column, one) for column, one in zip(values, types, strict=True)]
    text = arrays[NAMES.index("text")]
    # No check of UTF-8: `flatten` sees to the lines that are none.
    arrays[NAMES.index("text")] = pyarrow.Array.from_buffers(
        pyarrow.string(), len(text), text.buffers()
    )
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(NAMES))


def number(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Replace `split_start` and `line` by `line_number`, counted from 1 in the file.

    Reads the files once more, up to their last row here. Fast if the rows are sorted by source and
    `split_start`. A file that is gone by now has no numbers (null).
    """
    import pyarrow

    counter = _Newlines()
    for batch in batches:
        starts = zip(*(batch.column(name).to_pylist() for name in PLACE), strict=True)
        numbers = [
            None if (before := counter.before(source, start)) is None else before + line + 1
            for source, start, line in starts
        ]
        kept = batch.drop_columns(["split_start", "line"])
        yield kept.add_column(1, "line_number", pyarrow.array(numbers, pyarrow.int64()))


class _Newlines:
    """Counts the lines before a position, going on from the last answer where that is possible."""

    def __init__(self) -> None:
        self._source = ""
        self._position = 0
        self._count = 0

    def before(self, source: str, position: int) -> int | None:
        """Return the newlines in the first `position` bytes, or None if they cannot be read."""
        if source != self._source or position < self._position:
            self._source, self._position, self._count = source, 0, 0
        try:
            with open_regular(source) as file:
                file.seek(self._position)
                while self._position < position:
                    block = file.read(min(BLOCK_BYTES, position - self._position))
                    if not block:
                        return None
                    self._count += block.count(b"\n")
                    self._position += len(block)
        except OSError:
            # The file was rotated and deleted meanwhile: the row stays, its line number is unknown.
            return None if position > 0 else 0
        return self._count
