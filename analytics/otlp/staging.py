"""Rows of `columnar` become Parquet files, written by the worker that made them.

    <place>.unfinished/date=…/service=…/<attempt>-<n>.parquet    while tasks run
    <place>/date=…/service=…/<attempt>-<n>.parquet               once the driver knows of them

Through Java every value would be copied twice, and written by a slower writer. Each attempt of a
task has file names of its own, and a task's result names its files. So the files of a failed or
abandoned attempt are never among the named ones. `place` is seen by the driver and all workers
under the same path.
"""

from __future__ import annotations

import functools
import io
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analytics.otlp import columnar
from analytics.otlp.arrow_json import Integers
from analytics.schema import SPANS
from viewstamp.limits import MIB

# The result of a task: the files that it wrote, below the place, and its counts.
COLUMNS: Final = "files ARRAY<STRING>, lines BIGINT, spans_read BIGINT, odd BIGINT"
ODD: Final = "odd"
COUNTS: Final = ("lines", "spans_read", ODD)
_TOLD: Final = pa.schema(
    [("files", pa.list_(pa.string())), *((name, pa.int64()) for name in COUNTS)]
)
# The result for a rewritten file: its address as Spark names it, and the new files.
REWRITTEN: Final = "path STRING, files ARRAY<STRING>"
_REWRITTEN: Final = pa.schema([("path", pa.string()), ("files", pa.list_(pa.string()))])
# Tasks write beside the place and not in it, so a late writer cannot change finished files.
UNFINISHED: Final = ".unfinished"
# The value in Spark's name for the folder of rows without a value.
NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
# Rows that wait in a worker to be written together; a usual task has no more.
PENDING_BYTES_MAX: Final = 32 * MIB
# Files that a task writes at once: its spans are of few days and services.
FILES_MAX: Final = 16
# So many rows of a file are read at once.
ROWS_PER_BATCH: Final = 16_384
COMPRESSION: Final = "zstd"
# Spans rarely share these values, so a dictionary of them saves nothing.
UNIQUE: Final = ("trace_id", "span_id", "parent_span_id", "start_us", "end_us", "duration_us")
# The characters that Spark escapes in the name of a folder, and NUL.
ESCAPED: Final = frozenset({*map(chr, range(0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"})


def write(place: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows of `columnar` below the place; yield one row of COLUMNS. Runs in a worker."""
    counts = np.zeros(len(COUNTS), np.int64)
    files = _Files(place)
    for batch in batches:
        counts += _counted(batch)
        for folder, rows in _divided(batch):
            files.add(folder, rows)
    told = [[files.close()], *([count] for count in counts.tolist())]
    arrays = [pa.array(values, one.type) for values, one in zip(told, _TOLD, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=_TOLD)


def rewrite(
    place: Path, target: Path, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write files below the place to the target, without some rows. Runs in a worker.

    An input row is a file's address as Spark names it, and the numbers of the rows to leave out,
    from 0. A yielded row has the columns of REWRITTEN.
    """
    for batch in batches:
        for address, numbers in zip(*(one.to_pylist() for one in batch.columns), strict=True):
            path = local(address)
            folder = str(path.parent.relative_to(place))
            files = _Files(target)
            for rows in _without(path, np.array(numbers)):
                files.add(folder, rows)
            told = [pa.array([address]), pa.array([files.close()], _REWRITTEN.field(1).type)]
            yield pa.RecordBatch.from_arrays(told, schema=_REWRITTEN)


def finish(place: Path, names: Iterable[str]) -> None:
    """Move the files that tasks named to the place, and delete all others."""
    place.mkdir(exist_ok=True)
    for name in names:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (unfinished(place) / name).rename(target)
    shutil.rmtree(unfinished(place), ignore_errors=True)


def local(address: str) -> Path:
    """Return the path of a file as Spark names it: `file:` and percent-encoded."""
    return Path(unquote(urlsplit(address).path))


def unfinished(place: Path) -> Path:
    """Return the directory for files that move to the place once they are finished."""
    return place.with_name(place.name + UNFINISHED)


def escaped(value: str) -> str:
    """Return a value escaped for the name of a folder, as Spark escapes it."""
    return "".join(f"%{ord(one):02X}" if one in ESCAPED else one for one in value)


class _Files:
    """The files of one attempt. Rows wait until a file is full or the input ends."""

    def __init__(self, place: Path) -> None:
        self._place = unfinished(place)
        self._attempt = uuid.uuid4().hex
        self._names: list[str] = []
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._pending: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Add rows for the folder; they are written once enough of them wait."""
        if folder not in self._pending:
            if len(self._pending) == FILES_MAX:
                self._end(next(iter(self._pending)))
            self._pending[folder], self._sizes[folder] = [], 0
        self._pending[folder].append(rows)
        self._sizes[folder] += rows.nbytes
        if sum(self._sizes.values()) >= PENDING_BYTES_MAX:
            self._write(max(self._sizes, key=self._sizes.__getitem__))

    def close(self) -> list[str]:
        """Write what waits; return the names of all files."""
        for folder in list(self._pending):
            self._end(folder)
        return self._names

    def _end(self, folder: str) -> None:
        """Finish the file of a folder; more rows will go to another one."""
        self._write(folder)
        self._writers.pop(folder).close()
        del self._pending[folder], self._sizes[folder]

    def _write(self, folder: str) -> None:
        """Write the rows that wait for a folder, as a row group."""
        writer = self._writers.get(folder)
        if writer is None:
            writer = self._writers[folder] = self._open(folder, self._pending[folder][0].schema)
        if rows := self._pending[folder]:
            table = pa.Table.from_batches(rows)
            writer.write_table(table, row_group_size=table.num_rows)
        self._pending[folder], self._sizes[folder] = [], 0

    def _open(self, folder: str, schema: pa.Schema) -> pq.ParquetWriter:
        name = f"{folder}/{self._attempt}-{len(self._names)}.parquet"
        (self._place / folder).mkdir(parents=True, exist_ok=True)
        self._names.append(name)
        return pq.ParquetWriter(
            self._place / name,
            schema,
            compression=COMPRESSION,
            use_dictionary=_repetitive(schema),
            store_schema=False,
        )


def _without(path: Path, numbers: Integers) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, except those with these numbers."""
    first = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_PER_BATCH):
            is_kept = ~np.isin(np.arange(first, first + batch.num_rows), numbers)
            first += batch.num_rows
            if is_kept.any():
                yield batch if is_kept.all() else batch.filter(pa.array(is_kept))


def _counted(batch: pa.RecordBatch) -> Integers:
    """Return how many lines, spans and odd lines there are, in the order of COUNTS."""
    is_span = batch.column("date").is_valid().to_numpy(zero_copy_only=False)
    is_first = batch.column(columnar.IS_FIRST).fill_null(False).to_numpy(zero_copy_only=False)
    names = batch.column("name").to_numpy(zero_copy_only=False) if not is_span.all() else None
    odd = 0 if names is None else int(np.count_nonzero(~is_span & (names == columnar.ODD)))
    return np.array([np.count_nonzero(is_first), np.count_nonzero(is_span), odd], np.int64)


def _divided(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each folder's name and the stored columns of its rows."""
    columns = [batch.column(name).dictionary_encode("encode") for name in SPANS.partition_by]
    values = [column.dictionary.to_pylist() for column in columns]
    codes = [column.indices.to_numpy().astype(np.int64) for column in columns]
    places = functools.reduce(
        lambda sofar, one: sofar * len(values[one]) + codes[one], range(1, len(codes)), codes[0]
    )
    rows = batch.drop_columns([*SPANS.partition_by, columnar.IS_FIRST])
    found, firsts = np.unique(places, return_index=True)
    for value, first in zip(found, firsts, strict=True):
        folder = _folder([values[one][codes[one][first]] for one in range(len(codes))])
        chosen = np.flatnonzero(places == value)
        yield folder, rows if len(found) == 1 else rows.take(pa.array(chosen))


def _folder(values: Sequence[object]) -> str:
    """Return where rows with these values of the partitions' columns are."""
    named = zip(SPANS.partition_by, values, strict=True)
    texts = ((name, NOTHING if value is None else escaped(str(value))) for name, value in named)
    return "/".join(f"{name}={text}" for name, text in texts)


@functools.cache
def _repetitive(schema: pa.Schema) -> list[str]:
    """Return the columns in files that have a dictionary, as Parquet names them."""
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.read_metadata(empty).schema
    paths = (columns.column(place).path for place in range(len(columns)))
    return [path for path in paths if path not in UNIQUE]
