"""Reads tables from disk into memory without Spark. It names missing ones and guesses nothing.

The tables of analyses are small (per RPC and minute, per generation and section). `spans` is large,
so only its number of rows is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from analytics import schema, tables
from analytics.session import AnalyticsError

# About 100 bytes per row in memory. A month of minutes of 40 RPCs is 1.7 million rows.
ROWS_READ_MAX: Final = 2_000_000
# Tables that may be as large as the input: their rows are only counted.
COUNTED_ONLY: Final = frozenset({schema.SPANS.name})
ROWS: Final = "rows"


class ReportError(AnalyticsError):
    """The report cannot be made. The message names the file in the way, and says what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a number on the page, so that anybody can compute it again.

    The number is `column` over the rows of `table` that match every value of `where`, combined by
    `aggregate`: `only` (there is one row), `sum`, `max`, or `rows` (how many; the column does not
    matter). With `over` the result is divided by the sum of that column over the same rows, or over
    the rows of `over_table` that fit `over_where`.
    """

    table: str
    column: str
    where: tuple[tuple[str, object], ...] = ()
    aggregate: str = "only"
    over: str | None = None
    over_table: str | None = None
    over_where: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A value with its unit (one of `units.UNITS`), and where it comes from."""

    value: float
    unit: str
    source: Source


@dataclass(frozen=True)
class Tables:
    """The tables that could be read, and why the others could not.

    `rows` has every known table, empty where a table is absent; `row_counts` counts the rows on
    disk.
    """

    rows: Mapping[str, pd.DataFrame]
    row_counts: Mapping[str, int]
    problems: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return the rows of a table that schema.TABLES knows."""
        return self.rows[name]

    def select(self, name: str, where: tuple[tuple[str, object], ...]) -> pd.DataFrame:
        """Return the rows that have all these values."""
        rows = self.rows[name]
        for column, value in where:
            rows = rows[rows[column] == value]
        return rows

    def number(self, unit: str, source: Source) -> Number:
        """Return the number that the source describes, NaN if its rows are missing."""
        rows = self.select(source.table, source.where)
        if source.aggregate == ROWS:
            whole = not source.where
            value = float(self.row_counts[source.table] if whole else len(rows))
        else:
            value = _aggregate(rows[source.column], source.aggregate)
        if source.over is not None:
            other = self.select(source.over_table, source.over_where) if source.over_table else rows
            below = _aggregate(other[source.over], "sum")
            value = value / below if below else math.nan
        return Number(value, unit, source)


def load(directory: Path) -> Tables:
    """Return the tables in a directory. Raises ReportError if it is no directory."""
    if not directory.is_dir():
        raise ReportError(f"{directory} is no directory: name the one with the tables")
    rows: dict[str, pd.DataFrame] = {}
    row_counts: dict[str, int] = {}
    problems: dict[str, str] = {}
    for name, table in schema.TABLES.items():
        try:
            rows[name], row_counts[name] = _load(table, directory)
        except tables.TableError as error:
            rows[name], row_counts[name] = _no_rows(table), 0
            # The page names no directory, because its reader may have the tables elsewhere.
            problem = str(error).replace(f"{directory}/", "").replace(str(directory), "DIRECTORY")
            problems[name] = problem.removeprefix(f"{name} ")
    return Tables(rows, row_counts, problems)


def _load(table: schema.TableSchema, directory: Path) -> tuple[pd.DataFrame, int]:
    """Return rows and their number. Raises TableError if the table is not fit to be read."""
    tables.check(table, directory)
    path = directory / table.name
    try:
        found = ds.dataset(str(path), format="parquet", partitioning="hive")
        row_count = found.count_rows()
        if table.name in COUNTED_ONLY:
            return _no_rows(table), row_count
        columns = list(column_names(table))
        # An empty table may have no file, and so no schema.
        missing = [name for name in columns if found.files and name not in found.schema.names]
        if missing:
            raise tables.TableError(f"{path} has no column {missing[0]}: write the table again")
        read = found.head(ROWS_READ_MAX, columns=columns) if found.files else None
    except (OSError, pa.ArrowException) as error:
        raise tables.TableError(
            f"{path} cannot be read ({type(error).__name__}): write the table again"
        ) from error
    return (_no_rows(table) if read is None else read.to_pandas()), row_count


def column_names(table: schema.TableSchema) -> tuple[str, ...]:
    """Return the names of a table's columns, without the Spark that Table.column_names needs."""
    names, depth, piece = [], 0, ""
    for character in table.columns + ",":
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            names.append(piece.split(maxsplit=1)[0])
            piece = ""
        else:
            piece += character
    return tuple(names)


def _no_rows(table: schema.TableSchema) -> pd.DataFrame:
    """Return the table's columns without any row."""
    return pd.DataFrame({name: pd.Series(dtype="object") for name in column_names(table)})


def _aggregate(values: Any, how: str) -> float:
    """Return the combined values, NaN where there are none, or several where `only` expects one."""
    values = pd.to_numeric(values).dropna()
    if how == "only":
        return float(values.iloc[0]) if len(values) == 1 else math.nan
    if len(values) == 0:
        return math.nan
    return float({"sum": values.sum, "max": values.max}[how]())
