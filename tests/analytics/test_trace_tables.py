"""Compares the trace tables with numbers found by hand, and with a second computation.

All cases are traces of one DataFrame, told apart by their RPC, so each table is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from analytics import schema, traces
from analytics.traces import common, failures, stages
from tests.analytics import trace_oracle
from tests.analytics.trace_spans import EPOCH_US, MINUTE_US, Span, frame, link, random_traces, span

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

Rows = dict[str, list["Row"]]

# A shop, as any producer would write it. It calls the cart and the payment in parallel; the payment
# takes longer.
SHOP: list[Span] = [
    span("shop", "1", None, 0, 100, kind="SERVER", service="web", name="GET /checkout"),
    span("shop", "2", "1", 10, 40, kind="CLIENT", service="web", name="call cart"),
    span("shop", "3", "2", 12, 38, kind="SERVER", service="cart", name="GetCart"),
    span(
        "shop",
        "4",
        "3",
        15,
        30,
        kind="CLIENT",
        service="cart",
        name="SELECT",
        attributes={"db.system": "postgresql"},
    ),
    span("shop", "5", "1", 20, 90, kind="CLIENT", service="web", name="call pay"),
    span("shop", "6", "5", 25, 85, kind="SERVER", service="pay", name="Pay"),
    span("shop", "7", "1", 92, 98, service="web", name="render"),
]

# A command of ours, with its prepare in a trace of its own that links to it.
COMMAND: list[Span] = [
    span("cmd", "1", "remote", 0, 90, kind="SERVER", service="coord", rpc="Streams/Create"),
    span("cmd", "2", "1", 0, 10, service="coord", name="queue", stage="queue"),
    span("cmd", "3", "1", 10, 50, service="coord", name="journal", stage="journal", op=7),
    span(
        "cmd",
        "4",
        "1",
        50,
        60,
        service="coord",
        name="stage users",
        stage="users",
        kind="CLIENT",
        op=7,
    ),
    span(
        "cmd", "5", "4", 52, 58, service="users", name="apply users", stage="users", kind="SERVER"
    ),
    span(
        "cmd",
        "6",
        "1",
        60,
        90,
        service="coord",
        name="stage streams",
        stage="streams",
        kind="CLIENT",
        op=7,
    ),
    span(
        "cmd",
        "7",
        "6",
        62,
        88,
        service="streams",
        name="apply streams",
        stage="streams",
        kind="SERVER",
    ),
    span("prep", "1", None, 5, 55, service="coord", name="prepare", links=[link("cmd", "2")], op=7),
]

# A message: its receiver is a child of the sending span and links to it, and is one call.
QUEUE: list[Span] = [
    span("mail", "1", None, 0, 30, kind="PRODUCER", service="shop", name="send"),
    span(
        "mail",
        "2",
        "1",
        10,
        80,
        kind="CONSUMER",
        service="shop",
        name="receive",
        links=[link("mail", "1")],
        status="ERROR",
        status_message="mailbox full",
    ),
]

# The same failure twice and another one once, each three services deep.
FAILURES: list[Span] = [
    one
    for number in range(2)
    for one in (
        span(f"fail{number}", "1", None, 0, 90, service="web", name="buy", status="ERROR"),
        span(f"fail{number}", "2", "1", 10, 80, service="cart", status="ERROR"),
        span(
            f"fail{number}",
            "3",
            "2",
            20,
            70,
            service="stock",
            status="ERROR",
            status_message="of no use",
            events=[
                {"time_us": 0, "name": "log", "attributes": {}},
                {"time_us": 0, "name": "exception", "attributes": {"exception.type": "Timeout"}},
            ],
        ),
    )
] + [
    span(
        "fail9",
        "1",
        None,
        0,
        90,
        service="web",
        name="buy",
        status="ERROR",
        attributes={"viewstamp.reason": "DISK_FULL"},
    )
]

# Durations of 1 to 1000 us, so that percentiles are their own numbers.
UNIFORM: list[Span] = [
    span(f"uniform-{us:04}", "1", None, us, 2 * us, name="uniform") for us in range(1, 1001)
]

# Durations on both sides of powers of two, and on both sides of a minute.
EDGES: list[Span] = [
    span(f"edge-{number}", "1", None, start, start + us, name="edge", status=status)
    for number, (start, us, status) in enumerate(
        [
            (0, 0, "OK"),
            (1, 1, "OK"),
            (2, 2, "OK"),
            (3, 3, "ERROR"),
            (4, 2**40 - 1, "OK"),
            (MINUTE_US - 1, 2**40, "OK"),
            (MINUTE_US, 4, "ERROR"),
        ]
    )
]


def prepare(number: int, view: int, end: int) -> Span:
    """Return a prepare that was over at `end` seconds."""
    end_us = end * 1_000_000
    return span(
        f"p{number}",
        "1",
        None,
        end_us - 5,
        end_us,
        name="prepare",
        attributes={"viewstamp.view": str(view)},
    )


def change(number: int, view: int, replica: int, start: int, end: int) -> Span:
    """Return a view change of a replica, in seconds."""
    return span(
        f"v{number}",
        "1",
        None,
        start * 1_000_000,
        end * 1_000_000,
        name="view change",
        replica_id=replica,
        attributes={"viewstamp.view": str(view)},
    )


# View 1 begins under load, view 3 in an idle cluster; view 4 is never used; view x is not a view.
VIEWS: list[Span] = [
    prepare(1, 0, 90),
    prepare(2, 0, 100),
    change(1, 1, 1, 102, 104),
    change(2, 1, 2, 103, 105),
    prepare(3, 1, 106),
    prepare(4, 1, 110),
    change(3, 3, 0, 200, 203),
    prepare(5, 3, 300),
    change(4, 4, 2, 305, 307),
    span("v9", "1", None, 0, 5, name="view change", attributes={"viewstamp.view": "x"}),
]

BY_HAND = [*SHOP, *COMMAND, *QUEUE, *FAILURES, *UNIFORM, *EDGES, *VIEWS]
ALL = BY_HAND + random_traces(seed=1, count=120)


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[Rows]:
    """Yield the rows of every table of all cases."""
    # Compiling each query costs more than running it on so few rows.
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spans = frame(spark, ALL).repartition(2).persist()
    compare = (
        traces.Period(EPOCH_US, EPOCH_US + MINUTE_US),
        traces.Period(EPOCH_US + MINUTE_US, EPOCH_US + 10 * MINUTE_US),
    )
    with traces.tables(spans, compare=compare) as frames:
        for name, table in frames.items():
            promised = schema.TABLES[name].struct()
            assert table.dtypes == [(one.name, one.dataType.simpleString()) for one in promised]
        yield {name: table.collect() for name, table in frames.items()}
    spans.unpersist()
    spark.conf.unset("spark.sql.codegen.wholeStage")


def of(rows: list[Row], *columns: str, **where: Any) -> list[tuple[Any, ...]]:
    """Return these columns of the rows that have these values, sorted."""
    chosen = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return sorted(tuple(row[name] for name in columns) for row in chosen)


def by_key(rows: list[Row], keys: int, *columns: str) -> dict[Any, Any]:
    """Return the columns of each row by its first `keys` columns, of which no two may agree."""
    found = {tuple(row[:keys]): tuple(row[name] for name in columns) for row in rows}
    assert len(found) == len(rows), "two rows have the same key"
    return found


def test_all_tables_are_there(tables: Rows) -> None:
    """Each table that the schema promises for traces is computed."""
    assert set(tables) == {
        *("rpc_red", "stage_latency", "latency_heatmap", "service_graph", "critical_path"),
        *("stragglers", "errors", "exemplars", "data_quality", "view_changes", "comparison"),
    }


def test_red_by_hand(tables: Rows) -> None:
    """Counts, errors, rate and percentiles are those of the window in which requests began."""
    columns = ("service", "window_start", "count", "errors", "rate_per_s", "p50_us", "max_us")
    assert of(tables["rpc_red"], *columns, rpc="edge") == [
        ("a", EPOCH_US, 6, 1, 0.1, 2.0, float(2**40)),
        ("a", EPOCH_US + MINUTE_US, 1, 1, 1 / 60, 4.0, 4.0),
    ]
    percentiles = ("p50_us", "p90_us", "p99_us", "max_us")
    assert of(tables["rpc_red"], *percentiles, rpc="uniform") == [(500.0, 900.0, 990.0, 1000.0)]
    # In the shop's request, each span that takes up work counts for its service; calls count for
    # none.
    assert of(tables["rpc_red"], "service", "count", rpc="GetCart") == [("cart", 1)]
    assert of(tables["rpc_red"], "service", "count", rpc="call cart") == []


def test_red_and_percentiles_a_second_time(tables: Rows) -> None:
    """RED equals sorting and counting in plain Python."""
    found = by_key(tables["rpc_red"], 3, "count", "errors", "p50_us", "p90_us", "p99_us", "max_us")
    assert found == trace_oracle.rpc_red(ALL, MINUTE_US)


def test_heatmap(tables: Rows) -> None:
    """Bucket b has durations from 2^b up to and without 2^(b+1); all cases a second time."""
    later = EPOCH_US + MINUTE_US
    assert of(tables["latency_heatmap"], "minute", "bucket_log2_us", "count", rpc="edge") == [
        (EPOCH_US, 0, 2),
        (EPOCH_US, 1, 2),
        (EPOCH_US, 39, 1),
        (EPOCH_US, 40, 1),
        (later, 2, 1),
    ]
    found = by_key(tables["latency_heatmap"], 3, "count")
    assert {key: count for key, (count,) in found.items()} == trace_oracle.heatmap(ALL)


def test_stage_latency_by_hand(tables: Rows) -> None:
    """Each stage of a command has its time and its share of the request's duration."""
    rows = of(tables["stage_latency"], "stage", "count", "p99_us", "share", rpc="Streams/Create")
    assert rows == [
        ("coord", 1, 90.0, 1.0),
        ("journal", 1, 40.0, 40 / 90),
        ("queue", 1, 10.0, 10 / 90),
        # The call of a stage counts for that stage; the work of its service counts for the service.
        ("streams", 2, 30.0, 56 / 90),
        ("users", 2, 10.0, 16 / 90),
    ]


