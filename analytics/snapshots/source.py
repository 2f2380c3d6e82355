"""The Spark data source `viewstamp-snapshot`: snapshot directories read in place.

Spark plans and reads in Python processes of its own, so a partition carries all that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from analytics.snapshots.errors import SnapshotError
from analytics.snapshots.selection import KIND, VIEW, selection_of
from analytics.snapshots.views import ENTITIES, SectionSlice, View, view_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

FORMAT: Final = "viewstamp-snapshot"
# Rows that are held in memory together.
BATCH_ROWS: Final = 4096
# The most slices in one task, however small they are: each opens the layers of a section.
SLICES_MAX: Final = 128


class SnapshotDataSource(DataSource):
    """Reads views of snapshots; the options are those of `analytics.snapshots.selection`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the view. Raises SnapshotError."""
        return self._view().struct

    def reader(self, schema: StructType) -> SnapshotReader:
        """Return a reader. Raises SnapshotError for a schema that is not the view's."""
        view = self._view()
        if schema.fieldNames() != view.struct.fieldNames():
            raise SnapshotError(
                f"{FORMAT} has the columns {view.struct.fieldNames()}: leave out `.schema(...)`"
            )
        return SnapshotReader(view, dict(self.options))

    def _view(self) -> View:
        return view_of(self.options.get(VIEW, ENTITIES), self.options.get(KIND))


@dataclass(frozen=True)
class Slices(InputPartition):
    """The slices that one task reads, in order."""

    slices: tuple[SectionSlice, ...]


class SnapshotReader(DataSourceReader):
    """Divides a selection into partitions, and reads one."""

    def __init__(self, view: View, options: dict[str, str]) -> None:
        """Keep the options; open no file yet."""
        self._view = view
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions, after reading manifests and indexes. Raises SnapshotError."""
        selected = selection_of(self._options)
        return list(_together(self._view.plan(selected), selected.partition_bytes))

    def read(self, partition: InputPartition | None) -> Iterator[RecordBatch]:
        """Yield the rows of a partition. Spark gives None if there is no partition."""
        if partition is None:
            return
        assert isinstance(partition, Slices), f"{partition} is of another reader"
        rows = chain.from_iterable(map(self._view.rows, partition.slices))
        while batch := list(islice(rows, BATCH_ROWS)):
            yield record_batch(batch, self._view.struct)


def _together(slices: Iterable[SectionSlice], work_bytes_max: int) -> Iterator[Slices]:
    """Put small slices together, since each task costs some 50 ms before it begins."""
    held: list[SectionSlice] = []
    work_bytes = 0
    for piece in slices:
        work_bytes += piece.work_bytes
        if held and (work_bytes > work_bytes_max or len(held) >= SLICES_MAX):
            yield Slices(tuple(held))
            held, work_bytes = [], piece.work_bytes
        held.append(piece)
    if held:
        yield Slices(tuple(held))


def record_batch(rows: Sequence[tuple[Any, ...]], struct: StructType) -> RecordBatch:
    """Return rows as an Arrow batch. Their values are in the order of the columns."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(struct, timezone="UTC")
    arrays = [
        pyarrow.array(values, type=field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
