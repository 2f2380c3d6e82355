"""The quality metrics of traces, whether the walk saw the traces whole or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from analytics.traces.quality import METRICS, trace_quality
from analytics.traces.walk import walked
from tests.analytics.test_trace_walk import results, row
from tests.analytics.trace_spans import frame, random_traces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHOLE_MAX = 3


def test_spans_of_cut_traces_are_counted_again(spark: SparkSession) -> None:
    """Traces that the walk may have cut give the same rows as traces that it saw whole."""
    spans = frame(spark, random_traces(11, 150)).cache()
    requests = walked(spans).cache()
    found = []
    for is_whole in (f.lit(True), f.lit(False), f.hash("trace_id") % 2 == 0):
        seen = f.when(is_whole, f.col("seen"))
        rows = trace_quality(spans, requests.withColumn("seen", seen)).collect()
        found.append({one.metric: one.value for one in rows})
    assert found[0] == found[1] == found[2]
    assert found[0].keys() == METRICS.keys()
    for metric in ("trace_orphan_spans", "trace_skewed_spans", "trace_incomplete_traces"):
        assert found[0][metric] > 10, f"{metric} is hardly ever other than 0: nothing is shown"
    spans.unpersist()
    requests.unpersist()


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_what_may_be_cut_is_not_counted(monkeypatch: pytest.MonkeyPatch, batch_rows: int) -> None:
    """A trace with as many spans as the limit may be cut, so the walk gives no counts for it."""
    monkeypatch.setattr("analytics.traces.walk.TRACE_SPANS_MAX", WHOLE_MAX)
    monkeypatch.setattr("analytics.traces.walk.ROWS_PER_BATCH", 2)
    rows = [
        row(f"t{size}", f"s{number}", "s0" if number else None, 0, 10)
        for size in range(1, 3 * WHOLE_MAX)
        for number in range(size)
    ]
    seen = {one["trace_id"]: one["seen"] for one in results(rows, batch_rows)}
    assert seen == {
        f"t{size}": {"spans": size, "orphans": 0, "roots": 1, "skewed": 0}
        if size < WHOLE_MAX
        else None
        for size in range(1, 3 * WHOLE_MAX)
    }