def test_stage_latency_a_second_time(tables: Rows) -> None:
    """Stages equal those of plain Python."""
    found = by_key(tables["stage_latency"], 2, "count", "p50_us", "p90_us", "p99_us", "total_us")
    assert found == trace_oracle.stage_latency(ALL)


def test_service_graph_by_hand(tables: Rows) -> None:
    """Calls come from parents, links and named peers, each once."""
    edges = by_key(tables["service_graph"], 2, "calls", "errors", "p50_us", "p99_us")
    assert edges["web", "pay"][0] >= 1
    assert edges["cart", "postgresql"] == (1, 0, 15.0, 15.0)
    assert edges["coord", "users"] == (1, 0, 6.0, 6.0)
    assert edges["coord", "streams"] == (1, 0, 26.0, 26.0)
    assert edges["shop", "shop"] == (1, 1, 70.0, 70.0)
    assert edges["cart", "stock"] == (2, 2, 50.0, 50.0)
    # The prepare links to its own service, and neither side is a call.
    assert ("coord", "coord") not in edges


def test_service_graph_a_second_time(tables: Rows) -> None:
    """The graph equals a double loop over all spans."""
    found = by_key(tables["service_graph"], 2, "calls", "errors", "p50_us", "p99_us")
    assert found == trace_oracle.service_graph(ALL)


