"""Small tables for tests of the report, written as the job writes them, without Spark."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analytics.report.reading import column_names
from analytics.schema import SCHEMA_VERSION, TABLES, TableSchema

Row = Mapping[str, Any]

ARROW = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
}
MINUTE_US = 60_000_000
START_US = 1_795_190_400_000_000
STREAMS = "viewstamp.api.streams.v1.StreamsService"
GROUPS = "viewstamp.api.consumer_groups.v1.ConsumerGroupsService"
USERS = "viewstamp.api.users.v1.UsersService"
CREATE, DELETE, JOIN, LOGIN, LIST = (
    f"{STREAMS}/CreateTopic",
    f"{STREAMS}/DeleteTopic",
    f"{GROUPS}/JoinConsumerGroup",
    f"{USERS}/LoginUser",
    f"{STREAMS}/ListTopics",
)
CLIENT, COORDINATOR = "viewstamp-client", "viewstamp-coordinator"


def write(directory: Path, name: str, rows: Sequence[Row]) -> Path:
    """Write rows as a table; columns that a row leaves out are null. Return its directory."""
    table = TABLES[name]
    path = directory / name
    path.mkdir(parents=True)
    fields = _fields(table)
    columns = {field.name: [row.get(field.name) for row in rows] for field in fields}
    unknown = {key for row in rows for key in row} - set(column_names(table))
    assert not unknown, f"{name} has no column {unknown}"
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), path / "part-00000.parquet")
    (path / "_SUCCESS").touch()
    (path / "_schema.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION}))
    return path


def read(directory: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table as they are on disk, without code of the report."""
    rows: list[dict[str, Any]] = pq.read_table(directory / name).to_pylist()
    return rows


def sample(directory: Path) -> Path:
    """Write every table for an hour of a busy cluster; return the directory."""
    for name, rows in (_traces() | _trouble() | _snapshots()).items():
        write(directory, name, rows)
    return directory


def _fields(table: TableSchema) -> list[pa.Field]:
    """Return the plain columns of a table as fields; nested ones are left out."""
    columns = table.columns
    while "<" in columns:
        columns = re.sub("<[^<>]*>", "", columns)
    kinds = dict(column.split(maxsplit=1) for column in columns.split(", "))
    return [pa.field(name, ARROW[kind]) for name, kind in kinds.items() if kind in ARROW]


def _wave(place: int, period: int = 12) -> float:
    """Return 0.7 to 1.3, up and down."""
    return 1 + 0.3 * math.sin(place * 2 * math.pi / period)


def _red() -> list[Row]:
    """Return an hour of windows; joins fail now and then, and topics are slow around a cut."""
    shape = (
        (CREATE, CLIENT, 2_900, 3_400.0, 12_300.0),
        (CREATE, COORDINATOR, 2_900, 3_000.0, 11_200.0),
        (JOIN, CLIENT, 700, 2_600.0, 9_800.0),
        (LOGIN, CLIENT, 60, 84_000.0, 140_000.0),
        (DELETE, CLIENT, 300, 2_800.0, 9_100.0),
        (LIST, CLIENT, 4_100, 410.0, 1_900.0),
    )
    return [
        {
            "rpc": rpc,
            "service": service,
            "window_start": START_US + minute * MINUTE_US,
            "count": int(count * _wave(minute)),
            "errors": int(count * 0.03 * _wave(minute, 7)) if rpc == JOIN else 0,
            "rate_per_s": int(count * _wave(minute)) / 60,
            "p50_us": p50 * _wave(minute, 20),
            "p90_us": (p50 + p99) / 2 * _wave(minute, 9),
            "p99_us": p99 * _wave(minute, 9) * (1.8 if minute in (30, 31) else 1),
            "max_us": p99 * 2.5,
        }
        for rpc, service, count, p50, p99 in shape
        for minute in range(60)
    ]


