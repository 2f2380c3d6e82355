"""Visits every trace once and makes one row per trace, from which most trace tables follow.

Spans are brought together by trace and streamed through Arrow. Small traces, the great majority,
are walked many at a time (`forest`, `replay`); each larger trace is walked by itself (`tree`,
`path`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.traces import common, forest, path, replay
from analytics.traces.cause import root_cause
from analytics.traces.fan_out import FAN_OUT_COLUMNS, fan_outs
from analytics.traces.forest import Flags, Integers, Spans
from analytics.traces.tree import NO_PARENT, Trace, parents_of, tree_of

# In a larger trace, the walk takes the spans without parent, the failed and then the longest ones;
# the time of the others counts for their parents. About 50 MB in a Python worker.
TRACE_SPANS_MAX: Final = 100_000
# Larger traces are walked one by one: each of their stages and children would cost all traces a
# step.
FOREST_TRACE_SPANS_MAX: Final = 256
# About so many spans are walked together, and the rest of the last trace with them.
ROWS_PER_BATCH: Final = 65_536
REASON_CHARACTERS_MAX: Final = 120
REASON_UNKNOWN: Final = "unknown"

# The places where producers say why a span failed, the most informative first.
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
# `seen` is what `quality` sums up, null of traces from which spans may have been cut.
WALKED_COLUMNS: Final = (
    "trace_id STRING, rpc STRING, service STRING, start_us BIGINT, end_us BIGINT,"
    " duration_us DOUBLE, error BOOLEAN,"
    " path ARRAY<STRUCT<stage: STRING, on_path_us: BIGINT, saving_us: BIGINT>>,"
    " cause STRUCT<service: STRING, reason: STRING, propagated_to: STRING>,"
    f" fan_outs ARRAY<STRUCT<{FAN_OUT_COLUMNS}>>,"
    " seen STRUCT<spans: BIGINT, orphans: BIGINT, roots: BIGINT, skewed: BIGINT>"
)
_STEP: Final = pa.struct(
    [("stage", pa.string()), ("on_path_us", pa.int64()), ("saving_us", pa.int64())]
)
_CAUSE: Final = pa.struct(
    [("service", pa.string()), ("reason", pa.string()), ("propagated_to", pa.string())]
)
_SEEN: Final = pa.struct([(name, pa.int64()) for name in ("spans", "orphans", "roots", "skewed")])
# The columns that Python gets.
SENT_SCHEMA: Final = pa.schema(
    [
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("parent_id", pa.string()),
        ("start_us", pa.int64()),
        ("end_us", pa.int64()),
        ("host", pa.string()),
        ("synchronous", pa.bool_()),
        ("stage", pa.string()),
        ("service", pa.string()),
        ("error", pa.bool_()),
        ("reason", pa.string()),
        ("rpc", pa.string()),
        ("duration_us", pa.float64()),
        ("call", pa.bool_()),
        ("op", pa.int64()),
    ]
)
# The columns that make up a `Trace`, in the order of its fields.
_TRACE_COLUMNS: Final = SENT_SCHEMA.names[1:11]
# The root's columns that describe the trace, in the order of WALKED_COLUMNS.
_ROOT_COLUMNS: Final = (
    *("trace_id", "rpc", "service", "start_us", "end_us", "duration_us", "error"),
)


def walked(spans: DataFrame) -> DataFrame:
    """Return one row per trace with WALKED_COLUMNS: its request, critical path and root cause.

    All spans of a trace go to one task: a trace is walked as a whole. A trace that is larger
    than others makes its task sort longer (on disk, if need be), but is cut at TRACE_SPANS_MAX
    before anything is built from it; salting would tear it apart. Many small traces on one key
    cannot happen, as trace ids are random.
    """
    columns = spans.select(*_sent())
    together = columns.repartition("trace_id").sortWithinPartitions("trace_id", "span_id")
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

    The rows come ordered by trace and span, with the columns that `walked` selects; a trace may
    go on in the next batch.
    """
    for table in _whole_traces(batches):
        yield from _walk(table).to_batches()


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
        # The text of a span that did not fail is useless, and would be most of the data.
        f.when(error, reason()).alias("reason"),
        f.col("rpc"),
        f.coalesce("duration_us", f.lit(0.0)).alias("duration_us"),
        f.coalesce(f.col("kind").isin(*common.ENTRY_KINDS, *common.CALL_KINDS), f.lit(False)).alias(
            "call"
        ),
        f.col("op"),
    ]


