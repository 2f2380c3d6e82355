"""Every table that analytics writes: its columns, its partitions, and the version of all tables.

Times are integers of microseconds since 1970 UTC, durations doubles of microseconds; ids are
lower-case hexadecimal. A column's type is Spark's name for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Increased when a column changes its name, type or meaning; readers refuse any other version.
SCHEMA_VERSION: Final = 1

EVENT: Final = "STRUCT<time_us: BIGINT, name: STRING, attributes: MAP<STRING, STRING>>"
LINK: Final = (
    "STRUCT<trace_id: STRING, span_id: STRING, trace_state: STRING, flags: BIGINT,"
    " attributes: MAP<STRING, STRING>>"
)

# The value of `spans.service` where a producer names none, as in OpenTelemetry.
UNKNOWN_SERVICE: Final = "unknown_service"

# `spans.kind` and `spans.status`, in the order of their numbers in OTLP.
KINDS: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUSES: Final = ("UNSET", "OK", "ERROR")


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table: its name, its columns as `name TYPE, ...`, and its partition columns on disk."""

    name: str
    columns: str
    partition_by: tuple[str, ...] = ()

    def struct(self) -> StructType:
        """Return the columns as a Spark type; every column may be null. Needs a session."""
        from pyspark.sql.types import StructType

        struct = StructType.fromDDL(self.columns)
        assert isinstance(struct, StructType), (
            f"{self.name}: {self.columns!r} is no list of columns"
        )
        return struct

    def column_names(self) -> tuple[str, ...]:
        """Return the names of the columns, in order."""
        return tuple(self.struct().fieldNames())


# `duration_us` is never negative: where a span ends before it starts it is 0, and
# `data_quality` counts it. `attributes` are those of the span; arrays and maps in them are JSON.
SPANS: Final = TableSchema(
    "spans",
    "trace_id STRING, span_id STRING, parent_span_id STRING, instance STRING, name STRING,"
    " kind STRING, start_us BIGINT, end_us BIGINT, duration_us DOUBLE, status STRING,"
    " status_message STRING, rpc STRING, replica_id BIGINT, op BIGINT, revision BIGINT,"
    " stage STRING, generation BIGINT, cluster_id STRING, scope STRING, scope_version STRING,"
    " trace_state STRING, flags BIGINT, attributes MAP<STRING, STRING>,"
    f" events ARRAY<{EVENT}>, links ARRAY<{LINK}>, date DATE, service STRING",
    partition_by=("date", "service"),
)
# `line_number` counts from 1; 0 means the file as a whole.
QUARANTINE: Final = TableSchema(
    "quarantine", "source STRING, line_number BIGINT, reason STRING, excerpt STRING"
)
DATA_QUALITY: Final = TableSchema("data_quality", "metric STRING, value DOUBLE")

RPC_RED: Final = TableSchema(
    "rpc_red",
    "rpc STRING, service STRING, window_start BIGINT, count BIGINT, errors BIGINT,"
    " rate_per_s DOUBLE, p50_us DOUBLE, p90_us DOUBLE, p99_us DOUBLE, max_us DOUBLE",
)
STAGE_LATENCY: Final = TableSchema(
    "stage_latency",
    "rpc STRING, stage STRING, count BIGINT, p50_us DOUBLE, p90_us DOUBLE, p99_us DOUBLE,"
    " total_us DOUBLE, share DOUBLE",
)
LATENCY_HEATMAP: Final = TableSchema(
    "latency_heatmap", "rpc STRING, minute BIGINT, bucket_log2_us INT, count BIGINT"
)
SERVICE_GRAPH: Final = TableSchema(
    "service_graph",
    "parent STRING, child STRING, calls BIGINT, errors BIGINT, p50_us DOUBLE, p99_us DOUBLE",
)
CRITICAL_PATH: Final = TableSchema(
    "critical_path",
    "rpc STRING, band STRING, stage STRING, traces BIGINT, on_path_us DOUBLE, share DOUBLE,"
    " saving_us DOUBLE",
)
STRAGGLERS: Final = TableSchema(
    "stragglers",
    "rpc STRING, op BIGINT, slowest_stage STRING, max_us DOUBLE, median_us DOUBLE, ratio DOUBLE",
)
ERRORS: Final = TableSchema(
    "errors",
    "rpc STRING, service STRING, reason STRING, traces BIGINT, root_cause_service STRING,"
    " propagated_to STRING",
)
EXEMPLARS: Final = TableSchema(
    "exemplars", "rpc STRING, band STRING, trace_id STRING, duration_us DOUBLE"
)
VIEW_CHANGES: Final = TableSchema(
    "view_changes",
    "view BIGINT, replica BIGINT, start_us BIGINT, end_us BIGINT, unavailable_us DOUBLE",
)
COMPARISON: Final = TableSchema(
    "comparison",
    "rpc STRING, metric STRING, before DOUBLE, after DOUBLE, ratio DOUBLE, p_value DOUBLE,"
    " significant BOOLEAN",
)