def test_critical_path_by_hand(tables: Rows) -> None:
    """Work beside the payment is not on the path, and limits the saving without payment."""
    rows = of(
        tables["critical_path"],
        "stage",
        "traces",
        "on_path_us",
        "saving_us",
        rpc="GET /checkout",
        band="all",
    )
    assert rows == [
        ("call pay", 1, 10.0, 10.0),
        ("pay", 1, 60.0, 50.0),
        ("render", 1, 6.0, 6.0),
        ("web", 1, 24.0, 24.0),
    ]
    # A single request is its own p99.
    bands = {band for (band,) in of(tables["critical_path"], "band", rpc="GET /checkout")}
    assert bands == {"all", "p99"}


def test_bands_by_hand(tables: Rows) -> None:
    """A band goes from its percentile up to the next one."""
    rows = of(
        tables["critical_path"], "band", "traces", "on_path_us", "share", "saving_us", rpc="uniform"
    )
    assert rows == [
        ("all", 1000, 500.5, 1.0, 500.5),
        ("p50", 400, 699.5, 1.0, 699.5),
        ("p90", 90, 944.5, 1.0, 944.5),
        ("p99", 11, 995.0, 1.0, 995.0),
    ]


def test_critical_path_a_second_time(tables: Rows) -> None:
    """Paths, shares and savings of random traces equal the longest paths of graphs of events."""
    found = by_key(tables["critical_path"], 3, "on_path_us", "share", "saving_us")
    expected = trace_oracle.critical_path(ALL)
    assert {key: pytest.approx(row) for key, row in expected.items()} == {
        key: row for key, row in found.items() if row[0]
    }
    shares: dict[Any, float] = {}
    for (rpc, band, _), (_, share, _) in found.items():
        shares[rpc, band] = shares.get((rpc, band), 0.0) + (share or 0.0)
    assert all(share == pytest.approx(1) for share in shares.values())


def test_stragglers_by_hand(tables: Rows) -> None:
    """The slowest call of a fan-out is named, with its ratio to the median."""
    columns = ("op", "slowest_stage", "max_us", "median_us", "ratio")
    assert of(tables["stragglers"], *columns, rpc="Streams/Create") == [
        (7, "streams", 30.0, 10.0, 3.0)
    ]
    assert of(tables["stragglers"], *columns, rpc="GET /checkout") == [
        (None, "call pay", 70.0, 30.0, 70 / 30)
    ]


