"""Parquet tables, written in bounded memory. The only place that needs the extra `analytics`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from viewstamp.format.columns import Row, row_of
from viewstamp.limits import MIB
from viewstamp.snapshots.columns import schema_of
from viewstamp.snapshots.durable import publish, sync_directory, temporary_of
from viewstamp.snapshots.errors import AnalyticsMissing, CannotExport

# A row group is held in memory, so it ends at so many rows, or bytes of encoded entities.
ROW_GROUP_ROWS_MAX: Final = 16_384
ROW_GROUP_BYTES_MAX: Final = 8 * MIB
# A part ends after the row group with which it reaches so many bytes of encoded entities.
PART_BYTES: Final = 256 * MIB
COMPRESSION: Final = "zstd"
PART_PREFIX: Final = "part-"
TABLE_SUFFIX: Final = ".parquet"

# These columns come before every entity's own columns, and before those of a layer.
GENERATION: Final = "generation"
CUT_REVISION: Final = "cut_revision"
TIMESTAMP: Final = "timestamp"


@dataclass(slots=True)
class Parts:
    """The files of a table."""

    names: list[str] = field(default_factory=list)
    rows: int = 0


@dataclass(slots=True)
class _Group:
    """Rows that are held in memory together."""

    rows: list[Row] = field(default_factory=list)
    size_bytes: int = 0


def check_available() -> None:
    """Raise AnalyticsMissing if Parquet cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise AnalyticsMissing(
            f"exports need pyarrow ({error})",
            "install the extra `analytics`: pip install 'viewstamp[analytics]'",
        ) from error


def schema_of_entities(message: type[Message]) -> Any:
    """Return the Arrow schema of the table of a kind."""
    import pyarrow

    descriptor: Any = message.DESCRIPTOR
    columns = schema_of(descriptor)
    clash = {GENERATION, CUT_REVISION, TIMESTAMP}.intersection(column.name for column in columns)
    assert not clash, f"{descriptor.name} has fields of its own named {sorted(clash)}"
    return pyarrow.schema([*_cut_columns(), *columns])


def row_of_entity(message: Message, cut: Row) -> Row:
    """Return the row of an entity."""
    return {**cut, **row_of(message)}


def schema_of_layers() -> Any:
    """Return the Arrow schema of the table of layers."""
    import pyarrow

    text, exact = pyarrow.string(), pyarrow.uint64()
    columns = {
        "section": text,
        "section_version": pyarrow.uint32(),
        "position": pyarrow.uint32(),
        "is_base": pyarrow.bool_(),
        "layer_generation": exact,
        "base_generation": exact,
        "digest": text,
        "size_bytes": exact,
        "raw_bytes": exact,
        "entries": exact,
        "tombstones": exact,
    }
    described = [pyarrow.field(name, type_, nullable=False) for name, type_ in columns.items()]
    return pyarrow.schema([*_cut_columns(), *described])


def write(directory: Path, schema: Any, rows: Iterator[tuple[Row, int]]) -> Parts:
    """Write rows (each with its size in bytes) as the parts of a table; at least one, if empty.

    Each part gets its name when it is whole and durable. Raises CannotExport.
    """
    parts = Parts()
    try:
        directory.mkdir(parents=True)
        group = _next_group(rows)
        while group.rows or not parts.names:
            path = directory / f"{PART_PREFIX}{len(parts.names):05d}{TABLE_SUFFIX}"
            written, group = _write_part(path, schema, group, rows)
            parts.rows += written
            parts.names.append(path.name)
        sync_directory(directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise CannotExport(f"{directory}: {error.strerror or error}", "free space there") from error
    return parts


def _cut_columns() -> list[Any]:
    import pyarrow

    return [
        pyarrow.field(GENERATION, pyarrow.uint64(), nullable=False),
        pyarrow.field(CUT_REVISION, pyarrow.uint64(), nullable=False),
        pyarrow.field(TIMESTAMP, pyarrow.timestamp("us", tz="UTC"), nullable=False),
    ]


def _write_part(
    path: Path, schema: Any, group: _Group, rows: Iterator[tuple[Row, int]]
) -> tuple[int, _Group]:
    """Write row groups until the part is full; return the number of rows and the next group."""
    from pyarrow import Table, parquet

    written = size_bytes = 0
    with temporary_of(path).open("wb") as file:
        with parquet.ParquetWriter(file, schema, compression=COMPRESSION) as writer:
            while group.rows and size_bytes < PART_BYTES:
                writer.write_table(Table.from_pylist(group.rows, schema=schema))
                written += len(group.rows)
                size_bytes += group.size_bytes
                group = _next_group(rows)
        publish(file, path)
    return written, group


def _next_group(rows: Iterator[tuple[Row, int]]) -> _Group:
    group = _Group()
    for row, row_bytes in rows:
        group.rows.append(row)
        group.size_bytes += row_bytes
        if len(group.rows) >= ROW_GROUP_ROWS_MAX or group.size_bytes >= ROW_GROUP_BYTES_MAX:
            break
    return group