def _paths() -> list[Row]:
    """Return critical paths whose shares add up to 1."""
    shares = {
        CREATE: {
            CLIENT: 0.04,
            COORDINATOR: 0.05,
            "queue": 0.08,
            "journal": 0.13,
            "replicate": 0.04,
            "commit": 0.03,
            "viewstamp-streams": 0.6,
            "apply": 0.03,
        },
        JOIN: {
            CLIENT: 0.1,
            "journal": 0.3,
            "viewstamp-streams": 0.15,
            "viewstamp-consumer-groups": 0.35,
            "queue": 0.1,
        },
        LOGIN: {"viewstamp-users": 0.92, COORDINATOR: 0.05, "journal": 0.03},
    }
    rows: list[Row] = []
    means = {"p50": 3_600.0, "p90": 8_000.0, "p99": 14_000.0, "all": 4_400.0}
    for rpc, stages in shares.items():
        for place, (band, mean) in enumerate(means.items()):
            # In slower bands the journal takes less of the time, and the first stage takes more.
            shift = 0.03 * place if rpc == JOIN else 0.0
            for stage, share in stages.items():
                share += shift if stage == "viewstamp-streams" else 0.0
                share -= shift if stage == "journal" else 0.0
                values = {"on_path_us": share * mean, "saving_us": share * mean, "share": share}
                rows.append(
                    {"rpc": rpc, "band": band, "stage": stage, "traces": 900 // (place + 1)}
                    | values
                )
    return rows


def _traces() -> dict[str, Sequence[Row]]:
    """Return the rows of the trace tables."""
    stages = {
        "queue": (150.0, 900.0, 0.08),
        "journal": (420.0, 2_400.0, 0.13),
        "replicate": (90.0, 200.0, 0.04),
        "commit": (60.0, 150.0, 0.03),
        "users": (210.0, 800.0, 0.07),
        "streams": (1_900.0, 7_600.0, 0.6),
        "apply": (50.0, 140.0, 0.03),
    }
    heat = [
        {"rpc": rpc, "minute": START_US + minute * MINUTE_US, "bucket_log2_us": bucket, "count": n}
        for rpc, centre in ((CREATE, 11.6), (LIST, 8.6), (LOGIN, 16.4))
        for minute in range(60)
        for bucket in range(6, 19)
        if (n := int(900 * math.exp(-((bucket - centre - 0.4 * _wave(minute)) ** 2) * 0.9))) > 0
    ]
    edges = [
        (CLIENT, COORDINATOR, 238_000, 1_260, 3_100.0, 11_900.0),
        (COORDINATOR, "viewstamp-users", 236_000, 12, 200.0, 800.0),
        (COORDINATOR, "viewstamp-streams", 236_000, 0, 1_900.0, 7_600.0),
        (COORDINATOR, "viewstamp-consumer-groups", 42_000, 1_240, 700.0, 3_900.0),
    ]
    quality = {
        "spans": 1_200.0,
        "orphan_rate": 0.004,
        "quarantine_rate": 0.0025,
        "trace_incomplete_rate": 0.031,
        "trace_skewed_rate": 0.0,
        "clock_skew_max_us": 1_800.0,
    }
    return {
        "spans": [{"trace_id": f"{n:032x}", "span_id": f"{n:016x}"} for n in range(1_200)],
        "rpc_red": _red(),
        "critical_path": _paths(),
        "stage_latency": [
            {"rpc": CREATE, "stage": stage, "count": 174_000, "p50_us": p50, "p90_us": p99 * 0.6}
            | {"p99_us": p99, "total_us": share * 6e8, "share": share}
            for stage, (p50, p99, share) in stages.items()
        ],
        "latency_heatmap": heat,
        "service_graph": [
            dict(
                zip(
                    ("parent", "child", "calls", "errors", "p50_us", "p99_us"),
                    edge,
                    strict=True,
                )
            )
            for edge in edges
        ],
        "data_quality": [{"metric": key, "value": value} for key, value in quality.items()],
        "quarantine": [
            {"source": "traces.jsonl", "line_number": 17 + n, "reason": "cut line"}
            | {"excerpt": '{"resourceSpans":[{"resource":{"attributes":[{"key":"serv'}
            for n in range(3)
        ],
    }


def _trouble() -> dict[str, Sequence[Row]]:
    """Return the rows about failures and changes."""
    return {
        "stragglers": [
            {"rpc": CREATE, "op": 4_000 + n, "slowest_stage": "viewstamp-streams"}
            | {"max_us": 7_600.0 - n, "median_us": 900.0, "ratio": (7_600.0 - n) / 900}
            for n in range(40)
        ],
        "errors": [
            {"rpc": JOIN, "service": CLIENT, "reason": reason, "traces": count}
            | {"root_cause_service": "viewstamp-consumer-groups", "propagated_to": COORDINATOR}
            for reason, count in (("UNAVAILABLE", 1_100), ("DEADLINE_EXCEEDED", 140))
        ],
        "exemplars": [
            {"rpc": CREATE, "band": band, "trace_id": f"{n:032x}", "duration_us": 12_000.0 + n}
            for band in ("p50", "p90", "p99")
            for n in range(3)
        ],
        "view_changes": [
            {"view": 4, "replica": replica, "start_us": START_US, "end_us": START_US + 240_000}
            | {"unavailable_us": 310_000.0}
            for replica in range(3)
        ],
        "comparison": [
            {"rpc": CREATE, "metric": "p99_us", "before": 8_200.0, "after": 12_300.0}
            | {"ratio": 1.5, "p_value": 0.00012, "significant": True},
            {"rpc": LIST, "metric": "p99_us", "before": 1_900.0, "after": 1_910.0}
            | {"ratio": 1.005, "p_value": 0.7, "significant": False},
        ],
    }


def _snapshots() -> dict[str, Sequence[Row]]:
    """Return the rows of the snapshot tables: twelve generations, the last of them 12."""
    sizes = {"sessions": 600, "users": 2_100, "streams": 21_000, "consumer_groups": 9_000}
    sections = [
        {"generation": generation, "section": section, "kind": section, "entities": entities}
        | {"bytes": entities * 46, "raw_bytes": entities * 120, "layers": 3}
        | {"base_bytes": entities * 40, "delta_bytes": entities * 6, "cut_revision": generation * 9}
        | {"timestamp_us": START_US + generation * 5 * MINUTE_US}
        for generation in range(1, 13)
        for section, base in sizes.items()
        if (entities := int(base * (1 + 0.08 * generation)))
    ]
    return {
        "snapshot_sections": sections,
        "snapshot_tenants": [
            {"generation": 12, "tenant": tenant, "kind": "topics", "entities": size, "bytes": size}
            for tenant, size in (
                ("stream 5 (orders)", 900_000),
                ("stream 9", 310_000),
                ("user 3 (ana)", 41_000),
            )
        ],
        "growth": [
            {"section": "streams", "per_hour": 120.0, "forecast_24h": 44_000.0}
            | {"days_to_limit": 200.0, "slope": 1_680.0, "limited_by": "STREAMS_MAX"}
            | {"per_hour_low": 110.0, "per_hour_high": 131.0}
            | {"confidence": "significant", "generations": 12},
            {"section": "sessions", "per_hour": 4.5, "forecast_24h": 708.0}
            | {"days_to_limit": 21.0, "slope": 0.4, "limited_by": "SESSIONS_MAX"}
            | {"confidence": "significant", "generations": 12},
            {"section": "consumer_groups", "per_hour": 31.0, "forecast_24h": 18_400.0}
            | {"slope": 2.6, "confidence": "uncertain", "generations": 12},
            {"section": "users", "per_hour": 0.0, "forecast_24h": 4_100.0, "slope": 0.0}
            | {"confidence": "uncertain", "generations": 12},
        ],
        "churn": [
            {"generation": generation, "section": "streams", "added": 1_700 + 90 * generation}
            | {"changed": 600 + int(300 * _wave(generation)), "removed": 250 + 20 * generation}
            for generation in range(2, 13)
        ],
        "amplification": [
            {"generation": 12, "layer_bytes": 910_000, "log_bytes": 700_000, "ratio": 1.3}
        ],
        "restore_estimate": [
            {"generation": 12, "section": section, "seconds": base / 4_000}
            for section, base in sizes.items()
        ],
        "garbage": [
            {"generation": 12, "what": "empty_groups", "count": 4_200, "bytes": 193_200},
            {"generation": 12, "what": "expired_tokens", "count": 310, "bytes": 14_300},
        ],
        "cut_latency": [
            {"generation": generation, "rpc": CREATE, "p99_us_baseline": 10_000.0 + generation}
            | {"p99_us_around": 10_000.0 * ratio, "ratio": ratio}
            | {"calls_around": 292, "calls_baseline": 850}
            for generation, ratio in ((6, 1.02), (7, 1.4), (8, 1.1), (9, 1.71), (12, 1.05))
        ],
    }