def _whole_traces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of whole traces, of about ROWS_PER_BATCH rows."""
    kept: list[pa.RecordBatch] = []
    fresh = 0
    for batch in batches:
        kept.append(batch)
        fresh += batch.num_rows
        if fresh < ROWS_PER_BATCH:
            continue
        table = _table(kept)
        last = int(_firsts(table)[-1])
        if last > 0:
            yield table.slice(0, last)
        # The rest may be the beginning of an endless trace, so it is cut each time.
        kept, fresh = _cut(table.slice(last)).to_batches(), 0
    if kept:
        yield _table(kept)


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return batches as one table in one piece."""
    return pa.Table.from_batches([one.cast(SENT_SCHEMA) for one in batches]).combine_chunks()


def _firsts(table: pa.Table) -> Integers:
    """Return the row that each trace begins with."""
    ids = table["trace_id"].combine_chunks()
    changes = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1))
    return np.append(0, np.flatnonzero(changes.to_numpy(zero_copy_only=False)) + 1)


def _cut(trace: pa.Table) -> pa.Table:
    """Return at most TRACE_SPANS_MAX rows of one trace to walk."""
    if trace.num_rows <= TRACE_SPANS_MAX:
        return trace
    orders = {
        "named": (pc.is_valid(trace["parent_id"]), "ascending"),
        "failed": (trace["error"], "descending"),
        "duration_us": (trace["duration_us"], "descending"),
        "span_id": (trace["span_id"], "ascending"),
    }
    keys = pa.table({name: column for name, (column, _) in orders.items()})
    best = pc.sort_indices(keys, sort_keys=[(name, how) for name, (_, how) in orders.items()])
    return trace.take(pa.array(np.sort(best.to_numpy()[:TRACE_SPANS_MAX]))).combine_chunks()


@dataclass(frozen=True, slots=True)
class _Walk:
    """The result for some traces: the stages on their paths, trace by trace."""

    traces: Integers
    stages: Integers
    on_path_us: Integers
    saving_us: Integers


def _walk(table: pa.Table) -> pa.Table:
    """Return a row with WALKED_COLUMNS for each trace of a table of whole ones."""
    firsts = _firsts(table)
    sizes = np.diff(np.append(firsts, table.num_rows))
    if sizes.max() > TRACE_SPANS_MAX:
        traces = [_cut(table.slice(*one)) for one in zip(firsts, sizes, strict=True)]
        return _walk(pa.concat_tables(traces).combine_chunks())
    spans, stages = _spans(table, sizes)
    roots = forest.roots_of(spans)
    is_small = sizes <= FOREST_TRACE_SPANS_MAX
    walks = [_walk_small(spans, roots, is_small)]
    if not is_small.all():
        names = {name: number for number, name in enumerate(stages.to_pylist())}
        for one in np.flatnonzero(~is_small):
            first = firsts[one]
            rows = table.slice(first, sizes[one])
            walks.append(_walk_large(rows, names, int(roots[one] - first), int(one)))
    found = _assembled(table, roots, stages, walks)
    found = found.append_column("cause", _causes(table, firsts, sizes))
    found = found.append_column("fan_outs", fan_outs(table, spans.traces, len(sizes)))
    return found.append_column("seen", _seen(spans, firsts, sizes))


def _spans(table: pa.Table, sizes: Integers) -> tuple[Spans, pa.Array]:
    """Return the rows as the arrays that a forest grows from, and the names of their stages."""
    traces = np.repeat(np.arange(len(sizes)), sizes)
    hosts, _ = _numbers(table["host"])
    stages, names = _numbers(table["stage"])
    spans = Spans(
        traces=traces,
        parents=_parents(table, traces),
        named=_flags(pc.is_valid(table["parent_id"])),
        starts_us=table["start_us"].to_numpy(),
        ends_us=table["end_us"].to_numpy(),
        hosts=hosts,
        synchronous=_flags(table["synchronous"]),
        stages=stages,
    )
    return spans, names


