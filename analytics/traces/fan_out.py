"""Finds the slowest and the median call of each span that makes several calls."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.traces.forest import Integers

# A span with fewer calls does not wait for the slowest of several.
FAN_OUT_MIN: Final = 2
FAN_OUT_COLUMNS: Final = (
    "parent_id: STRING, op: BIGINT, slowest_stage: STRING, max_us: DOUBLE, median_us: DOUBLE"
)
FAN_OUT: Final = pa.struct(
    [
        ("parent_id", pa.string()),
        ("op", pa.int64()),
        ("slowest_stage", pa.string()),
        ("max_us", pa.float64()),
        ("median_us", pa.float64()),
    ]
)


def fan_outs(table: pa.Table, traces: Integers, trace_count: int) -> pa.ListArray:
    """Return the fan-outs of each trace: spans that FAN_OUT_MIN or more calls name as parent.

    `traces` has the trace of each row. Among equally long calls, the last stage by name counts as
    the slowest; of two medians the lower one counts.
    """
    is_call = pc.and_(table["call"], pc.is_valid(table["parent_id"]))
    rows = np.flatnonzero(is_call.to_numpy())
    calls = table.take(pa.array(rows))
    parents = calls["parent_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    durations = calls["duration_us"].to_numpy()
    keys = (_ranks(calls["stage"].combine_chunks()), durations, parents, traces[rows])
    order = np.lexsort(keys)
    parents, of_trace = parents[order], traces[rows][order]
    changes = (np.diff(parents, prepend=-1) != 0) | (np.diff(of_trace, prepend=-1) != 0)
    firsts = np.flatnonzero(changes)
    sizes = np.diff(np.append(firsts, len(order)))
    is_several = sizes >= FAN_OUT_MIN
    firsts, sizes = firsts[is_several], sizes[is_several]
    slowest = pa.array(order[firsts + sizes - 1])
    columns = [
        calls["parent_id"].take(slowest),
        _last_ops(calls["op"], order, firsts, sizes),
        calls["stage"].take(slowest),
        calls["duration_us"].take(slowest),
        pa.array(durations[order[firsts + (sizes - 1) // 2]]),
    ]
    offsets = np.searchsorted(of_trace[firsts], np.arange(trace_count + 1)).astype(np.int32)
    pieces = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]
    structs = pa.StructArray.from_arrays(pieces, fields=list(FAN_OUT))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def _ranks(names: pa.StringArray) -> Integers:
    """Return the rank of each name in the order of names."""
    encoded = names.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    return np.asarray(ranks[encoded.indices.to_numpy()])


def _last_ops(
    column: pa.ChunkedArray, order: Integers, firsts: Integers, sizes: Integers
) -> pa.Int64Array:
    """Return the largest op among the calls of each fan-out, null where none names one."""
    nothing = np.iinfo(np.int64).min
    ops = pc.fill_null(column, nothing).to_numpy()[order]
    members = np.repeat(firsts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    starts = np.cumsum(sizes) - sizes
    largest = np.maximum.reduceat(ops[members], starts) if len(sizes) else ops[:0]
    return pa.array(largest, mask=largest == nothing)
