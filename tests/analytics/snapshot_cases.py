"""Snapshot directories for the tests of analytics, and rows read without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from analytics.snapshots.source import SnapshotReader
from analytics.snapshots.views import view_of
from viewstamp.format.manifest import FRAME_BYTES
from viewstamp.format.prepare import checksum_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

HOUR_US = 3_600_000_000


def arrow(directory: Path, view: str = "entities", **options: str) -> pyarrow.Table:
    """Return a view as Spark's workers would read it, one partition after the other."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    chosen = view_of(view, options.get("kind"))
    reader = SnapshotReader(chosen, {"path": str(directory), "view": view, **options})
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    schema = to_arrow_schema(chosen.struct, timezone="UTC")
    return pyarrow.Table.from_batches(batches, schema=schema)


def rows(directory: Path, view: str = "entities", **options: str) -> list[dict[str, Any]]:
    """Return the rows of a view."""
    found: list[dict[str, Any]] = arrow(directory, view, **options).to_pylist()
    return found


def frame(spark: SparkSession, directory: Path, view: str, **options: str) -> DataFrame:
    """Return a view as a DataFrame without the cost of Spark's Python workers."""
    return spark.createDataFrame(arrow(directory, view, **options))


def collected(dataframe: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a small table, sorted."""
    found = dataframe.select(*columns) if columns else dataframe
    return sorted((tuple(row) for row in found.collect()), key=repr)


def layer_paths(directory: Path, copy: int) -> list[Path]:
    """Return the layers of one copy, the largest first."""
    found = (directory / "snapshots" / f"copy-{copy}" / "layers").iterdir()
    return sorted(found, key=lambda path: (-path.stat().st_size, path.name))


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def make_newer_manifest(path: Path) -> None:
    """Turn a manifest into an intact one of the next format version."""
    data = bytearray(path.read_bytes())
    data[36:38] = (2).to_bytes(2, "little")
    assert len(data) > FRAME_BYTES
    data[:32] = blake3(bytes(data[32:])).digest()
    path.write_bytes(data)


def make_newer_layer(path: Path) -> None:
    """Turn the header of a layer into an intact one of the next format version."""
    data = bytearray(path.read_bytes())
    data[20:22] = (2).to_bytes(2, "little")
    data[:16] = checksum_of(bytes(data[16:80]))
    path.write_bytes(data)


def all_copies(directory: Path, name: str) -> Sequence[Path]:
    """Return every copy of a file."""
    return [directory / "snapshots" / f"copy-{number}" / name for number in range(3)]