def _numbers(column: pa.ChunkedArray) -> tuple[Integers, pa.Array]:
    """Return a number for each text, and the texts by number."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _flags(column: pa.ChunkedArray) -> Flags:
    """Return a column without nulls as an array."""
    return np.asarray(column.to_numpy())


def _parents(table: pa.Table, traces: Integers) -> Integers:
    """Return the row of each span's parent, NO_PARENT where it is not in the span's trace."""
    columns = [table[name].combine_chunks() for name in ("span_id", "parent_id")]
    encoded = pa.concat_arrays(columns).dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    own, above = numbers[: len(traces)], numbers[len(traces) :]
    keys, wanted = (traces * len(encoded.dictionary) + one for one in (own, above))
    order = np.argsort(keys, kind="stable")
    # Our tables never have two spans with one id; elsewhere the last of them is the parent.
    found = np.searchsorted(keys[order], wanted, side="right") - 1
    rows = order[np.maximum(found, 0)]
    is_there = (above >= 0) & (found >= 0) & (keys[rows] == wanted)
    return np.where(is_there, rows, NO_PARENT)


def _walk_small(spans: Spans, roots: Integers, is_small: Flags) -> _Walk:
    """Walk the small traces together."""
    if not is_small.all():
        chosen = np.flatnonzero(is_small)
        walk = _walk_small(*forest.some(spans, roots, is_small), np.ones(len(chosen), bool))
        return dataclasses.replace(walk, traces=chosen[walk.traces])
    if not len(roots):
        nothing = np.zeros(0, np.int64)
        return _Walk(nothing, nothing, nothing, nothing)
    trees = forest.grow(spans, roots)
    paths = forest.critical_paths(spans, trees)
    saved = replay.savings(spans, trees, paths)
    return _Walk(paths.traces, paths.stages, paths.on_path_us, saved)


def _walk_large(table: pa.Table, names: dict[str, int], root: int, number: int) -> _Walk:
    """Walk a single trace."""
    trace = _trace(table)
    tree = tree_of(trace, parents_of(trace), root)
    on_path, parallel = path.critical_path(tree, trace.stages, trace.span_ids)
    saved = path.savings(tree, trace.stages, on_path, parallel)
    rows = [(number, names[stage], us, saved[stage]) for stage, us in on_path.items()]
    return _Walk(*np.array(rows, np.int64).T)


def _trace(table: pa.Table) -> Trace:
    """Return the rows of one trace."""
    return Trace(*(table[name].to_pylist() for name in _TRACE_COLUMNS))


def _causes(table: pa.Table, firsts: Integers, sizes: Integers) -> pa.Array:
    """Return the root cause of each trace, null where nothing failed."""
    causes: list[tuple[str, str, str] | None] = [None] * len(firsts)
    failed = np.flatnonzero(np.add.reduceat(_flags(table["error"]).astype(np.int64), firsts))
    for number in failed:
        trace = _trace(table.slice(firsts[number], sizes[number]))
        cause = root_cause(trace, parents_of(trace))
        if cause is not None:
            causes[number] = (cause.service, cause.reason, cause.propagated_to)
    return pa.array(causes, _CAUSE)


def _seen(spans: Spans, firsts: Integers, sizes: Integers) -> pa.StructArray:
    """Return the counts for `quality` of each trace, null for traces that may have been cut."""
    has_parent = spans.parents != NO_PARENT
    above = np.where(has_parent, spans.parents, 0)
    outside = spans.starts_us < spans.starts_us[above]
    outside |= spans.ends_us > spans.ends_us[above]
    answers = spans.synchronous & has_parent & (spans.hosts != spans.hosts[above])
    found = (spans.named & ~has_parent, ~spans.named, answers & outside)
    counts = [sizes, *(np.add.reduceat(flags.astype(np.int64), firsts) for flags in found)]
    return pa.StructArray.from_arrays(
        [pa.array(one) for one in counts],
        fields=list(_SEEN),
        mask=pa.array(sizes >= TRACE_SPANS_MAX),
    )


def _assembled(table: pa.Table, roots: Integers, stages: pa.Array, walks: list[_Walk]) -> pa.Table:
    """Return the first columns of the rows of all traces, up to `path`."""
    traces = np.concatenate([walk.traces for walk in walks])
    order = np.argsort(traces, kind="stable")
    columns = [
        np.concatenate([getattr(walk, name) for walk in walks])[order]
        for name in ("stages", "on_path_us", "saving_us")
    ]
    steps = [stages.take(pa.array(columns[0])), pa.array(columns[1]), pa.array(columns[2])]
    offsets = np.searchsorted(traces[order], np.arange(len(roots) + 1)).astype(np.int32)
    paths = pa.ListArray.from_arrays(
        pa.array(offsets), pa.StructArray.from_arrays(steps, fields=list(_STEP))
    )
    of_root = table.select(_ROOT_COLUMNS).take(pa.array(roots))
    return of_root.append_column("path", paths)
