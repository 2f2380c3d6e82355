"""OTLP JSON lines become the tables `spans`, `quarantine` and `data_quality`.

Lines are parsed once, into files that become the table's files. Only files with a span that was
written more than once are rewritten. A task reads about 64 MiB and the driver collects only small
summaries, so memory does not grow with the input.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import tables
from analytics.otlp import (
    canonical,
    columnar,
    files,
    foreign_files,
    lines,
    mended_lines,
    merge,
    quality,
    staging,
)
from analytics.otlp.flatten import SKIPPED, flatten
from analytics.schema import DATA_QUALITY, QUARANTINE, SPANS

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

STAGED: Final = "staged"
COUNTS: Final = ("lines", "spans_read", *(f"lines_{name}" for name in SKIPPED))


@dataclass(frozen=True, slots=True)
class StagedLines:
    """Parsed lines: the place of their rows, the rows, and the counts."""

    place: Path
    rows: DataFrame
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a reader of the tables must know: a name to look for, and a sentence."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Ingested:
    """The result of reading: the rows of `data_quality`, and warnings."""

    quality: dict[str, float]
    notices: tuple[Notice, ...]


def ingest(
    spark: SparkSession, inputs: Sequence[Path], output: Path, late_before_us: int | None = None
) -> Ingested:
    """Read files and directories of OTLP JSON lines; write the three tables.

    The caller holds `tables.claim(output)`. Spans that start before `late_before_us` are put into
    quarantine. Raises NoInputError if there is no file. Bad content of files never raises: it is
    counted, and `quality.enforce` decides.
    """
    plan = files.plan(inputs, spark.sparkContext.defaultParallelism)
    place = tables.scratch(output, STAGED)
    staged = _staged(spark, _read(spark, plan, place, late_before_us), place, late_before_us)
    merge.adopt_spans(spans_of(staged), staged.place, output)
    tables.write(quarantined(staged).distinct(), QUARANTINE, output)
    shutil.rmtree(staged.place)
    return conclude(spark, output, count(staged) | {"files": plan.files})


def stage(
    spark: SparkSession, rows: DataFrame, output: Path, late_before_us: int | None
) -> StagedLines:
    """Parse lines (`lines.COLUMNS`), once, into Parquet beside the tables."""
    place = tables.scratch(output, STAGED)
    work = functools.partial(_stage_lines, place, span_schema()[0], late_before_us)
    return _staged(spark, rows.mapInArrow(work, staging.COLUMNS), place, late_before_us)


def _read(
    spark: SparkSession, plan: files.ReadPlan, place: Path, late_before_us: int | None
) -> DataFrame:
    """Return the results of a plan's tasks (`staging.COLUMNS`); Spark runs one task for each."""
    numbers = spark.range(0, len(plan.tasks), 1, max(len(plan.tasks), 1))
    work = functools.partial(_stage_tasks, plan.tasks, place, span_schema()[0], late_before_us)
    return numbers.mapInArrow(work, staging.COLUMNS)


def _staged(
    spark: SparkSession, written: DataFrame, place: Path, late_before_us: int | None
) -> StagedLines:
    """Let tasks write rows of `columnar` in the layout of `spans`; then `flatten` odd lines.

    Rows that are not spans go to the partition without a date, which has no spans. The driver
    collects the results of tasks: for 64 MiB of lines, the names of a few files.
    """
    from pyspark.sql import functions as f

    told = written.collect()
    staging.finish(place, (name for row in told for name in row.files))
    counts = dict.fromkeys(COUNTS, 0)
    counts |= {name: sum(row[name] for row in told) for name in staging.COUNTS}
    is_span, is_odd = f.col("date").isNotNull(), f.col("name") == columnar.ODD
    staged = spark.read.schema(SPANS.struct()).parquet(str(place))
    if counts.pop(staging.ODD):
        packed = columnar.PACKED_ODD.items()
        odd = staged.where(~is_span & is_odd).select(
            *(f.col(at).alias(name) for name, at in packed)
        )
        for name, value in _stage_odd(odd, place, late_before_us).items():
            counts[name] += value
        staged = spark.read.schema(SPANS.struct()).parquet(str(place))
    return StagedLines(place, staged.where(is_span | ~is_odd), counts)


def _stage_odd(odd: DataFrame, place: Path, late_before_us: int | None) -> dict[str, int]:
    """Add odd lines to the staged rows; return their counts."""
    from pyspark.sql import functions as f

    flat = flatten(odd, late_before_us)
    problem, is_first = f.col("problem"), f.col("is_first")
    # A file that breaks off, or what was left out of a line, is a problem, but not a line.
    no_line = (lines.UNREADABLE, lines.SKIPPED_FILE, *canonical.REASONS)
    is_line = is_first & ~f.coalesce(problem.isin(*no_line), f.lit(False))
    counts = {"lines": is_line, "spans_read": problem.isNull()} | {
        f"lines_{name}": is_first & problem.eqNullSafe(name) for name in SKIPPED
    }
    kept = {at: f.col(name) for name, at in columnar.PACKED.items()}
    packed = [
        f.when(problem.isNull(), f.col(name)).otherwise(kept.get(name, f.lit(None))).alias(name)
        for name in SPANS.column_names()
    ]
    return _write(flat, place, counts, packed, problem.isNull() | ~problem.isin(*SKIPPED))