SNAPSHOT_SECTIONS: Final = TableSchema(
    "snapshot_sections",
    "generation BIGINT, section STRING, kind STRING, entities BIGINT, bytes BIGINT,"
    " raw_bytes BIGINT, layers BIGINT, base_bytes BIGINT, delta_bytes BIGINT,"
    " cut_revision BIGINT, timestamp_us BIGINT",
)
SNAPSHOT_TENANTS: Final = TableSchema(
    "snapshot_tenants",
    "generation BIGINT, tenant STRING, kind STRING, entities BIGINT, bytes BIGINT",
)
# Values count entities. `per_hour` and `slope` (per generation) are medians of the slopes between
# any two generations (Theil-Sen); `per_hour_low` to `per_hour_high` is the 95 % interval.
# `confidence` is significant (the interval leaves 0 out), uncertain or too_few (generations).
GROWTH: Final = TableSchema(
    "growth",
    "section STRING, per_hour DOUBLE, forecast_24h DOUBLE, days_to_limit DOUBLE, slope DOUBLE,"
    " limited_by STRING, per_hour_low DOUBLE, per_hour_high DOUBLE, confidence STRING,"
    " generations BIGINT",
)
CHURN: Final = TableSchema(
    "churn", "generation BIGINT, section STRING, added BIGINT, changed BIGINT, removed BIGINT"
)
# `ratio` is layer_bytes / log_bytes, `changed_ratio` layer_bytes / changed_bytes.
AMPLIFICATION: Final = TableSchema(
    "amplification",
    "generation BIGINT, layer_bytes BIGINT, log_bytes BIGINT, ratio DOUBLE, changed_bytes BIGINT,"
    " changed_ratio DOUBLE",
)
RESTORE_ESTIMATE: Final = TableSchema(
    "restore_estimate", "generation BIGINT, section STRING, seconds DOUBLE"
)
GARBAGE: Final = TableSchema(
    "garbage", "generation BIGINT, what STRING, count BIGINT, bytes BIGINT"
)
CUT_LATENCY: Final = TableSchema(
    "cut_latency",
    "generation BIGINT, rpc STRING, p99_us_around DOUBLE, p99_us_baseline DOUBLE, ratio DOUBLE,"
    " calls_around BIGINT, calls_baseline BIGINT",
)

TABLES: Final[dict[str, TableSchema]] = {
    table.name: table
    for table in (
        SPANS,
        QUARANTINE,
        DATA_QUALITY,
        RPC_RED,
        STAGE_LATENCY,
        LATENCY_HEATMAP,
        SERVICE_GRAPH,
        CRITICAL_PATH,
        STRAGGLERS,
        ERRORS,
        EXEMPLARS,
        VIEW_CHANGES,
        COMPARISON,
        SNAPSHOT_SECTIONS,
        SNAPSHOT_TENANTS,
        GROWTH,
        CHURN,
        AMPLIFICATION,
        RESTORE_ESTIMATE,
        GARBAGE,
        CUT_LATENCY,
    )
}
