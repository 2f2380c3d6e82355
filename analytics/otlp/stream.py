"""The same tables, kept up to date while files grow: Structured Streaming over `source`.

Each line counts exactly once. Spark's checkpoint names the bytes of each batch before it is read,
so a batch that was cut short is read again with the same bytes. Merging it into the tables again
changes nothing (`merge`), and its counts are kept under the batch's number. All files are below the
output, so they are deleted together:

    <output>/.stream/checkpoint/        Spark's
    <output>/.stream/ledger/<n>.json    what batch n counted
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import tables
from analytics.otlp import ingest, merge
from analytics.otlp.source import (
    BATCH_BYTES_DEFAULT,
    FORMAT,
    SETTLED_MS_DEFAULT,
    LinesSource,
)
from analytics.schema import QUARANTINE, SPANS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STATE: Final = ".stream"
CHECKPOINT: Final = "checkpoint"
LEDGER: Final = "ledger"


def start(
    spark: SparkSession,
    inputs: Sequence[Path],
    output: Path,
    *,
    every_s: int | None = None,
    settled_ms: int = SETTLED_MS_DEFAULT,
    batch_bytes: int = BATCH_BYTES_DEFAULT,
    late_before_us: int | None = None,
    guard: AbstractContextManager[object] | None = None,
    progress: Callable[[str, float | None], None] | None = None,
) -> StreamingQuery:
    """Return a query that keeps `spans` and `quarantine` up to date; the caller awaits or stops it.

    Looks for new lines every `every_s` seconds; None reads the present lines and ends. A last line
    without its end, and a compressed file, wait until the file did not change for `settled_ms`.
    Tables change only while `guard` is entered; `progress` is called when a batch begins, and with
    its duration when it ends. The caller holds `tables.claim(output)`; `conclude` writes
    `data_quality`. Tables without a checkpoint are deleted, because nobody knows which lines are in
    them.
    """
    if not (output / STATE / CHECKPOINT).is_dir():
        forget(output)
        for table in (SPANS, QUARANTINE):
            shutil.rmtree(output / table.name, ignore_errors=True)
    spark.dataSource.register(LinesSource)
    options = {
        "inputs": json.dumps([str(path.absolute()) for path in inputs]),
        "settled_ms": str(settled_ms),
        "batch_bytes": str(batch_bytes),
    }
    rows = spark.readStream.format(FORMAT).options(**options).load()
    absorb = functools.partial(
        _absorb, output, late_before_us, guard or nullcontext(), progress or _tell_nobody
    )
    writer = rows.writeStream.foreachBatch(absorb)
    writer = writer.option("checkpointLocation", str(output / STATE / CHECKPOINT))
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def forget(output: Path) -> None:
    """Delete the record of how far files were read, because another writer replaces the tables."""
    shutil.rmtree(output / STATE, ignore_errors=True)


def conclude(spark: SparkSession, output: Path) -> ingest.Ingested:
    """Write `data_quality` for all batches so far, and return the warnings."""
    totals: dict[str, int] = {}
    for path in sorted((output / STATE / LEDGER).glob("*.json")):
        for name, value in json.loads(path.read_text()).items():
            totals[name] = totals.get(name, 0) + value
    return ingest.conclude(spark, output, totals)


def _absorb(
    output: Path,
    late_before_us: int | None,
    guard: AbstractContextManager[object],
    progress: Callable[[str, float | None], None],
    rows: DataFrame,
    number: int,
) -> None:
    """Join one batch to the tables."""
    with guard:
        progress(f"reading batch {number}", None)
        begun = time.monotonic()
        staged = ingest.stage(rows.sparkSession, rows, output, late_before_us)
        merge.merge_spans(ingest.spans_of(staged), output)
        merge.merge_quarantine(ingest.quarantined(staged), output)
        counts = ingest.count(staged)
        _enter(output / STATE / LEDGER, number, counts)
        tables.delete_scratch(output, ingest.STAGED)
        took = time.monotonic() - begun
        progress(f"reading batch {number}, {counts['spans_read']:,} spans", took)


def _tell_nobody(step: str, seconds: float | None) -> None:
    pass


def _enter(ledger: Path, number: int, counts: dict[str, int]) -> None:
    """Write the counts of a batch. They replace those of an earlier try."""
    ledger.mkdir(parents=True, exist_ok=True)
    if number == 0:
        # A new checkpoint numbers batches from the beginning, and reads everything again.
        for path in ledger.glob("*.json"):
            path.unlink()
    temporary = ledger / f"{number}.new"
    temporary.write_text(json.dumps(counts))
    temporary.replace(ledger / f"{number}.json")
