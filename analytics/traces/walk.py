"""Every trace visited once: one row per trace, from which most trace tables follow.

Spans are brought together by trace and sorted so that the ones that matter come first; each trace
is then walked in plain Python, streamed through Arrow, with never more than one trace in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.traces import common
from analytics.traces.cause import root_cause
from analytics.traces.path import critical_path, savings
from analytics.traces.tree import Trace, parents_of, root_of, tree_of

# Of a larger trace, the spans without parent, the failed and then the longest are walked; the time
# of the others counts for their parents. About 50 MB in a Python worker.
TRACE_SPANS_MAX: Final = 100_000
ROWS_PER_BATCH: Final = 4096
REASON_CHARACTERS_MAX: Final = 120
REASON_UNKNOWN: Final = "unknown"

# Where producers say why a span failed, the most telling first.
REASON_ATTRIBUTES: Final = (
    "viewstamp.reason",
    "error.type",
    "exception.type",
    "rpc.grpc.status_code",
    "http.response.status_code",
    "http.status_code",
)
EXCEPTION_EVENT: Final = "exception"

# One row per trace, named after its root. `path` is empty for no trace: the root is always on it.
WALKED_COLUMNS: Final = (
    "trace_id STRING, rpc STRING, service STRING, start_us BIGINT, end_us BIGINT,"
    " duration_us DOUBLE, error BOOLEAN,"
    " path ARRAY<STRUCT<stage: STRING, on_path_us: BIGINT, saving_us: BIGINT>>,"
    " cause STRUCT<service: STRING, reason: STRING, propagated_to: STRING>"
)
_ARROW: Final = pa.schema(
    [
        ("trace_id", pa.string()),
        ("rpc", pa.string()),
        ("service", pa.string()),
        ("start_us", pa.int64()),
        ("end_us", pa.int64()),
        ("duration_us", pa.float64()),
        ("error", pa.bool_()),
        (
            "path",
            pa.list_(
                pa.struct(
                    [
                        ("stage", pa.string()),
                        ("on_path_us", pa.int64()),
                        ("saving_us", pa.int64()),
                    ]
                )
            ),
        ),
        (
            "cause",
            pa.struct(
                [
                    ("service", pa.string()),
                    ("reason", pa.string()),
                    ("propagated_to", pa.string()),
                ]
            ),
        ),
    ]
)
# How many of the columns that are sent to Python, after the id of the trace, make up a `Trace`.
_TRACE_COLUMNS: Final = 10


def walked(spans: DataFrame) -> DataFrame:
    """Return one row per trace with WALKED_COLUMNS: its request, critical path and root cause.

    All spans of a trace go to one task: a trace is walked as a whole. A trace that is larger
    than others makes its task sort longer (on disk, if need be), but is cut at TRACE_SPANS_MAX
    before anything is built from it; salting would tear it apart. Many small traces on one key
    cannot happen, as trace ids are random.
    """
    columns = spans.select(*_sent())
    together = columns.repartition("trace_id").sortWithinPartitions(
        "trace_id",
        f.col("parent_id").isNotNull(),
        ~f.col("error"),
        f.col("duration_us").desc(),
        "span_id",
    )
    return together.mapInArrow(walk_batches, WALKED_COLUMNS)


def reason() -> Column:
    """Return why a span failed, in the words of its producer, cut to REASON_CHARACTERS_MAX."""
    exceptions = f.filter("events", lambda event: event["name"] == EXCEPTION_EVENT)
    thrown = f.get(exceptions, f.lit(0))["attributes"]["exception.type"]
    named = [f.col("attributes")[name] for name in REASON_ATTRIBUTES]
    message = f.substring("status_message", 1, REASON_CHARACTERS_MAX)
    known = [f.nullif(value, f.lit("")) for value in (*named, thrown, message)]
    return f.coalesce(*known, f.lit(REASON_UNKNOWN))


def walk_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row with WALKED_COLUMNS per trace; runs in the Python workers of Spark.

    The rows of one trace follow one another, also from one batch to the next; their columns are
    those that `walked` selects.
    """
    rows = chain.from_iterable(map(_rows, batches))
    results = (
        _result(trace_id, list(islice(group, TRACE_SPANS_MAX)))
        for trace_id, group in groupby(rows, key=itemgetter(0))
    )
    while some := list(islice(results, ROWS_PER_BATCH)):
        columns = zip(zip(*some, strict=True), _ARROW, strict=True)
        arrays = [pa.array(column, type=field.type) for column, field in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _sent() -> list[Column]:
    """Return the columns that Python gets: the trace's id, the fields of `Trace`, the request."""
    error = common.is_error()
    return [
        f.col("trace_id"),
        f.coalesce("span_id", f.lit("")).alias("span_id"),
        common.parent_id().alias("parent_id"),
        f.coalesce("start_us", f.lit(0)).alias("start_us"),
        f.coalesce("end_us", "start_us", f.lit(0)).alias("end_us"),
        f.concat_ws("|", "service", "instance").alias("host"),
        f.coalesce(f.col("kind") == "SERVER", f.lit(False)).alias("synchronous"),
        f.coalesce(common.stage(), f.lit("")).alias("stage"),
        f.coalesce("service", f.lit("")).alias("service"),
        error.alias("error"),
        # The text of what did not fail is of no use, and would be most of what is sent.
        f.when(error, reason()).alias("reason"),
        f.col("rpc"),
        f.coalesce("duration_us", f.lit(0.0)).alias("duration_us"),
    ]


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a batch."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _result(trace_id: str, rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the row of one trace, in the order of WALKED_COLUMNS."""
    columns = list(zip(*rows, strict=True))[1:]
    trace = Trace(*columns[:_TRACE_COLUMNS])
    rpcs, durations = columns[_TRACE_COLUMNS:]
    parents = parents_of(trace)
    root = root_of(trace, parents)
    cause = root_cause(trace, parents)
    return (
        trace_id,
        rpcs[root],
        trace.services[root],
        trace.starts_us[root],
        trace.ends_us[root],
        durations[root],
        trace.errors[root],
        _path(trace, parents, root),
        cause and (cause.service, cause.reason, cause.propagated_to),
    )


def _path(trace: Trace, parents: list[int], root: int) -> list[tuple[str, int, int]]:
    """Return stage, microseconds on the path and microseconds to be saved, for each stage on it."""
    tree = tree_of(trace, parents, root)
    on_path, parallel = critical_path(tree, trace.stages, trace.span_ids)
    saved = savings(tree, trace.stages, on_path, parallel)
    return [(stage, us, saved[stage]) for stage, us in on_path.items()]
