"""The trace tables over several shuffle partitions, with compiled queries and one crowded trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from analytics import traces
from tests.analytics import trace_oracle
from tests.analytics.trace_spans import frame, random_traces, span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CROWD = 20_000


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_tables_do_not_depend_on_partitions(spark: SparkSession, seed: int) -> None:
    """Random traces beside a trace of 20,000 spans give the same tables as plain Python."""
    usual = random_traces(seed, 600)
    crowd = [
        span("crowd", "top", None, 0, 2 * CROWD, rpc="crowd", service="crowd"),
        *(
            span("crowd", f"c{at}", "top", 2 * at, 2 * at + 1, name="part", service="crowd")
            for at in range(CROWD)
        ),
    ]
    settings = {"spark.sql.shuffle.partitions": "4", "spark.sql.adaptive.enabled": "true"}
    usually = {name: spark.conf.get(name) for name in settings}
    for name, chosen in settings.items():
        spark.conf.set(name, chosen)
    try:
        with traces.tables(frame(spark, usual + crowd).repartition(5)) as frames:
            paths = frames["critical_path"].collect()
            graph = frames["service_graph"].collect()
            stages = frames["stage_latency"].collect()
    finally:
        for name, before in usually.items():
            spark.conf.set(name, before or "")
    found = {tuple(row)[:3]: (row.on_path_us, row.share, row.saving_us) for row in paths}
    assert found.pop(("crowd", "all", "part")) == (CROWD, 0.5, CROWD)
    assert {key: row for key, row in found.items() if row[0] and key[0] != "crowd"} == {
        key: pytest.approx(row) for key, row in trace_oracle.critical_path(usual).items()
    }
    assert {(row.parent, row.child): tuple(row)[2:] for row in graph} == (
        trace_oracle.service_graph(usual)
    )
    assert {
        (row.rpc, row.stage): (row["count"], row.p50_us, row.p90_us, row.p99_us, row.total_us)
        for row in stages
        if row.rpc != "crowd"
    } == trace_oracle.stage_latency(usual)
