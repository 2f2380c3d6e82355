"""Tables on disk: written beside the old ones and moved into place, read back checked.

    <output>/<table>/_schema.json               version, columns and partitions
    <output>/<table>/_SUCCESS                   Spark's own mark: all tasks are done
    <output>/<table>/date=…/service=…/*.parquet
    <output>/.work/<run>/                       unfinished work of a run

A table is either the old or the new one, also after a kill at any moment; `claim` puts back what a
killed run had moved aside. Java and the executors of a killed run may still write when the next run
begins, so each run has a directory of its own for unfinished work. The output is on a file system
that the driver and all executors share.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics.schema import SCHEMA_VERSION, TABLES, TableSchema
from analytics.session import AnalyticsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORK: Final = ".work"
RUN: Final = f"run-{secrets.token_hex(4)}"
LOCK: Final = "lock"
REPLACED: Final = "replaced"
SCHEMA_FILE: Final = "_schema.json"
SUCCESS_FILE: Final = "_SUCCESS"


class TableError(AnalyticsError):
    """A table cannot be read or written: which one, why, and what to do."""


@contextlib.contextmanager
def claim(output: Path) -> Iterator[None]:
    """Hold the output for this process alone, after cleaning up after a killed run.

    Raises TableError if another process holds it, the directory cannot be made, or it holds other
    files than tables, which tables would mix with or replace.
    """
    work = output / WORK
    _check_foreign(output)
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / LOCK).open("w")
    except OSError as error:
        raise TableError(
            f"{output} cannot hold tables ({error.strerror}): choose another output"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TableError(f"another run writes to {output}: wait for it to end") from error
        _clear_up(output)
        try:
            yield
        finally:
            shutil.rmtree(work / RUN, ignore_errors=True)


def scratch(output: Path, name: str) -> Path:
    """Return an absent path for unfinished work, on the file system of the output."""
    return _absent(output / WORK / RUN / name)


def delete_scratch(output: Path, name: str) -> None:
    """Delete unfinished work that is not needed any more."""
    shutil.rmtree(output / WORK / RUN / name)


def write(dataframe: DataFrame, table: TableSchema, output: Path) -> Path:
    """Write the rows as the table, in place of what was there; return the table's directory.

    Columns are matched by name and put into the order of the schema. Raises TableError if a column
    is missing, unknown or of another type.
    """
    temporary = scratch(output, table.name)
    writer = conform(dataframe, table).write.partitionBy(*table.partition_by)
    writer.parquet(str(temporary))
    return publish(temporary, table, output)


def write_rows(
    spark: SparkSession, rows: Sequence[tuple[object, ...]], table: TableSchema, output: Path
) -> Path:
    """Write a few rows that the driver has, in the order of the columns; return the directory."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    # With Arrow, Spark starts no Python worker for them.
    schema = to_arrow_schema(table.struct(), timezone="UTC")
    arrays = [
        pyarrow.array([row[place] for row in rows], type=field.type)
        for place, field in enumerate(schema)
    ]
    made = pyarrow.Table.from_arrays(arrays, schema=schema)
    return write(spark.createDataFrame(made).coalesce(1), table, output)


def publish(temporary: Path, table: TableSchema, output: Path) -> Path:
    """Move a directory of finished Parquet files into the table's place; return that place."""
    (temporary / SUCCESS_FILE).touch()
    (temporary / SCHEMA_FILE).write_text(json.dumps(_description(table), indent=1) + "\n")
    final = output / table.name
    # The name does not depend on the run, so the next run can find the old table here.
    replaced = _absent(output / WORK / REPLACED / table.name)
    # Between the two renames there is no table; `claim` then finds the old one and puts it back.
    if final.exists():
        final.rename(replaced)
    temporary.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def exists(table: TableSchema, output: Path) -> bool:
    """Return whether the output has a finished table of this name, of whatever version."""
    return (output / table.name / SCHEMA_FILE).is_file()


def read(spark: SparkSession, table: TableSchema, output: Path) -> DataFrame:
    """Return the rows of the table. Raises TableError if it is absent, unfinished or unknown."""
    path = output / table.name
    check(table, output)
    return spark.read.schema(table.struct()).parquet(str(path)).select(*table.column_names())


def check(table: TableSchema, output: Path) -> None:
    """Raise TableError unless the table is there, finished, and of the version known here."""
    path = output / table.name
    if not path.is_dir():
        raise TableError(f"{path} is missing: let `viewstamp analyze --output {output}` write it")
    if not (path / SUCCESS_FILE).is_file():
        raise TableError(f"{path} has no {SUCCESS_FILE}, its writer did not finish: write it again")
    version = _version(path / SCHEMA_FILE)
    if version != SCHEMA_VERSION:
        raise TableError(
            f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}:"
            " read it with the program that wrote it, or write it again"
        )


def conform(dataframe: DataFrame, table: TableSchema) -> DataFrame:
    """Return the table's columns in order. Raises TableError if they differ."""
    want = {field.name: field.dataType.simpleString() for field in table.struct()}
    have = {field.name: field.dataType.simpleString() for field in dataframe.schema}
    wrong = [f"{name} is missing" for name in want if name not in have]
    wrong += [f"{name} is unknown" for name in have if name not in want]
    wrong += [
        f"{name} is {have[name]} and must be {kind}"
        for name, kind in want.items()
        if name in have and have[name] != kind
    ]
    if wrong:
        raise TableError(f"rows do not fit the table {table.name}: {'; '.join(wrong)}")
    return dataframe.select(*want)


def _description(table: TableSchema) -> dict[str, object]:
    """Return what `_schema.json` says."""
    columns = {field.name: field.dataType.simpleString() for field in table.struct()}
    return {
        "schema_version": SCHEMA_VERSION,
        "table": table.name,
        "columns": columns,
        "partition_by": list(table.partition_by),
    }


def _version(path: Path) -> object:
    """Return the version that a description names. Raises TableError if it names none."""
    try:
        return json.loads(path.read_text())["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{path} does not name a schema version ({type(error).__name__}): write the table again"
        ) from error


def _check_foreign(output: Path) -> None:
    """Raise TableError if the output directory belongs to something else."""
    if not output.is_dir():
        return
    present = {path.name for path in output.iterdir()}
    if present and WORK not in present:
        raise TableError(
            f"{output} holds something else ({min(present)}): choose a new directory for tables"
        )
    for name in sorted(present & TABLES.keys()):
        if not (output / name / SCHEMA_FILE).is_file():
            raise TableError(f"{output / name} is no table of this program: move it away")


def _absent(path: Path) -> Path:
    """Delete the file or directory at the path; its parent exists afterwards."""
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _clear_up(output: Path) -> None:
    """Put back tables that a killed run had moved aside, and delete its unfinished work.

    Java of the killed run may still write there; the run after this one deletes such files.
    """
    work = output / WORK
    for replaced in sorted((work / REPLACED).glob("*")):
        if not (output / replaced.name).exists():
            replaced.rename(output / replaced.name)
    for leftover in sorted(work.iterdir()):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
