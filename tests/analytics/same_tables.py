"""Whether two runs of the analysis made the same tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import tables
from analytics.schema import TABLES

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

# The tolerance for equal doubles that were added up in another order.
RELATIVE: Final = 1e-9


def assert_same_tables(spark: SparkSession, made: Path, expected: Path) -> None:
    """Compare every table with the expected one, row by row."""
    names = [name for name, table in TABLES.items() if tables.exists(table, expected)]
    assert len(names) > 15, names
    for name in names:
        assert_same_rows(name, *(rows_of(spark, name, output) for output in (made, expected)))


def rows_of(spark: SparkSession, name: str, output: Path) -> list[Row]:
    """Return the rows in an order that does not depend on the last digits of doubles."""
    return sorted(tables.read(spark, TABLES[name], output).collect(), key=order_of)


def order_of(row: Row) -> list[str]:
    """Return the sort key of a row: exact values first, then rounded ones."""
    values = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in row]
    is_rounded = [isinstance(value, float) for value in row]
    return [
        text for _, text in sorted(zip(is_rounded, values, strict=True), key=lambda pair: pair[0])
    ]


def assert_same_rows(name: str, made: list[Row], expected: list[Row]) -> None:
    """Compare two lists of rows; doubles may differ in their last digits."""
    assert len(made) == len(expected), name
    for one, other in zip(made, expected, strict=True):
        pairs = zip(one.asDict().items(), other, strict=True)
        different = [
            (column, left, right) for (column, left), right in pairs if not is_same(left, right)
        ]
        assert not different, (name, different)


def is_same(left: object, right: object) -> bool:
    """Return whether two values are equal, doubles up to the order of addition."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=RELATIVE)
    return left == right
