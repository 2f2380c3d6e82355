"""OTLP JSON lines become the tables `spans`, `quarantine` and `data_quality`.

Lines are parsed once, into staged Parquet; what follows reads that. A task reads about 64 MiB, so
memory does not grow with the input, and nothing that grows with it is collected.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from analytics import tables
from analytics.otlp import files, lines, quality
from analytics.otlp.deduplicate import deduplicate
from analytics.otlp.flatten import SKIPPED, flatten
from analytics.schema import DATA_QUALITY, QUARANTINE, SPANS

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

STAGED: Final = "staged"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a reader of the tables must know: a name to look for, and a sentence."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Ingested:
    """What was read: the rows of `data_quality`, and what to warn of."""

    quality: dict[str, float]
    notices: tuple[Notice, ...]


def ingest(
    spark: SparkSession, inputs: Sequence[Path], output: Path, late_before_us: int | None = None
) -> Ingested:
    """Read files and directories of OTLP JSON lines; write the three tables.

    The caller holds `tables.claim(output)`. Spans that start before `late_before_us` are put into
    quarantine. Raises NoInputError if there is no file. What is bad in files never raises: it is
    counted, and `quality.enforce` decides.
    """
    plan = files.plan(inputs)
    staged = stage(spark, read(spark, plan), output, late_before_us)
    counts = count(staged)
    tables.write(deduplicate(spans_of(staged), output), SPANS, output)
    tables.write(quarantined(staged).distinct(), QUARANTINE, output)
    shutil.rmtree(output / tables.WORK / STAGED)
    return conclude(spark, output, counts | {"files": plan.files})


def read(spark: SparkSession, plan: files.Plan) -> DataFrame:
    """Return the lines of a plan as rows of `lines.COLUMNS`, one task for each of its tasks."""
    numbers = spark.range(0, len(plan.tasks), 1, max(len(plan.tasks), 1))
    return numbers.mapInArrow(functools.partial(_read_tasks, plan.tasks), lines.COLUMNS)


def stage(
    spark: SparkSession, rows: DataFrame, output: Path, late_before_us: int | None
) -> DataFrame:
    """Parse the lines, once, into Parquet beside the tables; return those rows."""
    path = str(tables.scratch(output, STAGED))
    flat = flatten(rows, late_before_us)
    flat.write.parquet(path)
    return spark.read.schema(flat.schema).parquet(path)


def spans_of(staged: DataFrame) -> DataFrame:
    """Return the staged rows that are spans, as the table has them, not yet deduplicated."""
    return staged.where("problem IS NULL").select(*SPANS.column_names())


def count(staged: DataFrame) -> dict[str, int]:
    """Return how many lines there were, how many of those that hold no span, and spans."""
    from pyspark.sql import functions as f

    groups = staged.groupBy("problem").agg(
        f.count("*").alias("rows"), f.count_if(f.col("is_first")).alias("lines")
    )
    found = {row.problem: row for row in groups.collect()}
    # A file that breaks off is a problem, but no line.
    total = sum(row.lines for problem, row in found.items() if problem != lines.UNREADABLE)
    counts = {"lines": total, "spans_read": found[None].rows if None in found else 0}
    return counts | {f"lines_{name}": found[name].lines if name in found else 0 for name in SKIPPED}


def quarantined(staged: DataFrame) -> DataFrame:
    """Return the rows of `quarantine`, with line numbers, which only these are worth."""
    from pyspark.sql import functions as f

    bad = staged.where(f.col("problem").isNotNull() & ~f.col("problem").isin(*SKIPPED))
    chosen = bad.select(*lines.PLACE, f.col("problem").alias("reason"), "excerpt")
    ordered = chosen.repartition("source").sortWithinPartitions(*lines.PLACE)
    return ordered.mapInArrow(lines.number, QUARANTINE.columns)


def conclude(spark: SparkSession, output: Path, counts: dict[str, int]) -> Ingested:
    """Measure the tables just written, write `data_quality`, and return what to say of it."""
    spans = tables.read(spark, SPANS, output)
    values = quality.measure(spans, tables.read(spark, QUARANTINE, output), counts)
    measured = sorted((metric, float(value)) for metric, value in values.items())
    rows = spark.createDataFrame(measured, DATA_QUALITY.columns)
    tables.write(rows.coalesce(1), DATA_QUALITY, output)
    return Ingested(values, tuple(notices(values, output)))


def notices(values: dict[str, float], output: Path) -> Iterator[Notice]:
    """Yield what a reader must know about data of this quality."""
    for name, metric, text in NOTICES:
        if values[metric] > 0:
            yield Notice(name, text.format(count=int(values[metric]), output=output))
    if values["spans"] > 0 and values["spans_of_viewstamp"] == 0:
        yield Notice(
            "no_viewstamp_attributes",
            "no span has attributes of Viewstamp: stages, replicas and view changes stay empty",
        )


# Name, the metric that gives rise to it, and the sentence.
NOTICES: Final = (
    ("unreadable_file", "quarantined_unreadable_file",
     "{count} files cannot be read, or not to their end: see {output}/quarantine"),
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


def _read_tasks(
    tasks: tuple[tuple[files.Split, ...], ...], numbers: Iterable[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the lines of the tasks with these numbers. Runs in a worker."""
    for batch in numbers:
        chosen: list[Any] = batch.column(0).to_pylist()
        for number in chosen:
            yield from lines.read_all(tasks[number])