def test_errors_by_hand(tables: Rows) -> None:
    """Traces with the same root cause, reason and way up are one row."""
    columns = ("service", "reason", "traces", "root_cause_service", "propagated_to")
    assert of(tables["errors"], *columns, rpc="buy") == [
        ("web", "DISK_FULL", 1, "web", ""),
        ("web", "Timeout", 2, "stock", "cart > web"),
    ]
    assert of(tables["errors"], *columns, rpc="send") == [("shop", "mailbox full", 1, "shop", "")]


def test_exemplars_by_hand(tables: Rows) -> None:
    """The tail has its slowest traces, a lower band those nearest to its percentile."""
    durations = of(tables["exemplars"], "band", "duration_us", rpc="uniform")
    assert durations == [
        *(("p50", float(us)) for us in range(500, 505)),
        *(("p90", float(us)) for us in range(900, 905)),
        *(("p99", float(us)) for us in range(996, 1001)),
    ]
    slowest = of(tables["exemplars"], "trace_id", rpc="uniform", duration_us=1000.0)
    assert slowest == [("uniform-1000",)]


def test_view_changes_by_hand(tables: Rows) -> None:
    """Unavailability is from the last old prepare to the first new one, except in idle times."""
    columns = ("view", "replica", "start_us", "end_us", "unavailable_us")
    second = 1_000_000
    assert [
        (view, replica, (start - EPOCH_US) // second, (end - EPOCH_US) // second, out / second)
        for view, replica, start, end, out in of(tables["view_changes"], *columns)
    ] == [
        (1, 1, 102, 104, 6.0),
        (1, 2, 103, 105, 6.0),
        (3, 0, 200, 203, 3.0),
        # The last prepare of view 3 was at 300.
        (4, 2, 305, 307, 7.0),
    ]


def test_quality_by_hand(tables: Rows) -> None:
    """Orphans, missing roots and impossible clocks of all cases are counted."""
    found = {row["metric"]: row["value"] for row in tables["data_quality"]}
    by_trace = trace_oracle.traces(ALL)
    orphans = [
        one
        for trace in by_trace.values()
        for one in trace
        if one["parent_span_id"]
        and one["parent_span_id"] not in {other["span_id"] for other in trace}
    ]
    assert found["trace_count"] == len(by_trace)
    assert found["trace_spans"] == len(ALL)
    assert found["trace_spans_max"] == max(map(len, by_trace.values()))
    assert found["trace_orphan_spans"] == len(orphans) > 10
    assert found["trace_orphan_rate"] == pytest.approx(len(orphans) / len(ALL))
    assert found["trace_incomplete_traces"] == len({one["trace_id"] for one in orphans})
    assert found["trace_rootless_traces"] == 1, "the command, whose client is not there"
    assert found["trace_many_roots_traces"] == 0
    assert found["trace_oversized_traces"] == 0
    skewed = [
        (one, caller)
        for trace in by_trace.values()
        for one in trace
        for caller in trace
        if one["parent_span_id"] == caller["span_id"] and one["kind"] == "SERVER"
        if (one["service"], one.get("instance")) != (caller["service"], caller.get("instance"))
        if one["start_us"] < caller["start_us"] or one["end_us"] > caller["end_us"]
    ]
    assert found["trace_skewed_spans"] == len(skewed) > 10


def test_nothing_gives_nothing(spark: SparkSession) -> None:
    """Without spans the tables are empty, and the rates of data_quality are 0."""
    with traces.tables(frame(spark, [])) as frames:
        assert frames["critical_path"].collect() == []
        quality = {row["metric"]: row["value"] for row in frames["data_quality"].collect()}
    assert set(quality.values()) == {0.0}


def test_frequent_rpcs_are_cut_before_they_are_moved(spark: SparkSession) -> None:
    """Exemplars and stragglers of a frequent RPC are limited in each task, before the shuffle."""
    spans = frame(spark, SHOP)
    with traces.tables(spans) as frames:
        for name in ("exemplars", "stragglers"):
            plan = frames[name]._jdf.queryExecution().executedPlan().toString()
            assert "WindowGroupLimit" in plan, f"{name} moves all rows of an RPC to one task"
    assert failures.EXEMPLARS_PER_BAND < stages.STRAGGLERS_PER_RPC <= 1000, (
        "Spark limits up to 1000 rows per group"
    )


@pytest.mark.parametrize(("count", "error"), [(4_999, 0), (200_000, 20)])
def test_percentiles_are_within_their_error(spark: SparkSession, count: int, error: int) -> None:
    """Few values in four tasks have exact percentiles; the rank for many is off by 1/10,000."""
    from pyspark.sql import functions as f

    # Multiplication by a coprime number puts 1 to count into another order.
    shuffled = ((f.col("id") * 387_420_489) % count + 1).cast("double")
    [[found]] = spark.range(0, count, 1, 4).agg(common.percentiles(shuffled)).collect()
    for value, share in zip(found, common.QUANTILES.values(), strict=True):
        assert abs(value - math.ceil(share * count)) <= error