def _write(
    rows: DataFrame,
    place: Path,
    counts: dict[str, Column],
    columns: Sequence[Column],
    is_wanted: Column,
) -> dict[str, int]:
    """Add rows to the staged ones; return for each condition the number of rows that meet it."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation()
    observed = rows.observe(
        observation, *(f.count_if(condition).alias(name) for name, condition in counts.items())
    )
    chosen = observed.where(is_wanted).select(*columns)
    chosen.write.mode("append").partitionBy(*SPANS.partition_by).parquet(str(place))
    return {name: int(value) for name, value in observation.get.items()}


def spans_of(staged: StagedLines) -> DataFrame:
    """Return the staged rows that are spans, as the table has them, not yet deduplicated."""
    return staged.rows.where("date IS NOT NULL").select(*SPANS.column_names())


def count(staged: StagedLines) -> dict[str, int]:
    """Return how many lines there were, how many of those that hold no span, and spans."""
    return staged.counts


def quarantined(staged: StagedLines) -> DataFrame:
    """Return the rows of `quarantine`, with line numbers, which are too costly for all rows."""
    from pyspark.sql import functions as f

    bad = staged.rows.where("date IS NULL")
    chosen = bad.select(*(f.col(at).alias(name) for name, at in columnar.PACKED.items()))
    named = chosen.withColumnRenamed("problem", "reason")
    ordered = named.repartition("source").sortWithinPartitions(*lines.PLACE)
    return ordered.mapInArrow(lines.number, QUARANTINE.columns)


def conclude(spark: SparkSession, output: Path, counts: dict[str, int]) -> Ingested:
    """Measure the written tables, write `data_quality`, and return the warnings."""
    spans = tables.read(spark, SPANS, output)
    values = quality.measure(spans, tables.read(spark, QUARANTINE, output), counts)
    measured = sorted((metric, float(value)) for metric, value in values.items())
    tables.write_rows(spark, measured, DATA_QUALITY, output)
    return Ingested(values, tuple(notices(values, output)))


def notices(values: dict[str, float], output: Path) -> Iterator[Notice]:
    """Yield the notices that follow from these quality rows."""
    for name, metric, text in NOTICES:
        if values[metric] > 0:
            yield Notice(name, text.format(count=int(values[metric]), output=output))
    if values["spans"] > 0 and values["spans_of_viewstamp"] == 0:
        yield Notice(
            "no_viewstamp_attributes",
            "no span has attributes of Viewstamp: stages, replicas and view changes stay empty",
        )


# The name of the notice, the metric that causes it, and the sentence.
NOTICES: Final = (
    ("unreadable_file", "quarantined_unreadable_file",
     "{count} files cannot be read, or not to their end: see {output}/quarantine"),
    ("skipped_file", "files_skipped",
     "{count} files are skipped, because they hold no OTLP: {output}/quarantine names them"),
    ("out_of_range", "quarantined_out_of_range",
     "{count} spans are of before 2000 or after 2100, and are left out: see {output}/quarantine"),
    ("quarantined", "quarantined",
     "{count} lines or spans could not be used: see {output}/quarantine for the reasons"),
    ("other_signals", "lines_metrics", "{count} lines of metrics were skipped: they hold no spans"),
    ("other_signals", "lines_logs", "{count} lines of logs were skipped: they hold no spans"),
    ("duplicates", "duplicates",
     "{count} spans were written more than once; the fullest copy of each is kept"),
    ("orphans", "orphans",
     "the parents of {count} spans are not here: their paths begin in the middle"),
    ("clock_skew", "starts_before_parent",
     "{count} spans start before their parent: clocks of the machines differ"),
    ("negative_durations", "negative_durations",
     "{count} spans end before they start; they count as 0 long"),
    ("without_service", "without_service", "{count} spans name no service"),
)  # fmt: skip


def span_schema() -> tuple[pyarrow.Schema, str]:
    """Return what `columnar` makes, for Arrow and for Spark."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = f"{SPANS.columns}, {columnar.IS_FIRST} BOOLEAN"
    struct = StructType.fromDDL(columns)
    assert isinstance(struct, StructType), f"{columns!r} is no list of columns"
    return to_arrow_schema(struct), columns


def _stage_tasks(
    tasks: tuple[tuple[files.Split, ...], ...],
    place: Path,
    schema: pyarrow.Schema,
    late_before_us: int | None,
    numbers: Iterable[pyarrow.RecordBatch],
) -> Iterator[pyarrow.RecordBatch]:
    """Write the rows of the tasks with these numbers. Runs in a worker."""
    chosen = (number for batch in numbers for number in batch.column(0).to_pylist())
    batches = (batch for number in chosen for batch in foreign_files.read_all(tasks[number]))
    yield from _stage_lines(place, schema, late_before_us, batches)


def _stage_lines(
    place: Path,
    schema: pyarrow.Schema,
    late_before_us: int | None,
    batches: Iterable[pyarrow.RecordBatch],
) -> Iterator[pyarrow.RecordBatch]:
    """Write the rows of lines. Runs in a worker."""
    yield from staging.write(place, mended_lines.rows(schema, late_before_us, batches))
