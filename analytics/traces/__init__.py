"""Turns traces into tables: each table is a pure function from DataFrames to a DataFrame.

    common      percentiles, stages of spans, bands of requests
    tree        one trace in plain Python: parents, clocks, children cut to parents
    path        critical path of one trace, and what would be saved without a stage
    cause       root cause of one trace's errors
    forest      trees and paths of many small traces at once, by arrays; `replay`, their savings
    fan_out     calls that a span makes beside each other
    walk        spans -> one row per trace (the requests), by all of the above
    red         rpc_red, latency_heatmap
    stages      stage_latency, critical_path, stragglers
    graph       service_graph
    failures    errors, exemplars
    quality     what traces add to data_quality
    views       view_changes
    comparison  comparison of two periods

A trace is one request, named after its root. Spans of any producer will do; `docs/analytics.md`
says what each column means. Nothing is collected by the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from analytics import schema
from analytics.traces import comparison, failures, graph, quality, red, stages, views
from analytics.traces.common import MINUTE_US
from analytics.traces.comparison import Period
from analytics.traces.walk import walked

__all__ = ["Period", "tables"]


@contextmanager
def tables(
    spans: DataFrame,
    window_us: int = MINUTE_US,
    compare: tuple[Period, Period] | None = None,
) -> Iterator[dict[str, DataFrame]]:
    """Yield the trace tables of `spans` by name, to be written before the context ends.

    `spans` is read several times: pass a frame that reads from disk. Traces are walked once, and
    kept in memory or on local disks until the context ends. `compare` is (before, after); without
    it `comparison` is left out. `data_quality` has only the metrics of traces.
    """
    requests = walked(spans).persist(StorageLevel.MEMORY_AND_DISK)
    frames = {
        schema.RPC_RED.name: red.rpc_red(spans, window_us),
        schema.STAGE_LATENCY.name: stages.stage_latency(spans, requests),
        schema.LATENCY_HEATMAP.name: red.latency_heatmap(requests),
        schema.SERVICE_GRAPH.name: graph.service_graph(spans),
        schema.CRITICAL_PATH.name: stages.critical_path(requests),
        schema.STRAGGLERS.name: stages.stragglers(requests),
        schema.ERRORS.name: failures.errors(requests),
        schema.EXEMPLARS.name: failures.exemplars(requests),
        schema.DATA_QUALITY.name: quality.trace_quality(spans, requests),
        schema.VIEW_CHANGES.name: views.view_changes(spans),
    }
    if compare is not None:
        frames[schema.COMPARISON.name] = comparison.comparison(requests, *compare)
    try:
        yield frames
    finally:
        requests.unpersist()
